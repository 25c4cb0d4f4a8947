"""LUF: a retriever that learns from the language model's labels of the documents it retrieved.

Questions arrive one after the other, and the retriever is updated after every 200. Anonymous ACL submission,
"LLM and User Feedback Based Contrastive Learning Improves Retrieval-Augmented Generation When Question and
Answer Domains Shift". What the paper leaves open, and what was decided: docs/papers/luf.md.

pbr-jax run luf --benchmark.name xquad --benchmark.root FOLDER --benchmark.split de --benchmark.passages en \
    --out DIR
"""

from pbr_jax.config import Config
from pbr_jax.methods import retrieve, select
from pbr_jax.options import Stream


def get_config() -> Config:
    return Config(
        system="luf",
        collaboration="signals",  # the questions of all users shape one retriever
        stream=Stream(size=200),
        retrieve=retrieve.Luf(k=40, least_own=0.5),
        select=select.MultiLevel(),
    )
