"""Texts as the states of their tokens, by a frozen encoder: what learned selections read."""

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pbr_jax.base.prefetch import fetched
from pbr_jax.base.types import Params
from pbr_jax.models import bert
from pbr_jax.text.encode import Role, TextEncoder
from pbr_jax.text.padding import padded_batches


class TokenStates:
    """A text encoder's last layer, token by token, not pooled. `encoder`: whose weights, tokenizer and
    prefixes. `length`: tokens of a text, special ones included; the rest is cut."""

    def __init__(self, encoder: TextEncoder, length: int) -> None:
        self._encoder, self.length = encoder, min(length, encoder.settings.max_length)

    @property
    def width(self) -> int:
        """Of one state."""
        return self._encoder.dim

    def encode(self, texts: Sequence[str], *, role: Role) -> list[np.ndarray]:
        """States float16 [t d] of each text, its special tokens' among them."""
        prefix = self._encoder.prefix(role)
        tokens = self._encoder.tokenizer.encode_batch([prefix + text for text in texts])
        tokens = [self._encoder.tokenizer.cut(ids, self.length) for ids in tokens]
        states_of: list[Any] = [None] * len(tokens)
        platform = jax.default_backend()
        batches = padded_batches([len(ids) for ids in tokens], platform, widest=self.length)
        started = ((rows, self._states([tokens[i] for i in rows], shape)) for rows, shape in batches)
        for rows, found in fetched(started):
            for place, states in zip(rows.tolist(), found):
                states_of[place] = states[: len(tokens[place])].copy()
        return states_of

    def _states(self, tokens: Sequence[Sequence[int]], shape: tuple[int, int]) -> jax.Array:
        ids, mask = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
        for row, of_text in enumerate(tokens):
            ids[row, : len(of_text)], mask[row, : len(of_text)] = of_text, 1
        return _forward(self._encoder.bert_config)(self._params, ids, mask)

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
    values, mask = np.zeros(shape, np.float16), np.zeros(shape[:2], bool)
    for row, of_text in enumerate(states):
        values[row, : len(of_text)], mask[row, : len(of_text)] = of_text, True
    return values, mask
