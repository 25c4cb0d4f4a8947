"""The tasks: what is asked, how answers are scored, which splits exist.

One table for readers, prompts, metrics and reports. Labels and metrics follow LaMP's official
scorer; a task's first metric is its headline.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["classification", "rating", "generation", "retrieval"]

LAMP_SPLITS = ("train", "dev", "test")
PERSONABENCH_SPLITS = ("noise_0.0", "noise_0.3", "noise_0.5", "noise_0.7")
MOVIE_TAGS = (
    "sci-fi", "based on a book", "comedy", "action", "twist ending", "dystopia", "dark comedy",
    "classic", "psychology", "fantasy", "romance", "thought-provoking", "social commentary",
    "violence", "true story",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Task:
    """A benchmark task.

    `splits` is empty where a split is named by a file (LongMemEval). `document_target` names the
    field of a history record that plays the role of the answer (LaMP-4: the headline); it tells
    when a history holds the answer itself.
    """

    name: str
    kind: Kind
    metrics: tuple[str, ...]
    labels: tuple[str, ...] = ()
    splits: tuple[str, ...] = LAMP_SPLITS
    max_new_tokens: int = 64
    document_target: str | None = None


ANSWER_METRICS = ("exact_match", "squad_f1", "subspan_em", "token_f1")
"""Metrics of short answers, each the best over all accepted ones; `pbr_jax.eval.metrics` defines them.

Question sets are scored by these alone, retrieval benchmarks by these too where answers were generated.
"""

_ROUGE = ("rouge1", "rougeL", "meteor")
_RANKING = tuple(
    f"{name}@{k}" for name in ("recall", "ndcg", "recall_any", "recall_all") for k in (1, 3, 5, 10)
)

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(name="lamp_1", kind="classification", metrics=("accuracy", "f1_macro"),
             labels=("[1]", "[2]"), max_new_tokens=8),
        Task(name="lamp_2", kind="classification", metrics=("accuracy", "f1_macro"),
             labels=MOVIE_TAGS, max_new_tokens=12),
        Task(name="lamp_3", kind="rating", metrics=("mae", "rmse"),
             labels=("1", "2", "3", "4", "5"), max_new_tokens=4),
        Task(name="lamp_4", kind="generation", metrics=_ROUGE, document_target="title"),
        Task(name="lamp_5", kind="generation", metrics=_ROUGE, document_target="title"),
        Task(name="lamp_7", kind="generation", metrics=_ROUGE, document_target="text"),
        Task(name="longlamp_abstract", kind="generation", metrics=_ROUGE, max_new_tokens=512,
             document_target="abstract"),
        Task(name="longlamp_review", kind="generation", metrics=_ROUGE, max_new_tokens=512,
             document_target="reviewText"),
        Task(name="longlamp_topic", kind="generation", metrics=_ROUGE, max_new_tokens=512,
             document_target="content"),
        Task(name="personabench", kind="retrieval", metrics=_RANKING, splits=PERSONABENCH_SPLITS),
        Task(name="longmemeval", kind="retrieval",
             metrics=(*_RANKING, *(f"ndcg_longmemeval@{k}" for k in (1, 3, 5, 10))), splits=()),
        Task(name="nq_open", kind="generation", metrics=ANSWER_METRICS, max_new_tokens=32),
        Task(name="trivia_qa", kind="generation", metrics=ANSWER_METRICS, max_new_tokens=32),
        Task(name="squad", kind="generation", metrics=ANSWER_METRICS, max_new_tokens=32),
        Task(name="web_questions", kind="generation", metrics=ANSWER_METRICS, max_new_tokens=32,
             splits=("train", "dev", "devtest", "test")),
        Task(name="synthetic", kind="generation", metrics=_ROUGE, max_new_tokens=64,
             document_target="title"),
    )
}  # fmt: skip
