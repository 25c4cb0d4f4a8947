"""What all options have in common: types that are checked, names for errors, and their part of a key."""

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

from pbr_jax.types import UserError

IDLE = {"idle": True}
"""Metadata of fields that are in no key: they change how a result comes about, never the result, or say where
something lies that is known by its content."""


def added(before: Any) -> dict[str, Any]:
    """Metadata of a field that is newer than its class, with the value that does what was done before: at it
    the field is in no key, so that no stage of an older version is made anew."""
    return {"added": before}


TrainingSplit = Literal["unused", "welcome", "needed", "apart"]
"""What is taken of the training split: nothing; its examples beside the evaluated ones, where there are any,
or never without; its examples alone, so that what is learned is the same whatever is evaluated."""


_O = TypeVar("_O", bound="Options")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base of all options: types are checked when they are made, then `check` looks at the values."""

    section: ClassVar[str] = ""
    """Where they stand in a config; errors name their fields by it."""

    def __new__(cls: type[_O], *_: Any, **given: Any) -> _O:
        """Raises UserError for a name that is no field, with the nearest one."""
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
        """Raises UserError for values that make no sense."""

    def named(self, name: str) -> str:
        """The dotted name of a field."""
        return f"{self.section}.{name}" if self.section else name

    def at_least(self, name: str, low: int | float, advice: str = "") -> None:
        """Raises UserError where a field that is not None lies below `low`."""
        value = getattr(self, name)
        if value is not None and not value >= low:
            hint = f"; {advice}" if advice else ""
            raise UserError(f"{self.named(name)} is {value}, want at least {low}{hint}")

    def filled(self, name: str) -> None:
        """Raises UserError where one of a field's texts is empty."""
        if "" in getattr(self, name):
            raise UserError(f"{self.named(name)} has an empty text; leave it out")

    def between(self, name: str, low: int | float, high: int | float) -> None:
        """Raises UserError where a field lies outside `low` … `high`."""
        if not low <= getattr(self, name) <= high:
            found = getattr(self, name)
            raise UserError(f"{self.named(name)} is {found}, want a number from {low} to {high}")


@functools.cache
def hints(cls: type) -> dict[str, Any]:
    """The types of an options class's fields, by name."""
    types = typing.get_type_hints(cls)
    return {item.name: types[item.name] for item in dataclasses.fields(cls)}


def options_in(hint: Any) -> "type[Options] | None":
    """The class of options that a field has, be it one that may be none; None where the field has others."""
    kinds = typing.get_args(hint) if isinstance(hint, UnionType) else (hint,)
    return next((kind for kind in kinds if _is_class_of_options(kind)), None)


def members_in(hint: Any) -> "type[Options] | None":
    """The class of options of which a field has any number; None where the field has others."""
    kinds = typing.get_args(hint) if typing.get_origin(hint) is tuple else ()
    return next((kind for kind in kinds if _is_class_of_options(kind)), None)


def checked(name: str, value: Any, hint: Any) -> Any:
    """The value if it fits the field's type (an int is a float too), else a UserError."""
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
    raise UserError(f"{name} is {value!r} ({type(value).__name__}), want {wanted}")


def _parts(name: str, value: Sequence[Any], hints: tuple[Any, ...]) -> Iterable[tuple[Any, Any]]:
    """The members of a tuple with their types: `tuple[int, ...]` or `tuple[int, str]`."""
    if len(hints) == 2 and hints[1] is Ellipsis:
        return ((one, hints[0]) for one in value)
    if len(value) != len(hints):
        raise UserError(f"{name} is {value!r}, want {len(hints)} values")
    return zip(value, hints)


_PLAIN = (type(None), bool, int, float, str)


def _is_class_of_options(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Options)


def _is_options(value: Any, allowed: set[type]) -> bool:
    """A class made from one of ours would be another thing of the same name; slots alone take classes."""
    return isinstance(value, Options) and any(
        type(value) is kind or (inspect.isabstract(kind) and isinstance(value, kind)) for kind in allowed
    )


def _type_name(kind: Any) -> str:
    return getattr(kind, "__name__", str(kind))


def key_of(options: Any) -> Any:
    """What of some options a result depends on, as JSON.

    Fields count by their values, but for those that are marked `IDLE` and, at the value before, `added`.
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
    """A field's default; `dataclasses.MISSING` where it has none."""
    factory = item.default_factory
    return item.default if factory is dataclasses.MISSING else factory()
