"""The fields of a config by their dotted names, such as `retrieve.k` and `retrieve.of.bm25.b`."""

import dataclasses
import difflib
from collections.abc import Iterator
from typing import Any, cast

from pbr_jax.base.types import UserError
from pbr_jax.config.schema import SLOTS, Config
from pbr_jax.methods import METHODS
from pbr_jax.options import Method, Options, hints, members_in, names_of, options_in


def entries(options: Any, prefix: str = "", *, opened: bool = False) -> Iterator[tuple[str, Any, Any]]:
    """All fields of options and of options inside them: dotted name, type and value.

    Fields of a method's members stand under the members' names. `opened`: options that may be none, and are,
    have their fields too.
    """
    for name, hint in hints(type(options)).items():
        value = getattr(options, name)
        yield prefix + name, hint, value
        if opened and value is None and (kind := options_in(hint)):
            value = kind()
        inner = {"": value} if isinstance(value, Options) else members(value)
        for member, one in inner.items():
            yield from entries(one, f"{prefix}{name}.{member}{'.' * bool(member)}", opened=opened)


def values(config: Any, *, opened: bool = False) -> dict[str, Any]:
    """The values of a config by their dotted names, such as `retrieve.k`; `opened` as in `entries`."""
    found = entries(config, opened=opened)
    return {name: value for name, _, value in found if not isinstance(value, Options)}


def members(value: Any) -> dict[str, Method]:
    """The methods that a method is made of, such as the retrievers of `retrieve.of`, by their names; none of
    another value."""
    if not isinstance(value, tuple) or not all(isinstance(one, Method) for one in value):
        return {}
    return dict(zip(names_of(value), value, strict=True))


_RENAMED = {"reader": "generator", "lesson": "distillation"}
"""Parts of field names that older versions had, and what they are called now."""

_RENAMED_FIELDS = {"tokenizer": "analyser"}
"""The same of fields of slots' methods, where another field has the old name."""


def unknown(name: str, config: Config) -> UserError:
    """The error for a field that does not exist, with the nearest names, or the method that has it."""
    slot, _, field = name.partition(".")
    owners = _owners(slot, field) if slot in SLOTS else []
    if owners and (have := getattr(config, slot).method) not in owners:
        return UserError(
            f"{name} belongs to {' and '.join(owners)}, and {slot}.method is {have}; "
            f"set {slot}.method, or leave it out"
        )
    renamed = _RENAMED | (_RENAMED_FIELDS if slot in SLOTS else {})
    for old, new in renamed.items():
        if old in name.split("."):
            return UserError(f"unknown config field {name!r}: {old!r} is now {new!r}; write {new!r}")
    known = [*values(config, opened=True)]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    near += [k for k in known if k.rsplit(".", 1)[-1] == name.rsplit(".", 1)[-1] and k not in near]
    hint = f"did you mean {' or '.join(near[:3])}?" if near else "pbr-jax run CONFIG.py --help-all lists all"
    return UserError(f"unknown config field {name!r}; {hint}")


def _owners(slot: str, field: str) -> list[str]:
    """The methods of a slot that have a field, or have members, whose field it is."""
    begin = field.partition(".")[0]
    return [
        name_of(cls)
        for cls in METHODS[slot]
        if any(
            name == field or (name == begin and members_in(hint))
            for name, hint, _ in entries(cast(Any, cls)(), opened=True)
        )
    ]


def name_of(cls: type[Method]) -> str:
    """The name of a method: its `method` field's default."""
    return next(str(item.default) for item in dataclasses.fields(cls) if item.name == "method")
