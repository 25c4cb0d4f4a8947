"""The base class of all options: type checks, field names for errors, and their contribution to keys."""

import dataclasses
import difflib
import functools
import inspect
import math
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Any, ClassVar, Literal, TypeVar

from pbr_jax.base.types import UserError

IDLE = {"idle": True}
"""Metadata of fields that are not part of any key. Such a field never changes a result. It changes only how
the result is computed, or gives the path of something that the key identifies by its content."""


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


def checked(name: str, value: Any, hint: Any) -> Any:
    """The value, if it has the field's type (an int is also accepted as a float). Otherwise a UserError."""
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
    names = ["none" if kind is type(None) else _type_name(kind) for kind in allowed]
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


def _type_name(kind: Any) -> str:
    return getattr(kind, "__name__", str(kind))


def key_of(options: Any) -> Any:
    """The part of options that a result depends on, as JSON.

    It contains the values of all fields, except `IDLE` fields and `added` fields at their earlier value.
    """
    if dataclasses.is_dataclass(options) and not isinstance(options, type):
        values = {
            item.name: key_of(getattr(options, item.name))
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


def default_of(item: dataclasses.Field[Any]) -> Any:
    """A field's default, or `dataclasses.MISSING` if it has none."""
    factory = item.default_factory
    return item.default if factory is dataclasses.MISSING else factory()
