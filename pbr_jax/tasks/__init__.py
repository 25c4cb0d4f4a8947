"""Tasks as data: what is asked, how prompts word it, how answers are read and scored.

A task is a TOML file. Those of the benchmarks lie beside this module; a user's file (`--benchmark.task`, or
`task.toml` in a data folder) says what differs. docs/reference/data_format.md explains the keys.

>>> released("lamp_4").document_target
'title'
"""

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pbr_jax.base import file_hashes
from pbr_jax.base.types import UserError
from pbr_jax.options import Options, added, checked, default_of, hints, options_in

Kind = Literal["classification", "rating", "choice", "generation", "retrieval", "dialogue"]

ANSWER_METRICS = ("exact_match", "squad_f1", "subspan_em", "token_f1")
"""Metrics of short answers, each the best over all accepted ones. Question sets are scored by these alone,
retrieval benchmarks by these too where answers were generated."""

RANKING_METRICS = ("recall", "ndcg", "recall_any", "recall_all", "ndcg_longmemeval")
"""Metrics of rankings, each with `@k`."""

STATE_METRICS = ("jga", "aga", "jga_exact", "aga_exact", "jga_indel", "aga_indel")
"""Metrics of dialogue states."""

_TEXT = (*ANSWER_METRICS, "rouge1", "rougeL", "meteor")
_LABEL = ("accuracy", "f1_macro", *_TEXT)
METRICS = {"classification": _LABEL, "rating": ("mae", "rmse", "correlation", *_LABEL),
           "choice": ("accuracy",), "generation": _TEXT, "retrieval": RANKING_METRICS,
           "dialogue": STATE_METRICS}  # fmt: skip
"""The metrics of `pbr_jax.eval` that each kind of task may name."""

_FIELD = re.compile(r"\{([^{}]+)\}")
_LARGEST = 1 << 20  # bytes of a file


@dataclass(frozen=True, kw_only=True)
class Wording(Options):
    """How one form of prompts words a task."""

    # lines: a piece a line, documents between marks; sentences: pieces run on, documents joined by ", and "
    entries: Literal["lines", "sentences"] = "lines"
    system: str = ""  # the system message: the role, and what an answer consists of
    history: str  # introduces the documents; {who}: this user, or this user and similar users
    document: tuple[str, ...]  # pieces of a document, each with one {field}, left out where that is empty
    main: str = ""  # field that is the document's searched text where it is missing; "": the first piece's
    instruction: str  # between the documents and the input
    cue: str = ""  # the open label that the prompt ends with

    @cached_property
    def pieces(self) -> list[tuple[str, str, str]]:
        """Of each piece of a document what stands before its field, the field, and what stands after it."""
        begin = "\n" if self.entries == "lines" else ""
        parts = (_FIELD.split(begin + template) for template in self.document)
        return [(before, field, after) for before, field, after in parts]


@dataclass(frozen=True, kw_only=True)
class Prompts(Options):
    """The wording in each `prompt.form`."""

    own: Wording
    lamp: Wording | None = None


class AnswerFormat(NamedTuple):
    """What decides how outputs are read. `cue` ends a prompt, `entry` is the label that begins a document."""

    kind: Kind
    labels: tuple[str, ...]
    spellings: tuple[tuple[str, str], ...]
    span: Literal["line", "text"]
    cue: str
    entry: str


@dataclass(frozen=True, kw_only=True)
class Task(Options):
    """A benchmark's task. Its fields, and those of `Wording`, are the keys of a task's file."""

    name: str  # in errors; the file's stem where it has none
    title: str = ""  # in reports; "": the benchmark's name
    kind: Kind
    metrics: tuple[str, ...]  # the first is the headline
    labels: tuple[str, ...] = ()  # classification: all answers there are; rating: the numbers of the scale
    spellings: tuple[tuple[str, str], ...] = ()  # in a file a table: what counts for a label = the label
    answer: Literal["line", "text"] = "line"  # what of an output is the answer, where there are no labels
    max_new_tokens: int = 64  # of an answer
    stop: tuple[str, ...] = field(default=(), metadata=added(()))  # texts before which an answer ends
    fields: tuple[str, ...]  # of a document, beside `date`
    document_target: str = ""  # field that plays the answer's role: when a history holds the answer itself
    prompt: Prompts

    def check(self) -> None:
        self.at_least("max_new_tokens", 1)
        self.filled("stop")
        self._check_labels()
        self._check_metrics()
        known = (*self.fields, "date")
        if self.document_target:
            _check_known("document_target", self.document_target, known)
        for form, wording in self.wordings.items():
            _check_wording(f"prompt.{form}", wording, known)

    def _check_labels(self) -> None:
        labeled, different = self.kind in ("classification", "rating"), len(set(self.labels))
        if different < max(len(self.labels), 2 * labeled) or (self.labels and not labeled):
            wanted = "two or more different ones" if labeled else "none"
            raise UserError(f"labels: found {list(self.labels)}; kind {self.kind} has {wanted}")
        for label in self.labels:
            if self.kind == "rating" and not re.fullmatch(r"\d+(\.\d+)?", label):
                raise UserError(f"labels: found {label!r}; kind rating has numbers from 0 on")
        for spelling, label in self.spellings:
            _check_known(f"spellings.{spelling}", label, self.labels, "label")

    def _check_metrics(self) -> None:
        if not self.metrics:
            raise UserError("metrics: found none, wanted at least one")
        for name in self.metrics:
            family, depth = name.partition("@")[::2] if self.kind == "retrieval" else (name, "1")
            _check_known("metrics", family, METRICS[self.kind], f"metric of kind {self.kind}")
            if not re.fullmatch("[1-9][0-9]{0,5}", depth):
                raise UserError(f"metrics: found {name!r}, wanted a depth, such as {family}@5")

    @property
    def short_answers(self) -> bool:
        """Whether questions have short answers, which a passage may hold word for word."""
        return self.kind == "retrieval" or any(name in ANSWER_METRICS for name in self.metrics)

    @property
    def wordings(self) -> dict[str, Wording]:
        """The wording in each form of prompts that there is."""
        forms = {name: getattr(self.prompt, name) for name in hints(Prompts)}
        return {name: wording for name, wording in forms.items() if wording is not None}

    def wording(self, form: str) -> Wording:
        """The wording in one form of prompts. Raises UserError where the task has none."""
        if form not in self.wordings:
            has = " and ".join(self.wordings)
            raise UserError(f"prompt.form is {form}, and the task {self.name} has the form {has}; take that")
        return self.wordings[form]

    @property
    def answers(self) -> AnswerFormat:
        """How answers are read."""
        own = self.prompt.own
        entry = own.pieces[0][0].strip().lower()
        return AnswerFormat(self.kind, self.labels, self.spellings, self.answer, own.cue, entry)


def released(name: str) -> Task:
    """The task of a benchmark family, from its file in this package."""
    return load(Path(__file__).with_name(f"{name}.toml"))


def load(path: Path, base: Task | None = None) -> Task:
    """The task in a TOML file; what the file does not say is as in `base`.

    Raises UserError, which names file and key, for what is no task.
    """
    try:
        file_hashes.watch(path)
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise ValueError(f"it is larger than {_LARGEST} bytes")
        values = tomllib.loads(content.decode())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{path}: cannot be read ({error}); want TOML, see docs/reference/data_format.md"
        ) from error
    if isinstance(table := values.get("spellings"), dict):
        values["spellings"] = tuple(table.items())
    try:
        return _made(Task, values if base else {"name": path.stem, **values}, base)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _made(cls: type[Options], values: Mapping[str, Any], base: Any, prefix: str = "") -> Any:
    """Options of a class from a table; what it does not say is as in `base`."""
    types, found = hints(cls), {}
    for key, value in values.items():
        _check_known(prefix.rstrip("."), key, list(types), "key")
        if inner := options_in(types[key]):
            if not isinstance(value, dict):
                raise UserError(f"{prefix}{key} is {value!r:.60}, wanted a table [{prefix}{key}]")
            value = _made(inner, value, getattr(base, key, None), f"{prefix}{key}.")
        found[key] = checked(prefix + key, value, types[key])
    needed = [] if base else [item.name for item in fields(cls) if default_of(item) is MISSING]
    if missing := [prefix + key for key in needed if key not in found]:
        raise UserError(f"found no {', '.join(missing)}; docs/reference/data_format.md shows a whole task")
    return replace(base, **found) if base else cls(**found)


def _check_wording(where: str, wording: Wording, known: Sequence[str]) -> None:
    for template in wording.document or ("",):
        if len(names := _FIELD.findall(template)) != 1:
            raise UserError(f"{where}.document: found {template!r}, wanted one {{field}} in each piece")
        _check_known(f"{where}.document", names[0], known)
    for name in _FIELD.findall(wording.history):
        _check_known(f"{where}.history", name, ("who",))
    if wording.main:
        _check_known(f"{where}.main", wording.main, known)


def _check_known(where: str, name: str, known: Sequence[str], what: str = "field") -> None:
    """Raises UserError with the nearest names for one that is not known."""
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"wanted one of {', '.join(known)}"
        raise UserError(f"{where and where + ': '}found the unknown {what} {name!r}; {hint}")
