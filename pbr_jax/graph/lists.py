"""A graph as a list of its stages or as a tree, and with one node for each key."""

import copy
import itertools
from collections.abc import Mapping

from pbr_jax.graph.nodes import Node, Stage, walk


def unified(last: Node) -> Node:
    """The same graph with one node for each key, so that nothing is loaded or computed twice."""
    first: dict[str, Node] = {}
    for node in walk(last):
        node.needs = {name: first[need.key] for name, need in node.needs.items()}
        first.setdefault(node.key, node)
    return first[last.key]


def stages(last: Node) -> dict[str, Stage]:
    """The stages under a node and it itself by their labels, deepest first; equal ones once, further ones of
    the same label numbered."""
    found: dict[str, Stage] = {}
    keys: set[str] = set()
    for node in walk(last):
        if isinstance(node, Stage) and node.key not in keys:
            found[numbered(node.label, found)] = node
            keys.add(node.key)
    return found


def numbered(label: str, taken: Mapping[str, object]) -> str:
    """The label, with a number where it is taken."""
    names = (label if number == 1 else f"{label} {number}" for number in itertools.count(1))
    return next(name for name in names if name not in taken)


def tree(last: Node, shown: set[str] | None = None) -> str:
    """The stages, each once and under the first that needs it: what is found, and what would be made.

    `shown`: the keys of nodes that earlier trees showed, which is added to; they are left out.
    """
    lines: list[str] = []
    shown = set() if shown is None else shown
    waiting = [(last, 0)]
    while waiting:
        node, depth = waiting.pop()
        if node.key in shown:
            continue
        shown.add(node.key)
        if isinstance(node, Stage):
            state = f"found, made in {node.seconds:.1f} s" if node.is_made else "would be made"
            lines.append(f"{'  ' * depth}{node.label}  {state}  {node.key}")
            depth += 1
        waiting += [(need, depth) for need in reversed([*node.needs.values()])]
    return "\n".join(lines)


def substituted(node: Node, old: Node, new: Node, made: dict[int, Node] | None = None) -> Node:
    """What a node computes with `new` in place of `old`; stages stay what was made, whatever of.

    `made`: what earlier calls gave for other nodes of the same graph.
    """
    made = {} if made is None else made
    if node.key == old.key:
        return new
    if isinstance(node, Stage):
        return node
    if id(node) not in made:
        needs = {name: substituted(need, old, new, made) for name, need in node.needs.items()}
        made[id(node)] = node
        if any(needs[name] is not need for name, need in node.needs.items()):
            made[id(node)] = copy.copy(node)
            made[id(node)].needs = needs
            for name in ("identity", "key", "known_by", "value"):
                vars(made[id(node)]).pop(name, None)
    return made[id(node)]
