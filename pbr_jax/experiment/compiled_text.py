"""What chips exchange in a compiled program, from its text, and what it multiplies, from its traced form.

XLA's own `cost_analysis` counts the body of a loop once. Here it counts as often as the loop runs.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

_KINDS = "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"
_ARRAY = re.compile(r"\b(pred|bf16|[fsu]\d+)\[([\d,]*)\]")
_OPERATION = re.compile(r" ([a-z][a-z0-9\-]*)\(")
_CALLED = re.compile(r"(?:calls|to_apply|body|condition|branch_computations)=\{?((?:%[\w.\-]+(?:, )?)+)")
_TRIPS = re.compile(r'known_trip_count"?:\s*\{"?n"?:"?(\d+)')


class Collective(NamedTuple):
    """Exchanges of one kind: their number, and bytes of all their results on a chip."""

    number: int = 0
    bytes: int = 0


def collectives(text: str, trips: int = 1) -> dict[str, Collective]:
    """By their kinds. `trips`: of loops of which the text does not say how often they run."""
    lines, entry, name = dict[str, list[str]](), "", ""
    for line in text.splitlines():
        if line.endswith("{") and " = " not in line:
            name = re.split(r"[ (]", line.removeprefix("ENTRY ").lstrip("%"), maxsplit=1)[0]
            entry = name if line.startswith("ENTRY") else entry
        elif " = " in line:
            lines.setdefault(name, []).append(line)
    found: dict[str, Collective] = {}

    def visit(computation: str, times: int) -> None:
        for line in lines.get(computation, []):
            if (match := _OPERATION.search(line)) is None:
                continue
            kind = match[1].removesuffix("-start")
            if kind in _KINDS:
                sizes = [*map(_size, _ARRAY.finditer(line, 0, match.start()))]
                size = max(sizes, default=0) if "-start" in match[1] else sum(sizes)  # a start has both ends
                count, total = found.get(kind, Collective())
                found[kind] = Collective(count + times, total + times * size)
            inside = times * (_turns(line, lines) or trips if kind == "while" else 1)
            for called in _CALLED.finditer(line):
                for one in called[1].split(","):
                    visit(one.strip().lstrip("%"), inside)

    visit(entry, 1)
    return found


def _turns(line: str, lines: Mapping[str, list[str]]) -> int:
    """How often a loop runs: as the text says, or up to a constant of its condition; 0: unknown."""
    if known := _TRIPS.search(line):
        return int(known[1])
    named = re.search(r"condition=%([\w.\-]+)", line)
    condition = lines.get(named[1], []) if named else []
    compared = [one for one in condition if "ROOT" in one and " compare(" in one and "direction=LT" in one]
    for name in re.findall(r"%([\w.\-]+)", compared[0].partition(" compare(")[2]) if compared else ():
        for one in condition:
            if f" %{name} = " in one and (limit := re.search(r" constant\((\d+)\)", one)):
                return int(limit[1])
    return 0


def _size(array: re.Match[str]) -> int:
    bits = {"pred": 8, "bf16": 16}.get(array[1]) or int(array[1][1:])
    return bits * math.prod(int(n) for n in array[2].split(",") if n) // 8


class Products(NamedTuple):
    """Operations of matrix products, and as many as a chip's bfloat16 units do for them: float32 products of
    full precision take six passes, of high precision three."""

    flops: float = 0.0
    passes: float = 0.0


_PASSES = {jax.lax.Precision.HIGHEST: 6, jax.lax.Precision.HIGH: 3}


def products(jaxpr: Any, trips: int = 1) -> Products:
    """Of a traced function, on all chips together. `trips`: of loops of unknown length."""
    flops = passes = 0.0
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        if name == "dot_general":
            left, precision = equation.invars[0].aval, params["precision"]
            contracted = math.prod(left.shape[axis] for axis in params["dimension_numbers"][0][0])
            own = 2.0 * math.prod(equation.outvars[0].aval.shape) * contracted
            precision = precision[0] if isinstance(precision, tuple) else precision
            flops += own
            passes += own * (_PASSES.get(precision, 1) if left.dtype == jnp.float32 else 1)
            continue
        inner = [products(one, trips) for one in _inner(params)]
        if name == "cond" and inner:
            inner = [max(inner)]
        times = params["mesh"].size if name == "shard_map" else trips if name == "while" else 1
        times *= params["length"] if name == "scan" else 1
        flops += times * sum(one.flops for one in inner)
        passes += times * sum(one.passes for one in inner)
    return Products(flops, passes)


def _inner(params: Mapping[str, Any]) -> Iterator[Any]:
    for value in params.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            one = getattr(one, "jaxpr", one)
            if hasattr(one, "eqns"):
                yield one
