"""The result of an import: how a table was read, as fields and as text."""

from dataclasses import dataclass, field
from pathlib import Path

from pbr_jax.base import terminal
from pbr_jax.importing.columns import Columns
from pbr_jax.importing.task_file import new_tokens

_LONGEST = 100  # characters of a question that is shown


@dataclass(repr=False)
class Imported:
    """The result of an import: how the table was read.

    `document_columns`: columns of a separate table of documents. `unused`: columns of either table that are
    not used. `longest`: the length of the longest answer in characters, if the task was derived from answers.
    `prompt`: the lines of task.toml that define who answers, and the request. `user_is`: the argument of the
    import.
    """

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
    longest: int = 0
    unused: tuple[str, ...] = ()
    prompt: tuple[str, ...] = ()
    user_is: str | None = None
    examples: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def text(self) -> str:
        """A summary in lines: columns, counts, dates, notes, the first questions and next steps."""
        lines = [f"columns   {_named(self.columns)}"]
        if self.unused:
            lines.append(f"not used  {', '.join(self.unused)}")
        lines.append(f"found     {self.questions} questions of {self.users} users, task of kind {self.kind}")
        if self.document_columns:
            lines.append(f"documents {self.documents}; {_named(self.document_columns)}")
        if self.first:
            lines.append(f"dates     {self.first} to {self.last}")
        none = f"{self.without_history} questions have none, since nothing came before them"
        lines.append(f"history   {none if self.without_history else 'every question has one'}")
        if self.longest:
            limit = new_tokens(self.longest)
            lines.append(f"answers   up to {self.longest} characters, so max_new_tokens is {limit}")
        lines += [f"note      {note}" for note in self.notes]
        lines += [f"example   {line.strip()[:_LONGEST]}" for line in self.examples]
        lines += [f"prompt    {line}" for line in self.prompt]
        if self.user_is is None:
            lines += [
                "          The user is the person whose history is shown. Do these two lines say who",
                "          answers, and whom? Where the user got the answers, as a customer does, edit",
                "          them, or import again with --user-is recipient.",
            ]
        lines += [
            f"written   {self.folder}: edit task.toml, then ask whether the history helps",
            f"          pbr-jax check {self.folder} --out checks/{self.folder.name}",
        ]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return terminal.visible(self.text())


def _named(columns: Columns) -> str:
    return ", ".join(f"{what}: {name}" for what, name in columns.named.items())
