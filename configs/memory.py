"""Memory of conversations: retrieval by words and by meaning, over sessions and over passages, untrained.

The sum of three standardised scores: BM25 of whole sessions, BM25 of passages, and twice the cosine of
passages. The dense part searches for a question as a speaker would put it (`names i`), since a name in the
question pulls its vector to all texts with this name. BM25 needs the name, but no words such as "what did".

pbr-jax run memory --benchmark.name locomo --benchmark.root FOLDER --benchmark.split locomo10 --out DIR
"""

from pbr_jax.config import Config
from pbr_jax.methods import retrieve, select
from pbr_jax.options import Corpus


def get_config() -> Config:
    passages = retrieve.BM25(analyser="stem", question_words="out")
    sessions = retrieve.BM25(analyser="stem", question_words="out", over="documents")
    return Config(
        system="memory",
        corpus=Corpus(chunk="words"),
        retrieve=retrieve.Fused(
            k=10, of=(sessions, passages, retrieve.Dense(names="i")), weights=(1.0, 1.0, 2.0)
        ),
        select=select.TopK(k=6),
    )
