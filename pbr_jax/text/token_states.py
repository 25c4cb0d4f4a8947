"""Texts as the states of their tokens, by a frozen encoder: what learned selections read."""

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pbr_jax.models import bert
from pbr_jax.text.encode import Role, TextEncoder
from pbr_jax.text.packing import multiple, power_of_two
from pbr_jax.types import Params

_WIDTH = 16  # widths are multiples of it, so that few programs are compiled
_BATCH_TOKENS = {"cpu": 2048}  # of one forward pass; elsewhere:
_MANY_TOKENS = 65_536


class TokenStates:
    """A text encoder's last layer, token by token, not pooled.

    Args:
      encoder: whose weights, tokenizer and prefixes.
      length: tokens of a text, special ones included; the rest is cut.
    """

    def __init__(self, encoder: TextEncoder, length: int) -> None:
        self._encoder, self.length = encoder, min(length, encoder.settings.max_length)
        self._tokens = _BATCH_TOKENS.get(jax.default_backend(), _MANY_TOKENS)

    @property
    def width(self) -> int:
        """Of one state."""
        return self._encoder.dim

    def encode(self, texts: Sequence[str], *, role: Role) -> list[np.ndarray]:
        """States float16 [t d] of each text, its special tokens' among them."""
        config = self._encoder.config
        prefix = config.query_prefix if role == "query" else config.document_prefix
        tokens = self._encoder.tokenizer.encode_batch([prefix + text for text in texts])
        tokens = [[*ids[: self.length - 1], ids[-1]] if len(ids) > self.length else ids for ids in tokens]
        found: list[Any] = [None] * len(tokens)
        order = np.argsort([len(ids) for ids in tokens], kind="stable")
        for rows, width in self._batches(order, tokens):
            for place, states in zip(rows.tolist(), self._states([tokens[i] for i in rows], width)):
                found[place] = states[: len(tokens[place])].copy()
        return found

    def _batches(
        self, order: np.ndarray, tokens: Sequence[Sequence[int]]
    ) -> Iterator[tuple[np.ndarray, int]]:
        """Rows that are computed together, longest first, and their width."""
        end = len(order)
        while end > 0:
            width = multiple(len(tokens[order[end - 1]]), _WIDTH)
            start = max(0, end - max(1, self._tokens // width))
            yield order[start:end], width
            end = start

    def _states(self, tokens: Sequence[Sequence[int]], width: int) -> np.ndarray:
        ids, mask = (np.zeros((power_of_two(len(tokens)), width), np.int32) for _ in range(2))
        for row, of_text in enumerate(tokens):
            ids[row, : len(of_text)], mask[row, : len(of_text)] = of_text, 1
        return np.asarray(_forward(self._encoder.bert_config)(self._params, ids, mask))

    @cached_property
    def _params(self) -> Params:
        return jax.device_put(bert.load(self._encoder.folder)[1])


@lru_cache(maxsize=4)
def _forward(config: bert.BertConfig) -> Any:
    model = bert.bert(config)

    def forward(params: Params, ids: jax.Array, mask: jax.Array) -> jax.Array:
        return model.apply(params, ids, segments=mask).astype(jnp.float16)

    return jax.jit(forward)


def padded(states: Sequence[np.ndarray], shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """States float16 [n t d] of that shape, zeros where there are none, and where there are, bool [n t]."""
    found, mask = np.zeros(shape, np.float16), np.zeros(shape[:2], bool)
    for row, of_text in enumerate(states):
        found[row, : len(of_text)], mask[row, : len(of_text)] = of_text, True
    return found, mask
