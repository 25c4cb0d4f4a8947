"""Scores of candidates that are read together with the query: what cross-encoders stand on."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pbr_jax.base.prefetch import fetched
from pbr_jax.base.types import Example, Params, UserError
from pbr_jax.llm import usage
from pbr_jax.models import layers
from pbr_jax.models.cross_encoder import CrossEncoder, CrossEncoderConfig
from pbr_jax.stages.users import Users
from pbr_jax.text.lengths import count_cut
from pbr_jax.text.padding import multiple, pair_arrays, power_of_two
from pbr_jax.text.tokenizing import Tokenizer, load_tokenizer

_BATCH_TOKENS = {"cpu": 4096}  # of one forward pass; elsewhere:
_MANY_TOKENS = 65_536
_WIDTH = 32  # widths are multiples of it, so that few programs are compiled


class Reranker:
    """A cross-encoder with its parameters: personal where it was trained to be, else its pretrained head.

    Args:
      folder: where the tokenizer is.
      max_length: tokens of a pair.
      users: the asking users' vectors, for a model with `user_width`.
      dtype: the number format of the encoder's weights and activations; what is on top of it is float32.

    Raises:
      UserError: the model was neither tuned nor has it a head that was trained to judge.
    """

    def __init__(
        self,
        model: CrossEncoder,
        params: Params,
        config: CrossEncoderConfig,
        folder: Path,
        max_length: int,
        users: Users | None,
        dtype: str = "float32",
    ) -> None:
        self.tuned = "score" in params
        if not self.tuned and not config.head:
            raise UserError(
                f"select.model {folder.name} has no head that judges documents; give the folder of a "
                "reranker, or tune it with select.method tuned"
            )
        self.params = params | {"body": layers.in_format(params["body"], dtype)}
        self.config, self.users = config, users
        self.tokenizer: Tokenizer = load_tokenizer(folder, max_length=max_length)
        self._apply = jax.jit(model.apply if self.tuned else model.relevance)
        self._tokens = _BATCH_TOKENS.get(jax.default_backend(), _MANY_TOKENS)

    def scores(
        self, examples: Sequence[Example], pairs: Sequence[Sequence[tuple[str, str]]]
    ) -> list[np.ndarray]:
        """The score of each (query, document) pair of each example, float32."""
        counts = [len(of_example) for of_example in pairs]
        flat = [pair for of_example in pairs for pair in of_example]
        owners = np.repeat(np.arange(len(examples)), counts)
        users = self._users(examples)
        if cut := count_cut(self.tokenizer, flat):
            usage.count({"cut_pairs": cut})
        found = np.zeros(len(flat), np.float32)
        for rows, scores in fetched(self._started(self.tokenizer.encode_pairs(flat), users[owners])):
            found[rows] = scores[: len(rows)]
        return np.split(found, np.cumsum(counts)[:-1])

    def _started(
        self, tokens: list[tuple[list[int], list[int]]], users: np.ndarray
    ) -> Iterator[tuple[np.ndarray, jax.Array]]:
        """The pairs of each batch, and their scores."""
        order = np.argsort([len(ids) for ids, _ in tokens], kind="stable")
        start = len(order)
        while start > 0:  # longest first
            width = multiple(len(tokens[order[start - 1]][0]), _WIDTH)
            rows = order[max(0, start - max(1, self._tokens // width)) : start]
            yield rows, self._scores([tokens[i] for i in rows], width, users[rows])
            start -= len(rows)

    def _users(self, examples: Sequence[Example]) -> np.ndarray:
        if self.users is None or self.config.user_width is None:
            return np.zeros((len(examples), 0), np.float32)
        return self.users.asking(examples)

    def _scores(self, tokens: list[tuple[list[int], list[int]]], width: int, users: np.ndarray) -> jax.Array:
        count = len(tokens)
        missing = min(power_of_two(count), max(1, self._tokens // width)) - count
        tokens = tokens + tokens[:1] * max(0, missing)  # few numbers of rows, so few compiled programs
        pairs = pair_arrays(tokens, width, self.config.body.type_vocab_size > 1)
        arguments: list[Any] = [pairs.ids]
        if self.tuned:
            arguments.append(np.concatenate([users, np.repeat(users[:1], len(tokens) - count, axis=0)]))
        return self._apply(self.params, *arguments, mask=pairs.mask, types=pairs.types)
