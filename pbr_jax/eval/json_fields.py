"""Fields of results.json and other JSON of a run, each checked for its type."""

from collections.abc import Mapping
from typing import Any

from pbr_jax.base.types import UserError


def required(value: Mapping[str, Any], key: str, where: object) -> Any:
    if key not in value:
        raise UserError(f"{where}: field {key!r} is missing; run again to write it anew")
    return value[key]


def text(value: Mapping[str, Any], key: str, where: object) -> str:
    return " ".join(str(required(value, key, where)).split())


def count(value: Mapping[str, Any], key: str, where: object) -> int:
    whole = required(value, key, where)
    if not isinstance(whole, int) or isinstance(whole, bool) or whole < 0:
        raise UserError(f"{where}: {key} is {whole!r}, expected a count")
    return whole


def mapping(value: Mapping[str, Any], key: str, where: object, optional: bool = False) -> dict[str, Any]:
    fields = (value.get(key) or {}) if optional else required(value, key, where)
    if not isinstance(fields, dict):
        raise UserError(f"{where}: {key} is {type(fields).__name__}, expected an object")
    return fields


def items(value: Mapping[str, Any], key: str, where: object) -> list[Any]:
    entries = value.get(key) or []
    if not isinstance(entries, list):
        raise UserError(f"{where}: {key} is {type(entries).__name__}, expected a list")
    return entries


def numbers(value: Mapping[str, Any], key: str, where: object, optional: bool = True) -> dict[str, float]:
    fields = mapping(value, key, where, optional)
    return {name: number(one, f"{where}: {key}.{name}") for name, one in fields.items()}


def number(value: Any, where: str) -> float:
    if type(value) not in (int, float) or (type(value) is int and value.bit_length() > 1000):
        raise UserError(f"{where} is {value!r:.60}, expected a number")
    return float(value)


def pairs(value: Mapping[str, Any], key: str, where: object) -> dict[str, tuple[float, float]]:
    fields = mapping(value, key, where, optional=True)
    return {name: pair(one, f"{where}: {key}.{name}") for name, one in fields.items()}


def pair(value: Any, where: str) -> tuple[float, float]:
    if not isinstance(value, list) or len(value) != 2:
        raise UserError(f"{where} is {value!r}, expected [low, high]")
    return number(value[0], where), number(value[1], where)
