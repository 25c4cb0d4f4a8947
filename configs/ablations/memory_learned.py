"""Learned methods on the memory of dialogues, trained in folds of conversations.

Each prompt has one document. All rows that select candidates select from the same eight of the fused
retriever; the row "fused" is their original order. ROPG and CFRAG's retriever are trained on the dense
retriever's candidates; the row "dense" is the order of these. The controls are as follows. "shuffled" is
trained on the same values, assigned to other candidates of the same question. "random choice" learns nothing.
"best by rewards" and "evidence" read the answers. The feedback on a candidate is the likelihood of the answer
after this candidate alone, which is also what is reported, so most of the evaluation comes from the cache.
In the rows "names i", the speaker's name in a question becomes "I" before the dense retriever embeds it.

Documents are turns, or passages of sessions (with `--corpus.chunk words` instead of `--benchmark.form
turns`). On a sample:

pbr-jax sweep ablations/memory_learned --benchmark.name locomo --benchmark.root FOLDER \
    --benchmark.split locomo10 --benchmark.form turns --limit 240 --out DIR
"""

from collections.abc import Iterator

from pbr_jax.config import Config, Eval, Feedback, Overrides, Stream
from pbr_jax.methods import generate, retrieve, select

_STEPS: Overrides = {"epochs": 3, "optimizer.learning_rate": 3e-5, "select_by": "rank_correlation"}
_TEACHER: Overrides = {"teacher": "bounded_z_scores", "teacher_temperature": 0.1}


def _under(name: str, fields: Overrides) -> dict[str, object]:
    return {f"{name}.{field}": value for field, value in fields.items()}


_RETRIEVER: Overrides = {
    "retrieve.method": "tuned",
    "retrieve.distillation.student_temperature": 0.1,
    **_under("retrieve.distillation", _TEACHER),
    **_under("retrieve.training", _STEPS),
}
_ROPG: Overrides = {**_RETRIEVER, "retrieve.alpha": 0.0, "retrieve.distillation.loss": "forward_kl"}
_RERANKER: Overrides = {
    "select.method": "tuned",
    "select.max_length": 128,
    **_under("select.distillation", _TEACHER),
    **_under("select.training", _STEPS),
}
_PURPLE: Overrides = {
    "select.method": "purple",
    "select.num_layers": 1,
    "select.query_tokens": 64,
    "select.record_tokens": 64,
    "select.learns_from": "singles",
    "select.reward": "per_token",
    "select.advantage": "leave_one_out",
    "select.training.epochs": 6,
    "select.training.select_by": "rank_correlation",
    "select.training.optimizer.learning_rate": 3e-4,
}
_MATCH: Overrides = {**_PURPLE, "select.fusion": "match", "select.features": "scores", "select.prior": 1.0}
_SHUFFLED: Overrides = {"feedback.shuffle": True}
_GENERATOR: Overrides = {"generator.method": "lora", "generator.k": 1}
ROWS: dict[str, Overrides] = {
    "no memory": {"retrieve.method": "none"},
    "dense": {"retrieve.method": "dense"},
    "dense, names i": {"retrieve.method": "dense", "retrieve.names": "i"},
    "fused": {},
    "random choice": {"select.method": "random"},
    "ropg": _ROPG,
    "ropg, names i": {**_ROPG, "retrieve.names": "i"},
    "ropg, shuffled": {**_ROPG, **_SHUFFLED},
    "cfrag retriever": _RETRIEVER,
    "cfrag reranker": _RERANKER,
    "cfrag reranker, shuffled": {**_RERANKER, **_SHUFFLED},
    "purple": _PURPLE,
    "purple match": _MATCH,
    "purple match, shuffled": {**_MATCH, **_SHUFFLED},
    "tuned generator, no memory": {**_GENERATOR, "retrieve.method": "none"},
    "tuned generator": _GENERATOR,
    "best by rewards": {"select.method": "oracle"},
    "evidence": {"select.method": "evidence"},
}


SEVERAL_SEEDS = ("ropg", "cfrag reranker", "purple match")


def get_config() -> Config:
    return Config(
        system="fused",
        collaboration="signals",  # rows learn from other conversations' questions
        stream=Stream(protocol="cross_units", folds=2),
        feedback=Feedback(metric="likelihood"),
        retrieve=retrieve.Fused(k=8),
        select=select.TopK(k=1),
        generate=generate.Nothing(),
        eval=Eval(likelihood="on"),
    )


def sweep() -> Iterator[Overrides]:
    for name, row in ROWS.items():
        for seed in range(3 if name in SEVERAL_SEEDS else 1):
            yield {"system": name, "seed": seed, **row}
