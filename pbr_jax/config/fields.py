"""The fields of a config by their dotted names, such as `retrieve.k` and `retrieve.of.bm25.b`."""

import dataclasses
import difflib
import functools
from typing import Any

from pbr_jax.base.types import UserError
from pbr_jax.config.schema import SLOTS, Config
from pbr_jax.methods import METHODS
from pbr_jax.options import Method, Options, hints, members_in, names_of, options_in


def names(config: Any, prefix: str = "") -> list[str]:
    """All dotted field names of a config, those of its methods' members by the members' names."""
    fields = []
    for item in dataclasses.fields(config):
        value, name = getattr(config, item.name), prefix + item.name
        if dataclasses.is_dataclass(value):
            fields += names(value, f"{name}.")
            continue
        fields.append(name)
        for member, options in members(value).items():
            fields += names(options, f"{name}.{member}.")
    return fields


def value_of(config: Any, name: str) -> Any:
    """The value of a dotted field name."""
    return functools.reduce(lambda value, part: _inner(value, part), name.split("."), config)


def _inner(value: Any, part: str) -> Any:
    return members(value)[part] if isinstance(value, tuple) else getattr(value, part)


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
    known = names(config)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    near += [k for k in known if k.rsplit(".", 1)[-1] == name.rsplit(".", 1)[-1] and k not in near]
    hint = f"did you mean {' or '.join(near[:3])}?" if near else "pbr-jax run CONFIG.py --help-all lists all"
    return UserError(f"unknown config field {name!r}; {hint}")


def _owners(slot: str, field: str) -> list[str]:
    """The methods of a slot that have a field, or have members, whose field it is."""
    begin = field.partition(".")[0]
    return [name_of(cls) for cls in METHODS[slot] if {field, f"{begin}."} & _field_names(cls)]


def _field_names(cls: type[Options], prefix: str = "") -> set[str]:
    fields = set()
    for name, hint in hints(cls).items():
        fields |= {prefix + name, *([f"{prefix}{name}."] if members_in(hint) else [])}
        if inner := options_in(hint):
            fields |= _field_names(inner, f"{prefix}{name}.")
    return fields


def name_of(cls: type[Method]) -> str:
    """The name of a method: its `method` field's default."""
    return next(str(item.default) for item in dataclasses.fields(cls) if item.name == "method")
