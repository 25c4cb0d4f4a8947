"""Config files: read, checked, overridden by dotted names, and written as plain values."""

import dataclasses
import difflib
import runpy
import traceback
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NamedTuple

from pbr_jax.config.schema import Config
from pbr_jax.types import UserError

Overrides = Mapping[str, Any]
"""Dotted field names and their values, such as `{"retrieve.k": 4}`."""


class ConfigFile(NamedTuple):
    """What a config file defines; `sweep` is None where it defines none."""

    path: Path
    config: Config
    sweep: Callable[[], Iterable[Overrides]] | None


def load(path: Path) -> ConfigFile:
    """Runs a config file and checks what it defines."""
    if not path.is_file():
        raise UserError(f"config file not found: {path}; want a Python file such as configs/dense.py")
    try:
        names = runpy.run_path(str(path))
        config = names["get_config"]() if "get_config" in names else None
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except Exception as error:  # whatever the user's Python raises is the user's to mend
        frames = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
        line = frames[-1] if frames else getattr(error, "lineno", "?")
        raise UserError(f"{path}, line {line}: {type(error).__name__}: {error}") from error
    if not isinstance(config, Config):
        raise UserError(f"{path} must define get_config() that returns pbr_jax.config.Config")
    return ConfigFile(path, config, names.get("sweep"))


def names(config: Any, prefix: str = "") -> list[str]:
    """All dotted field names of a config."""
    found = []
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        inner = dataclasses.is_dataclass(value)
        found += names(value, f"{prefix}{item.name}.") if inner else [prefix + item.name]
    return found


def unknown(name: str, config: Config) -> UserError:
    """The error for a field that does not exist, with the nearest names."""
    known = names(config)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    near += [k for k in known if k.rsplit(".", 1)[-1] == name.rsplit(".", 1)[-1] and k not in near]
    hint = f"did you mean {' or '.join(near[:3])}?" if near else "pbr-jax run CONFIG.py --help lists all"
    return UserError(f"unknown config field {name!r}; {hint}")


def override(config: Config, overrides: Overrides) -> Config:
    """The config with dotted fields replaced; names and types are checked."""
    nested = to_dict(config)
    for name, value in overrides.items():
        *parents, last = name.split(".")
        place = nested
        for parent in parents:
            place = place.get(parent) if isinstance(place, dict) else None
        if not isinstance(place, dict) or last not in place or isinstance(place[last], dict):
            raise unknown(name, config)
        place[last] = value
    return from_dict(nested)


def to_dict(config: Any) -> dict[str, Any]:
    """Nested plain dicts, as saved in a run's config.json."""
    return dataclasses.asdict(config)


def from_dict(values: Mapping[str, Any]) -> Config:
    """The inverse of `to_dict`; every name and type is checked."""
    return _build(Config, values, "")


def _build(cls: type, values: Any, prefix: str) -> Any:
    if not isinstance(values, Mapping):
        raise UserError(f"config field {prefix.rstrip('.')!r} is {values!r}, want a table of fields")
    hints = typing.get_type_hints(cls)
    for name in values:
        if name not in hints:
            raise unknown(prefix + name, Config())
    arguments = {}
    for name, value in values.items():
        hint = hints[name]
        if dataclasses.is_dataclass(hint):
            arguments[name] = _build(hint, value, f"{prefix}{name}.")  # type: ignore[arg-type]
        else:
            arguments[name] = _checked(prefix + name, value, hint)
    return cls(**arguments)


def _checked(name: str, value: Any, hint: Any) -> Any:
    """The value if it fits the field's type (an int is a float too), else a UserError."""
    origin = typing.get_origin(hint)
    if origin is Literal:
        if value in typing.get_args(hint):
            return value
        raise UserError(f"{name} is {value!r}, want one of {', '.join(map(str, typing.get_args(hint)))}")
    allowed = typing.get_args(hint) if origin in (typing.Union, UnionType) else (hint,)
    if float in allowed and type(value) is int:
        return float(value)
    if type(value) in allowed:
        return value
    wanted = " or ".join("none" if t is type(None) else t.__name__ for t in allowed)
    raise UserError(f"{name} is {value!r} ({type(value).__name__}), want {wanted}")
