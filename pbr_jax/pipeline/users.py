"""Users as vectors: functions of the documents that they had when the question was asked.

So nobody needs to be known to a training, and no vector knows a document that is younger than the question.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

import jax
import numpy as np

from pbr_jax.data import views
from pbr_jax.index.store import Store
from pbr_jax.models.user_transformer import UserTransformerConfig, user_transformer
from pbr_jax.text.encode import TextEncoder
from pbr_jax.types import Example, Params

_TOGETHER = 256  # users encoded at once

Encode = Callable[[Sequence[np.ndarray], np.ndarray], np.ndarray]
"""(histories as rows, oldest first; document embeddings [n d]) -> users [u d]; no documents: zeros."""


def mean(histories: Sequence[np.ndarray], embeddings: np.ndarray) -> np.ndarray:
    """The mean of each history's document embeddings, float32 [u d] (CFRAG Table 3, row 2)."""
    found = np.zeros((len(histories), embeddings.shape[1]), np.float32)
    for place, rows in enumerate(histories):
        if len(rows):
            found[place] = np.asarray(embeddings[rows], np.float32).mean(axis=0)
    return found


def transformer(params: Params, model: UserTransformerConfig) -> Encode:
    """The user encoder of `models.user_transformer` with these parameters."""
    apply = jax.jit(user_transformer(model).apply)

    def encode(histories: Sequence[np.ndarray], embeddings: np.ndarray) -> np.ndarray:
        width = min(model.max_documents, max(map(len, histories), default=1) or 1)
        found = np.zeros((len(histories), model.width), np.float32)
        for start in range(0, len(histories), _TOGETHER):
            some = [*histories[start : start + _TOGETHER]]
            count = len(some)
            some += [some[0][:0]] * (min(_TOGETHER, len(histories)) - count)  # one shape, one compilation
            seen = views.padded(some, [None] * len(some), width)
            users = apply(params, np.asarray(embeddings[seen.rows], np.float32), seen.mask)
            found[start : start + count] = np.asarray(users)[:count]
        return found

    return encode


def oldest_first(store: Store, rows: np.ndarray) -> np.ndarray:
    """Rows by date; undated ones stand before all others, in the order of the profile."""
    return rows[np.argsort(np.nan_to_num(store.times[rows], nan=-np.inf), kind="stable")]


class Users:
    """The users of a store as vectors.

    Args:
      store: who wrote what, and when.
      embeddings: of all documents, float32 [n d], row by row as in `store`.
      encoder: what made them; the query of a user without history is encoded as if it were a document.
      encode: from histories to vectors.
      snapshots: how many moments others' histories are read at, spread evenly over all questions by date.
    """

    def __init__(
        self, store: Store, embeddings: np.ndarray, encoder: TextEncoder, encode: Encode, snapshots: int
    ) -> None:
        self.store, self.embeddings, self.encoder, self.encode = store, embeddings, encoder, encode
        times = store.example_times
        places = np.linspace(0, len(times) - 1, min(snapshots, len(times))).astype(int)
        self._moments = np.unique(times[places]) if len(times) else times
        self.at = lru_cache(maxsize=2)(self._at)

    def asking(self, examples: Sequence[Example]) -> np.ndarray:
        """The users who ask, float32 [e d], each from the history that the example sees."""
        histories = [oldest_first(self.store, self.store.visible(e, e.user_id)) for e in examples]
        found = self.encode(histories, self.embeddings) if examples else self._nobody(0)
        cold = [place for place, history in enumerate(histories) if not len(history)]
        if cold:
            queries = self.encoder.encode([examples[place].query for place in cold], role="document")
            found[cold] = self.encode([np.array([i]) for i in range(len(cold))], queries)
        return found

    def moment(self, example: Example) -> float | None:
        """The last snapshot that is not after the question; None where nothing dated may be seen."""
        if example.time is None:
            return None
        before = self._moments[self._moments <= example.time]
        return float(before[-1]) if len(before) else example.time

    def _at(self, moment: float | None) -> np.ndarray:
        """All users by their codes, float32 [u d], from what they had written before a moment; else zeros."""
        histories = [oldest_first(self.store, self.store.before(user, moment)) for user in self.store.users]
        return self.encode(histories, self.embeddings)

    def _nobody(self, count: int) -> np.ndarray:
        return np.zeros((count, self.embeddings.shape[1]), np.float32)
