"""The task of an imported table, as a TOML file that is meant to be edited."""

import difflib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from pbr_jax import tasks
from pbr_jax.base.types import UserError
from pbr_jax.importing.columns import Columns
from pbr_jax.options import Options
from pbr_jax.tasks import Task

_LABELS = 20  # different answers, at most, of a task with labels
_EACH = 5  # questions of each label, on average, at least
_SHORT = 40  # characters of a label
_DIFFERENT = 100  # answers that are counted
_STOP = '# stop = ["\\n\\n"]  # no answer has a blank line: take away the first # if the model goes on'


UserIs = Literal["author", "recipient"]
"""Whether the user wrote the answers, as in mail, or got them, as the customer of a helpdesk does."""

_SYSTEM: dict[str, str] = {
    "author": "You answer for one particular person, as that person would. Reply with the answer only.",
    "recipient": "You answer one particular person, who wrote before. Reply with the answer only.",
}
_INSTRUCTION: dict[str, str] = {
    "author": "Write what this person would write next.",
    "recipient": "Answer this person, as in the earlier entries.",
}


class Wanted(NamedTuple):
    """What is asked of the model, as far as the user says."""

    instruction: str = ""
    task: str = ""
    user_is: UserIs | None = None

    def check(self) -> None:
        """Raises UserError for what a task says itself, and for an unknown `user_is`."""
        if self.task and self.instruction:
            raise UserError("found both --task and --instruction; a task has an instruction: edit task.toml")
        if self.task and self.user_is:
            raise UserError("found both --task and --user-is; a task has its wording: edit task.toml")
        if self.user_is is not None and self.user_is not in (known := get_args(UserIs)):
            raise UserError(f"--user-is is {self.user_is!r}; wanted one of {', '.join(known)}")


class TaskFile(NamedTuple):
    """Its kind, its text, and the lines of the prompt that a user should read."""

    kind: str
    text: str
    prompt: tuple[str, ...] = ()


class Answers:
    """The answers of a table: how often each occurs, and what the longest and all of them are like."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.longest, self.one_paragraph = 0, True

    def add(self, text: str) -> None:
        """Counts an answer; "" is none."""
        self.longest = max(self.longest, len(text))
        self.one_paragraph &= "\n\n" not in text
        if text and (len(self.counts) < _DIFFERENT or text in self.counts):
            self.counts[text] += 1

    def kind(self) -> tuple[str, list[str]]:
        """Few short answers that recur are labels, numbers among them a scale, all else is written."""
        few = 2 <= len(self.counts) <= _LABELS and self.counts.total() >= _EACH * len(self.counts)
        if not few or any(len(text) > _SHORT or "\n" in text for text in self.counts):
            return "generation", []
        if all(text.isdecimal() for text in self.counts):
            return "rating", sorted(self.counts, key=int)
        return "classification", sorted(self.counts)


def of(answers: Answers, shown: Sequence[str], columns: Columns, said: Wanted) -> TaskFile:
    """The task that the user names, or else one of the kind of the answers."""
    if said.task:
        return _taken(said.task, shown)
    kind, labels = answers.kind() if columns.output else ("retrieval", [])
    metrics = {
        "generation": ["rouge1", "rougeL", "meteor"],
        "classification": ["accuracy", "f1_macro"],
        "rating": ["mae", "rmse", "accuracy"],
        "retrieval": ["recall@1", "recall@5", "recall@10", "ndcg@5", "ndcg@10"],
    }[kind]
    user_is = said.user_is or "author"
    wanted = said.instruction or _INSTRUCTION[user_is]
    cue = f"{columns.output or 'answer'}:"
    tokens = new_tokens(answers.longest)
    pieces = list(dict.fromkeys(["date: {date}", *(f"{name}: {{{name}}}" for name in shown)]))
    prompt = _prompt(_SYSTEM[user_is], wanted)
    lines = [
        '# What is asked, and how prompts word it. Edit it: the documentation\'s page "Bring your own data"',
        "# explains the keys.",
        f"kind = {_toml(kind)}",
        f"metrics = {_toml(metrics)}",
        *([f"labels = {_toml(labels)}"] if labels else []),
        *(['answer = "text"'] if kind in ("generation", "retrieval") else []),
        f"max_new_tokens = {tokens}  # a third of the longest answer's characters, 16 to 256",
        *([_STOP] if answers.one_paragraph and kind == "generation" else []),
        f"fields = {_toml(['text', *shown])}",
        f"document_target = {_toml(columns.output)}" if columns.output in shown else "",
        "",
        "[prompt.own]",
        prompt[0],
        'history = "Earlier entries of {who}:"',
        f"document = {_toml(pieces)}",
        f"main = {_toml(shown[0])}",
        prompt[1],
        f"cue = {_toml(cue)}",
    ]
    return TaskFile(kind, "\n".join(lines) + "\n", prompt)


def new_tokens(longest: int) -> int:
    """How many tokens an answer may have, where the longest has so many characters."""
    return min(256, max(16, longest // 3))


def _prompt(system: str, instruction: str) -> tuple[str, ...]:
    return f"system = {_toml(system)}", f"instruction = {_toml(instruction)}"


def _taken(task: str, shown: Sequence[str]) -> TaskFile:
    """A task that there is: a benchmark's by its name, written out in full, or a file as it stands.

    Raises UserError for neither, for a file that is no task, and where prompts show a field of documents
    that none of the columns in `shown` is called.
    """
    names = sorted(path.stem for path in Path(tasks.__file__).parent.glob("*.toml"))
    if task not in names and not Path(task).is_file():
        near = difflib.get_close_matches(task, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"the tasks are {', '.join(names)}"
        raise UserError(f"--task: found no file and no task {task!r}; {hint}")
    own = tasks.released("own")
    found = tasks.released(task) if task in names else tasks.load(Path(task), base=own)
    known = {"text", "date", *shown}
    for form, wording in found.wordings.items():
        if gone := [field for _, field, _ in wording.pieces if field not in known]:
            raise UserError(
                f"--task {task}: prompt.{form} shows {{{gone[0]}}} of a document, which has "
                f"{', '.join(shown)}; name the columns as the task does, or edit its prompt"
            )
    whole = task in names
    text = _written(found) if whole else Path(task).read_text(encoding="utf-8")
    return TaskFile(found.kind, text, _prompt(found.prompt.own.system, found.prompt.own.instruction))


def _written(task: Task) -> str:
    """A task as TOML, with all that it says."""
    lines = [
        '# What is asked, and how prompts word it: see the page "Bring your own data" of the documentation.'
    ]
    lines += _pairs(task, without=("name", "spellings", "prompt"))
    if task.spellings:
        lines += ["", "[spellings]", *(f"{_toml(key)} = {_toml(label)}" for key, label in task.spellings)]
    for form, wording in task.wordings.items():
        lines += ["", f"[prompt.{form}]", *_pairs(wording)]
    return "\n".join(lines) + "\n"


def _pairs(options: Options, without: Sequence[str] = ()) -> Iterator[str]:
    for item in fields(options):
        if item.name not in without:
            yield f"{item.name} = {_toml(getattr(options, item.name))}"


def _toml(value: str | int | Sequence[str]) -> str:
    """A string, an integer or a list of strings, which TOML writes as JSON does; DEL is an escape there."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
