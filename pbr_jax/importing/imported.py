"""What an import understood of a table, in numbers and in lines of text."""

from dataclasses import dataclass, field
from pathlib import Path

from pbr_jax import terminal
from pbr_jax.importing.columns import Columns

_LONGEST = 100  # characters of a question that is shown


@dataclass(repr=False)
class Imported:
    """What was understood of a table. `document_columns`: of documents that have a table of their own."""

    folder: Path
    columns: Columns
    document_columns: Columns | None
    kind: str
    questions: int = 0
    users: int = 0
    documents: int = 0
    without_history: int = 0
    without_answer: int = 0
    first: str = ""
    last: str = ""
    examples: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def text(self) -> str:
        """All of it, a line each: columns, counts, dates, notes, the first questions, and what to do next."""
        lines = [f"columns   {_named(self.columns)}"]
        lines.append(f"found     {self.questions} questions of {self.users} users, task of kind {self.kind}")
        if self.document_columns:
            lines.append(f"documents {self.documents}; {_named(self.document_columns)}")
        if self.first:
            lines.append(f"dates     {self.first} to {self.last}")
        lines.append(f"history   {self.without_history} questions have none, since nothing came before them")
        lines += [f"note      {note}" for note in self.notes]
        lines += [f"example   {line.strip()[:_LONGEST]}" for line in self.examples]
        lines.append(
            f"written   {self.folder}: edit task.toml, then ask whether the history helps\n"
            f"          pbr-jax check {self.folder} --out checks/{self.folder.name}"
        )
        return "\n".join(lines)

    def __repr__(self) -> str:
        return terminal.visible(self.text())


def _named(columns: Columns) -> str:
    return ", ".join(f"{what}: {name}" for what, name in columns.named.items())
