"""What of the package counts in a key by its source, and what by something else. The one list of it.

A stage is known by its options, its needs and its code: the modules that the code imports, ours and the
user's (`sources`). Modules named here are left out, each for the reason beside it. Names are relative to the
package and stand for all that lies under them.
"""

IDENTIFIED = {
    # name: (version, what identifies it in the keys that use it)
    "llm": (
        1,
        "the fingerprint of a model: weights, tokenizer, template, precision, `version` of its backend",
    ),
    "data": (1, "the content of the data stage (`stages.data`), which dependents are keyed by"),
    "tasks": (1, "the fields of a `Task`, each an option of the nodes that read it"),
    "corpus": (1, "the content of the data stage, which holds the code that says who sees what"),
    "options": (1, "the values of options, defaults included (`options.key_of`)"),
}
"""Rooms with an identity of their own. A version is raised by hand where the same identity gives other
results."""

COMPUTES = (
    "data.views", "data.expansions",
    "corpus.search", "corpus.vectors", "corpus.visibility", "corpus.columns",
)  # fmt: skip
"""Modules in these rooms that compute with what was read; they count by their source."""

MAKES_CONTENT = "stages.data"
"""The stage that makes the content of `data`, `tasks` and `corpus`: its own key counts their source."""
_CONTENT = ("data", "tasks", "corpus")

PLUMBING = {
    "cache": "makes keys, and keeps what a stage wrote as it wrote it",
    "graph": "makes keys; calls each node with the values that are in its key",
    "base.file_hashes": "hashes of files",
    "base.provenance": "commit and versions, recorded beside a result",
    "base.files": "writes whole files or none",
    "base.locks": "waits for other processes",
    "base.processes": "which process computes which part, and messages between them",
    "corpus.database": "opens files of stores, and deletes from them",
    "base.system_errors": "words of errors",
    "base.interrupts": "Ctrl-C",
    "remarks.living": "changes documents, which are known by their content",
    "base.compilation": "how many cores share a program, which the machine decides and no key says",
    "base.terminal": "progress and messages",
    "corpus.arguments": "refuses what a caller gives by mistake",
    "base.types": "records without methods, and the error class",
    "models.fields": "refuses folders of models; what it lets pass is known by the folder's content",
    # The roof composes stages: an own config file imports it, a stage never does.
    "": "re-exports",
    "config": "composes options, which are in keys by value",
    "experiment.plan": "chooses nodes, which have keys",
    "experiment": "writes and opens runs",
    "sweeps": "plans configs",
    "cli": "the command line",
}
"""Modules that cannot change a result."""


def stand_in(module: str, root: str) -> str | None:
    """What counts in place of a module's source for code of the module `root`, both without the package's
    name: a room and its version, "" for plumbing; None: the source counts."""
    names = [module.rsplit(".", cut)[0] for cut in range(module.count(".") + 1)]
    if module == "" or any(name in PLUMBING for name in names):
        return ""
    if any(name in COMPUTES for name in names):
        return None
    room = next((name for name in names if name in IDENTIFIED), None)
    if room is None or (root == MAKES_CONTENT and room in _CONTENT):
        return None
    return f"{room} {IDENTIFIED[room][0]}"
