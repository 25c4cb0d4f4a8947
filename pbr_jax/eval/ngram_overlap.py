"""How much of an answer is copied out of its prompt: an answer that copies may have a high ROUGE."""

from collections.abc import Iterator, Mapping, Sequence

from pbr_jax.base.words import words
from pbr_jax.eval.render import Cell, Table
from pbr_jax.eval.runs import Row

RUN = 4  # words
_COLUMNS = {
    "question": "answer: in the question",
    "documents": "answer: in the documents",
    "target_question": "target: in the question",
    "target_documents": "target: in the documents",
}


def copied(answer: str, sources: Sequence[str]) -> float:
    """The share of an answer's runs of four words that stand in one of these texts, word for word.

    Words are lower-cased and alphanumeric; an answer of fewer words is one run, and of none copies nothing.
    """
    own = words(answer)
    length = min(RUN, len(own))
    if not length:
        return 0.0
    held = {run for source in sources for run in _runs(words(source), length)}
    runs = list(_runs(own, length))
    return sum(run in held for run in runs) / len(runs)


def _runs(tokens: list[str], length: int) -> Iterator[tuple[str, ...]]:
    return zip(*(tokens[start:] for start in range(length)), strict=False)


def copies(answers: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each share over questions; {} without any."""
    shares_by_name = {name: [one[name] for one in answers if name in one] for name in _COLUMNS}
    return {name: sum(shares) / len(shares) for name, shares in shares_by_name.items() if shares}


def copies_table(rows: Sequence[Row]) -> list[Table]:
    """What each row's answers copy, beside what the targets share with the same texts; seeds averaged."""
    if not any(run.copied for row in rows for run in row.runs):
        return []
    lines = []
    for row in rows:
        known = [run.copied for run in row.runs if run.copied]
        shares = [[copied[name] for copied in known if name in copied] for name in _COLUMNS]
        lines.append([Cell(row.label), *(Cell(f"{sum(s) / len(s):.1%}" if s else "–") for s in shares)])
    title = (
        f"How much is copied: share of the {RUN}-word sequences of the answer, and of the target, that stand "
        "in the question or in the documents shown"
    )
    return [Table(title, ["run", *_COLUMNS.values()], lines)]
