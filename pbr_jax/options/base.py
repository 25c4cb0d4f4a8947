"""The base classes of all options and of the slots: type checks, names for errors, what counts in keys.

A method is a subclass of the class of a slot."""

import abc
import contextlib
import dataclasses
import difflib
import functools
import inspect
import math
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np

from pbr_jax.base.file_hashes import file_hash
from pbr_jax.base.types import UserError

IDLE = {"idle": True}
"""Metadata of fields that are not part of any key. Such a field never changes a result. It changes only how
the result is computed, or gives the path of something that the key identifies by its content."""


FILE = {"file": True}
"""Metadata of a field that names a file, which keys know by its content."""


def added(before: Any) -> dict[str, Any]:
    """Metadata of a field that was added to its class later. `before` is its value with the earlier
    behaviour. At this value the field is not part of the key, so that older stages stay valid."""
    return {"added": before}


GONE = {
    "select.own auto": "--select.method backfilled of configs/ablations/history_length.py",
    "select.half_life learned": "select.method learned_recency of examples/methods/learned_recency.py",
}
"""What replaces values of options that older versions had."""


TrainingSplit = Literal["unused", "welcome", "needed", "apart"]
"""How the training split is used. unused: not at all; welcome: together with the evaluated examples, if there
is a training split; needed: the same, but it must exist; apart: without the evaluated examples, so that what
is learned does not depend on them."""


_O = TypeVar("_O", bound="Options")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base class of all options. At creation, types are checked first, then `check` checks the values."""

    section: ClassVar[str] = ""
    """Name of the section in a config. Errors use it in the names of fields."""

    def __new__(cls: type[_O], *_: Any, **given: Any) -> _O:
        """Raises UserError for an unknown field, with the most similar known name."""
        known = [item.name for item in dataclasses.fields(cls)]
        for name in given:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}"
                raise UserError(f"{cls.__name__} has no field {name!r}; {hint}")
        return object.__new__(cls)

    def __post_init__(self) -> None:
        for name, hint in hints(type(self)).items():
            value = checked(self.named(name), getattr(self, name), hint)
            object.__setattr__(self, name, value)
        self.check()

    def check(self) -> None:
        """Raises UserError for invalid values."""

    def named(self, name: str) -> str:
        """The dotted name of a field."""
        return f"{self.section}.{name}" if self.section else name

    def at_least(self, name: str, low: int | float, advice: str = "") -> None:
        """Raises UserError if a field is below `low`. None is allowed."""
        value = getattr(self, name)
        if value is not None and not value >= low:
            hint = f"; {advice}" if advice else ""
            raise UserError(f"{self.named(name)} is {value}, want at least {low}{hint}")

    def filled(self, name: str) -> None:
        """Raises UserError if one of a field's texts is empty."""
        if "" in getattr(self, name):
            raise UserError(f"{self.named(name)} has an empty text; leave it out")

    def between(self, name: str, low: int | float, high: int | float) -> None:
        """Raises UserError if a field is outside the range from `low` to `high`."""
        if not low <= getattr(self, name) <= high:
            found = getattr(self, name)
            raise UserError(f"{self.named(name)} is {found}, want a number from {low} to {high}")


@functools.cache
def hints(cls: type) -> dict[str, Any]:
    """The types of the fields of an options class, by name."""
    types = typing.get_type_hints(cls)
    return {item.name: types[item.name] for item in dataclasses.fields(cls)}


def options_in(hint: Any) -> "type[Options] | None":
    """The options class in a field's type, which may also allow None. None for other types."""
    kinds = typing.get_args(hint) if isinstance(hint, UnionType) else (hint,)
    return next((kind for kind in kinds if _is_class_of_options(kind)), None)


def members_in(hint: Any) -> "type[Options] | None":
    """The options class of which a field contains a tuple. None for other types."""
    kinds = typing.get_args(hint) if typing.get_origin(hint) is tuple else ()
    return next((kind for kind in kinds if _is_class_of_options(kind)), None)


def as_python(value: Any) -> Any:
    """The value with numbers and arrays of NumPy as Python's numbers and lists, also in a list or tuple."""
    if type(value) in (list, tuple):
        return type(value)(map(as_python, value))
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def checked(name: str, value: Any, hint: Any) -> Any:
    """The value, if it has the field's type. Otherwise a UserError. An int is also accepted as a float, and
    a number of NumPy as Python's."""
    value = as_python(value)
    origin = typing.get_origin(hint)
    if origin is Literal:
        if value in typing.get_args(hint):
            return value
        raise UserError(f"{name} is {value!r}, want one of {', '.join(map(str, typing.get_args(hint)))}")
    if origin is tuple:
        if type(value) not in (tuple, list):  # JSON knows lists alone
            raise UserError(f"{name} is {value!r}, want a list")
        return tuple(checked(name, one, inner) for one, inner in _parts(name, value, typing.get_args(hint)))
    allowed = typing.get_args(hint) if origin in (typing.Union, UnionType) else (hint,)
    named = [one for kind in allowed if typing.get_origin(kind) is Literal for one in typing.get_args(kind)]
    if any(value == one for one in named):
        return value
    allowed = tuple(kind for kind in allowed if typing.get_origin(kind) is not Literal)
    if float in allowed and type(value) in (int, float):
        if not math.isfinite(value):
            raise UserError(f"{name} is {value}, want a finite number")
        return float(value)
    if hint is Any:
        allowed = _PLAIN
    plain = {kind for kind in allowed if kind in _PLAIN or _is_class_of_options(kind)}
    if len(plain) < len(allowed):
        raise UserError(
            f"{name} is declared as {hint}; options are texts, numbers, switches, or tuples of these"
        )
    if type(value) in plain or _is_options(value, plain):
        return value
    names = ["none" if kind is type(None) else getattr(kind, "__name__", str(kind)) for kind in allowed]
    wanted = " or ".join([*names, *named])
    instead = GONE.get(f"{name} {value}")
    hint = f"; instead of {value} take {instead}" if instead else ""
    raise UserError(f"{name} is {value!r} ({type(value).__name__}), want {wanted}{hint}")


def _parts(name: str, value: Sequence[Any], hints: tuple[Any, ...]) -> Iterable[tuple[Any, Any]]:
    """The elements of a tuple with their types, for `tuple[int, ...]` and `tuple[int, str]`."""
    if len(hints) == 2 and hints[1] is Ellipsis:
        return ((one, hints[0]) for one in value)
    if len(value) != len(hints):
        raise UserError(f"{name} is {value!r}, want {len(hints)} values")
    return zip(value, hints)


_PLAIN = (type(None), bool, int, float, str)


def _is_class_of_options(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Options)


def _is_options(value: Any, allowed: set[type]) -> bool:
    """Only slots accept subclasses. Elsewhere a subclass could differ under the same name."""
    return isinstance(value, Options) and any(
        type(value) is kind or (inspect.isabstract(kind) and isinstance(value, kind)) for kind in allowed
    )


def key_of(options: Any) -> Any:
    """The part of options that a result depends on, as JSON.

    It contains the values of all fields, except `IDLE` fields and `added` fields at their earlier value.
    """
    if dataclasses.is_dataclass(options) and not isinstance(options, type):
        values = {
            item.name: (_file_hash if "file" in item.metadata else key_of)(getattr(options, item.name))
            for item in dataclasses.fields(options)
            if not item.metadata.get("idle")
            and not ("added" in item.metadata and getattr(options, item.name) == item.metadata["added"])
        }
        return {"class": type(options).__qualname__, **values}
    if isinstance(options, Mapping):
        return {str(name): key_of(value) for name, value in options.items()}
    if isinstance(options, list | tuple):
        return [key_of(value) for value in options]
    return options


def _file_hash(file: str) -> str:
    if not Path(file).is_file():
        raise UserError(f"an option names {file}, and there is no such file; give another, or leave it out")
    return file_hash(Path(file))


def default_of(item: dataclasses.Field[Any]) -> Any:
    """A field's default, or `dataclasses.MISSING` if it has none."""
    factory = item.default_factory
    return item.default if factory is dataclasses.MISSING else factory()


@dataclass(frozen=True, kw_only=True)
class Method(Options, abc.ABC):
    """A method that fills a slot: its options, the nodes that it needs, and its computation.

    `needs` returns nodes of the graph and computes nothing. Only `needs` and `check_run` see the run. `slot`
    receives the values of these nodes by name, and returns the slot's callable. The key of a slot is the hash
    of its options, its code and its needs, so a result cannot depend on data that is not in the key.
    """

    training_split: ClassVar[TrainingSplit] = "unused"
    """How the method uses the training split."""

    method: str

    @property
    def ceiling(self) -> bool:
        """Whether the method reads the target. Its results are then an upper bound for other systems."""
        return False

    def learns(self) -> TrainingSplit:
        """Like `training_split`, for methods where it depends on options."""
        return self.training_split

    def needs(self, run: Any) -> Mapping[str, Any]:
        """The nodes (`pbr_jax.graph`) whose values `slot` receives, by the names of its arguments."""
        return {}

    def check_run(self, run: Any) -> None:
        """Raises UserError if config, models or data of the run do not allow this method.

        It is called before any computation, but after the data was read: `run.data.value` is the store of
        documents and questions.
        """

    @abc.abstractmethod
    def slot(self, *args: Any, **kwargs: Any) -> Any:
        """`slot(tally, *, name=value …)` returns the callable of the slot (see `pbr_jax.pipeline`)."""


@dataclass(frozen=True, kw_only=True)
class Learner(Method):
    """A method of any slot that learns from a stream of questions: `class Own(Learner, Retrieve)`.

    Its state is a folder of files. The argument `state` of these functions and of `slot` is the folder of the
    current state. `values` are the values of the needs by name. Blocks are `pbr_jax.stream.stage.Block`
    objects.
    """

    @property
    def supervised(self) -> bool:
        """Whether it reads targets, relevant documents and likelihoods of answered questions."""
        return False

    @property
    def supervision(self) -> str:
        """The data that a supervised method learns from, in words, for the notes of a run."""
        return "what users wrote to questions"

    def start(self, folder: Path, **values: Any) -> None:
        """Writes the initial state. By default it is an empty folder."""

    def corpus(self, store: Any, state: Path) -> Any:
        """The store that `slot` searches: that of the run, or a copy (`Store.copy_to`) in the state, which
        `learn` has changed. Must return the same object for the same state."""
        return store

    def observe(self, block: Any, *, state: Path, **values: Any) -> list[Any]:
        """Observations for `learn`: a JSON value per answered question of a block or of a part of a block."""
        return [None] * len(block.examples)

    @abc.abstractmethod
    def learn(self, blocks: Any, *, state: Path, out: Path, **values: Any) -> None:
        """Writes the next state into the folder `out`, which may contain files of an interrupted attempt.

        `blocks`: all blocks so far, newest last. Each is read from disk when it is indexed. With folds of
        users: all folds except the one to be answered; `state` is then the initial state.
        """

    def report(self, blocks: Any, *, state: Path, **values: Any) -> Mapping[str, float]:
        """Numbers for results.json by name, such as the share of correct labels.

        `blocks`: all blocks, newest last, or all folds, with targets and relevant documents. `state`: the
        state that answered the last of them.
        """
        return {}


def names_of(methods: Sequence[Method]) -> list[str]:
    """Unique names of the methods of a list. A second bm25, for example, is called bm25_2."""
    found: list[str] = []
    for place, one in enumerate(methods):
        count = sum(before.method == one.method for before in methods[:place])
        found.append(f"{one.method}_{count + 1}" if count else one.method)
    return found


_M = TypeVar("_M", bound=Method)


def swapped(old: Method, method: type[_M], given: Iterable[str] = ()) -> _M:
    """Another method, with the old method's values for all fields that both have, if they are valid. Fields
    that are `given` afterwards have the new method's own values until then."""
    kept = {}
    for name, hint in hints(method).items():
        if name == "method" or name in given or not hasattr(old, name):
            continue
        with contextlib.suppress(UserError):
            kept[name] = checked(name, getattr(old, name), hint)
    return method(**kept)


@dataclass(frozen=True, kw_only=True)
class Expand(Method):
    """Slot 1: expands the query text into one or more texts or vectors to search for."""

    section: ClassVar[str] = "expand"

    own_vector: ClassVar[bool] = False
    """Whether its queries may have vectors, which the retriever uses instead of encoding their texts."""


@dataclass(frozen=True, kw_only=True)
class Neighbours(Method):
    """Slot 2: chooses the users whose histories are searched."""

    section: ClassVar[str] = "neighbours"

    m: int = 1  # number of users whose documents are searched, the asking user included

    @property
    def others(self) -> int:
        """The number of users other than the asking user."""
        return self.m - 1

    @property
    def searched(self) -> int:
        """The maximum number of users whose histories are searched."""
        return self.m

    def check(self) -> None:
        self.at_least("m", 1)

    def users(self, run: Any) -> Any:
        """The node of user vectors, for methods that personalize; None: that of the trained user encoder."""
        return None


@dataclass(frozen=True, kw_only=True)
class Retrieve(Method):
    """Slot 3: retrieves candidates from these histories."""

    section: ClassVar[str] = "retrieve"

    pools: ClassVar[bool] = False
    """Whether the method itself pools passages to documents."""

    own_texts: ClassVar[bool] = False
    """Whether candidates are texts that are no documents of the store (`types.NO_ROW`)."""

    k: int = 4  # number of documents retrieved from each user

    def check(self) -> None:
        self.at_least("k", 1, "configs/zero_shot.py runs without documents")

    def encoder(self, run: Any) -> Any:
        """The node of the encoder whose vectors are searched; None: the method searches no vectors."""
        return None


@dataclass(frozen=True, kw_only=True)
class Select(Method):
    """Slot 4: selects and orders the documents in the prompt."""

    section: ClassVar[str] = "select"

    by_text: ClassVar[bool] = False
    """Whether it needs nothing of a candidate but its text and score, so that it can order texts of their
    own."""

    k: int | None = None  # number of documents in the prompt. None: all that were retrieved

    def check(self) -> None:
        self.at_least("k", 1)


@dataclass(frozen=True, kw_only=True)
class Generate(Method):
    """Slot 6: generates the answer."""

    section: ClassVar[str] = "generate"

    own_likelihood: ClassVar[bool] = False
    """Whether the slot computes its own likelihood of an answer (`pipeline.Scoring`)."""

    max_new_tokens: int | None = None  # maximum length of an answer, in tokens. None: as the task specifies
    temperature: float = 0.0  # sampling temperature. 0: greedy decoding
    top_p: float = 1.0  # probability mass of nucleus sampling, from 0 to 1
    num_beams: int = 1  # number of beams. More than 1: beam search, which does not sample
    # texts before which an answer ends, in addition to those of the task
    stop: tuple[str, ...] = field(default=(), metadata=added(()))
    # seed of sampled answers. Training and all other random choices depend on `seed`. None: `seed` for both
    seed: int | None = None

    def check(self) -> None:
        self.at_least("max_new_tokens", 1)
        self.at_least("temperature", 0)
        self.between("top_p", 0, 1)
        self.at_least("num_beams", 1)
        self.filled("stop")
        if self.seed is not None:
            self.between("seed", 0, 2**32 - 1)
        if self.num_beams > 1 and self.temperature > 0:
            raise UserError(
                f"generate.num_beams is {self.num_beams} and generate.temperature {self.temperature}; "
                "beam search does not sample: set one of them back"
            )

    def check_run(self, run: Any) -> None:
        run.config.llm.check_beams(self.num_beams)

    def sampling_seed(self, seed: int) -> int:
        """The seed of sampled answers in a run with this seed; 0 if answers are not sampled."""
        return 0 if not self.temperature else seed if self.seed is None else self.seed

    def stop_strings(self, task: Any) -> tuple[str, ...]:
        """The stop strings of an answer to this task. The answer ends before the first of them."""
        return tuple(dict.fromkeys((*task.stop, *self.stop)))

    def resolved(self, task: Any) -> "Generate | None":
        """The method that answers this task; None: the task is not answered."""
        return self
