"""Shared beginnings of token sequences: what many prompts start with is read once.

Prompts of one task share their system message, prompts of one user often their first documents. `tree`
finds those beginnings; a node's tokens follow its parent's.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

WINDOW = 128  # sequences whose beginnings are shared
LEAST = 16  # tokens that sharing must save to be worth a node of its own


class Node(NamedTuple):
    """Tokens that stand after those of the nodes above; `start` counts the latter."""

    ids: tuple[int, ...]
    start: int
    parent: int | None  # place among the shared nodes


class Tree(NamedTuple):
    """`shared` nodes, parents before children, and a leaf for every sequence, in the order given."""

    shared: list[Node]
    leaves: list[Node]

    @property
    def size(self) -> int:
        """Tokens in all nodes: what is computed instead of the sequences' own length."""
        return sum(len(node.ids) for node in (*self.shared, *self.leaves))


def tree(
    sequences: Sequence[Sequence[int]], shareable: Sequence[int] | None = None, least: int = LEAST
) -> Tree:
    """The tree of sequences.

    Args:
      sequences: token ids; equal ones are allowed.
      shareable: how many of each sequence's first tokens may be shared; left out: all but the last, so
        that every leaf has a token to predict from.
      least: a node is made where computing it once saves at least so many tokens.
    """
    limits = [len(s) - 1 for s in sequences] if shareable is None else shareable
    shared: list[Node] = []
    leaves: dict[int, Node] = {}
    # Groups that agree in their first `start` tokens, all of which the nodes above hold.
    order = sorted(range(len(sequences)), key=lambda index: tuple(sequences[index]))
    todo: list[tuple[list[int], int, int | None]] = [(order, 0, None)] if order else []
    while todo:
        group, start, parent = todo.pop()
        common = _common(sequences, limits, group)
        parts = _split(sequences, limits, group, common)
        if (len(parts) - 1) * (common - start) >= least:
            shared.append(Node(tuple(sequences[group[0]][start:common]), start, parent))
            start, parent = common, len(shared) - 1
        for part in parts:
            if len(part) > 1:
                todo.append((part, start, parent))
            else:
                leaves[part[0]] = Node(tuple(sequences[part[0]][start:]), start, parent)
    return Tree(shared, [leaves[index] for index in range(len(sequences))])


def windows(sequences: Sequence[Sequence[int]], most: int = WINDOW) -> list[list[int]]:
    """Places of the sequences in sorted order, `most` at a time: those that share a beginning together. A
    window is read on its own, so what is shared stays in memory no longer than its window."""
    order = sorted(range(len(sequences)), key=lambda index: tuple(sequences[index]))
    return [order[start : start + most] for start in range(0, len(order), most)]


def _common(sequences: Sequence[Sequence[int]], limits: Sequence[int], group: list[int]) -> int:
    """Tokens that a sorted group may share: what its first and last agree in."""
    first, last = sequences[group[0]], sequences[group[-1]]
    most = min(limits[index] for index in group)
    return next((place for place in range(most) if first[place] != last[place]), most)


def _split(
    sequences: Sequence[Sequence[int]], limits: Sequence[int], group: list[int], common: int
) -> list[list[int]]:
    """The group by its next token; sequences that may share no more stand alone."""
    alone = [[index] for index in group if limits[index] == common]
    rest = [index for index in group if limits[index] > common]
    return alone + [list(part) for _, part in groupby(rest, key=lambda index: sequences[index][common])]
