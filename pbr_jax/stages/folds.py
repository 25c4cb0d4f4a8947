"""A store as one fold of its questions sees it: what is learned from is the other folds' questions."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from pbr_jax.base.types import Example
from pbr_jax.cache.artefacts import digest
from pbr_jax.corpus.store import Store, Summary
from pbr_jax.graph import Node, Value
from pbr_jax.stages.run import Run, once


class Fold(Store):
    """The same documents in the same rows; questions outside of the fold are those of a training split.

    A question sees what it sees in the store itself. `Summary.examples` and `Summary.training` are of the
    fold; the summary's other counts are of all folds.

    Args:
      ids: of the fold's questions; none: all questions are there to be learned from.
      store: with the evaluated split alone.
    """

    def __init__(self, ids: Sequence[str], *, store: Store) -> None:
        vars(self).update(vars(store))  # the same connections, and the same columns as far as they are read
        self._ids = frozenset(ids)

    @property
    def ids(self) -> frozenset[str]:
        """Of the fold's questions."""
        return self._ids

    @property
    def content(self) -> str:
        return digest([super().content, sorted(self._ids)])

    @property
    def summary(self) -> Summary:
        counts = {training: int(self.asked(training=training).sum()) for training in (False, True)}
        return super().summary._replace(examples=counts[False], training=counts[True])

    @property
    def near_targets(self) -> np.ndarray:
        return super().near_targets[self._own]

    def examples(self, *, training: bool = False) -> Iterator[Example]:
        for example in super().examples():
            if (example.id not in self._ids) == training:
                yield replace(example, training=training)

    def asked(self, *, training: bool) -> np.ndarray:
        return self._own != training

    def visible(self, example: Example, user_id: str) -> np.ndarray:
        return super().visible(replace(example, training=False), user_id)

    @property
    def _own(self) -> np.ndarray:
        """Which questions of the store are the fold's, bool [q]."""
        ids = self._rows("SELECT id FROM examples WHERE +training=0 ORDER BY position")
        return np.array([id in self._ids for (id,) in ids], bool)


def fold(store: Node, ids: Sequence[str]) -> Node:
    """The store of a fold with these questions; none: of no fold, where all are there to be learned from."""
    return Value("fold", (tuple(ids),), {"store": store}, Fold)


@once
def every_fold(run: Run) -> Node:
    """The store in which the questions of all folds are there to be learned from."""
    return fold(run.documents, ())
