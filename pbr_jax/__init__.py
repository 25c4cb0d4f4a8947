"""Personalized retrieval-augmented generation in JAX: published systems as configurations of one pipeline.

A language model imitates a person's writing better if its prompt contains what that person wrote before.
A run chooses such documents with one method, answers the questions of a benchmark and measures the answers::

    import pbr_jax

    dense = pbr_jax.run("dense", k=3, limit=10)          # a config by name, on synthetic users
    nothing = pbr_jax.run("zero_shot", limit=10)         # no documents in the prompt
    dense.metrics["target_nll"], dense.intervals         # numbers; a notebook shows `dense` as a table
    dense.predictions(), dense.texts()                   # pandas frames with a row for each question
    pbr_jax.compare(dense, nothing)                      # paired differences with intervals
    pbr_jax.report(dense, nothing, format="html")        # the page that `pbr-jax report` writes

    pbr_jax.run("bm25", data="mine", k=4)                # a folder that `pbr-jax data import` wrote
    pbr_jax.run("bm25", data=frame, columns={"user": "customer", "input": "ticket", "output": "reply"})
    pbr_jax.run("bm25", data="LaMP_7", benchmark="lamp_7", limit=100)
    pbr_jax.run("dense", overrides={"retrieve.index": "exact"}, seed=1)
    pbr_jax.import_table("tickets.csv", "mine")          # writes a folder of data, which you can edit
    pbr_jax.check("mine", minutes=5)                     # does showing users' own history help?

    system = pbr_jax.open(dense.path)                    # loads a finished run
    system.ask("9", "What will you bring to the lake?")  # a Reply: text, documents, profile
    system.add("9", ["I never leave without tea."])      # the next question can use it
    pbr_jax.forget("9")                                  # from the cache and all runs; returns a receipt

`pbr-jax configs` lists the configs, `pbr_jax.methods` contains the methods, and `pbr_jax.Config` has all
fields. Names are imported when they are first used, so `import pbr_jax` is fast.
"""

from pbr_jax.base import lazy

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy.names(__name__, __file__)  # of the stub beside this file
