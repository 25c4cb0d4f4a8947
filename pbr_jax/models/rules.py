"""How the tensors of a file become a model's parameters.

A port of an architecture is one table, `tensor name -> Rule(path, transform)`, which `assign` applies
strictly both ways.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pbr_jax.base.types import Params, UserError

_NAMED = 50  # tensors of one problem that a message lists


def transpose(tensor: np.ndarray) -> np.ndarray:
    """A torch `Linear` weight [out in] as a kernel [in out]."""
    return tensor.T


def identity(tensor: np.ndarray) -> np.ndarray:
    """The tensor as it is stored."""
    return tensor


class Rule(NamedTuple):
    """Where a tensor goes (`layers/attention/query/kernel`) and how it is turned on the way.

    Named groups of the rule's pattern may stand in `path` as `{name}`. A group called `layer` is the place on
    axis 0 of the target, where layers are stacked; `transform` sees one layer.
    """

    path: str
    transform: Callable[[np.ndarray], np.ndarray] = identity


def assign(
    tensors: Mapping[str, np.ndarray],
    rules: Mapping[str, Rule],
    target: Params,
    *,
    ignore: Sequence[str] = (),
    source: str = "weights",
    put: Callable[[str, np.ndarray], Any] = lambda path, array: array,
) -> Params:
    """Parameters of the shapes and dtypes of `target`, filled from named tensors.

    Strict both ways: every tensor has exactly one rule and every place of the target is filled
    exactly once; a UserError lists all problems. Beside what `put` keeps, memory holds one parameter and one
    tensor.

    Args:
      tensors: by name, such as `Tensors`.
      rules: pattern (matched against the whole name) -> `Rule`.
      target: nested dict of `ShapeDtypeStruct`, as `jax.eval_shape(model.init, key)` gives.
      ignore: patterns of tensor names that are not read (poolers, heads, buffers).
      source: what the message calls the weights, such as their path.
      put: what becomes of each filled array, given its path; such as `jax.device_put`.
    """
    plan = _Plan(flatten(target))
    patterns = {re.compile(pattern): rule for pattern, rule in rules.items()}
    ignored = [re.compile(pattern) for pattern in ignore]
    for name in tensors:
        matches = [(match, rule) for pattern, rule in patterns.items() if (match := pattern.fullmatch(name))]
        if len(matches) == 1:
            plan.add(name, *matches[0])
        elif matches:
            plan.problems["ambiguous"].append(name)
        elif not any(pattern.fullmatch(name) for pattern in ignored):
            plan.problems["unused"].append(name)
    filled = ((path, plan.fill(path, tensors)) for path in plan.target)
    params = {path: put(path, array) for path, array in filled if array is not None}
    plan.check(source)
    return unflatten(params)


class _Plan:
    """Which tensors fill which parameter (`None`: all of it, else one layer), and what is wrong with that."""

    def __init__(self, target: dict[str, Any]):
        self.target = target
        self.sources: dict[str, dict[int | None, tuple[str, Rule]]] = {path: {} for path in target}
        kinds = ("wrong shape", "missing", "unused", "ambiguous")
        self.problems: dict[str, list[str]] = {kind: [] for kind in kinds}

    def add(self, name: str, match: re.Match[str], rule: Rule) -> None:
        groups = match.groupdict()
        path = rule.path.format(**groups)
        digits = groups.get("layer")
        layer = int(digits[:9]) if digits is not None else None  # more of them are no layer either
        leaf = self.target.get(path)
        if leaf is None or (layer is not None and layer >= leaf.shape[0]):
            self.problems["unused"].append(name)
        elif layer in self.sources[path]:
            self.problems["ambiguous"].append(name)
        else:
            self.sources[path][layer] = (name, rule)

    def fill(self, path: str, tensors: Mapping[str, np.ndarray]) -> np.ndarray | None:
        """The parameter; None where tensors are missing or of other shapes, before memory is taken for it."""
        leaf, sources = self.target[path], self.sources[path]
        if len(sources) < len(self._places(path)):
            return None
        array = None
        for layer, (name, rule) in sources.items():
            wanted, value = (leaf.shape if layer is None else leaf.shape[1:]), _turned(rule, tensors[name])
            if value.shape != wanted:
                self.problems["wrong shape"].append(f"{name} {value.shape} for {path} {wanted}")
                continue
            if array is None:
                array = np.empty(leaf.shape, leaf.dtype)
            array[... if layer is None else layer] = value
            del value  # before the next tensor is read
        return array

    def _places(self, path: str) -> Sequence[int | None]:
        """What must be filled: every layer where layers are stacked, else the whole."""
        stacked = any(layer is not None for layer in self.sources[path])
        return range(self.target[path].shape[0]) if stacked else (None,)

    def check(self, source: str) -> None:
        for path, filled in self.sources.items():
            self.problems["missing"] += [
                path if layer is None else f"{path}[{layer}]"
                for layer in self._places(path)
                if layer not in filled
            ]
        problems = [f"{kind}: {_some(names)}" for kind, names in self.problems.items() if names]
        if problems:
            raise UserError(f"{source} do not fit the model of their config: {'; '.join(problems)}")


def _turned(rule: Rule, tensor: np.ndarray) -> np.ndarray:
    """What a rule makes of a tensor; the tensor itself where it has too few axes for that."""
    try:
        return rule.transform(tensor)
    except (IndexError, ValueError):
        return tensor


def _some(names: list[str]) -> str:
    more = f", and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(sorted(names)[:_NAMED]) + more


def flatten(tree: Params, prefix: str = "") -> dict[str, Any]:
    """The leaves by their paths (`layers/query/kernel`)."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= flatten(value, f"{prefix}{name}/") if isinstance(value, dict) else {prefix + name: value}
    return flat


def unflatten(flat: Mapping[str, Any]) -> Params:
    """The inverse of `flatten`."""
    tree: Params = {}
    for path, value in flat.items():
        *parents, name = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = value
    return tree
