"""Texts as one vector a token, for late interaction: by a ColBERT, or by the states of a plain BERT.

A ColBERT's folder says how: markers, [MASK]s behind queries, no punctuation (`models.colbert_folder`). Of a
plain encoder the last states are compared, scaled to unit length, special tokens included.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from pbr_jax.base.prefetch import fetched
from pbr_jax.base.types import UserError
from pbr_jax.models import bert, colbert, fields, sentence_folder, tokenizer_file
from pbr_jax.models.pretrained import locate
from pbr_jax.models.sentence_folder import Role
from pbr_jax.text.lengths import lengths
from pbr_jax.text.padding import padded, padded_batches
from pbr_jax.text.tokenizing import load_tokenizer, read_settings

_SPECIAL = 4  # [CLS], the marker, [SEP] and one token of the text


class TokenEncoder:
    """Token vectors of queries and documents.

    Weights are read at the first text.

    Args:
      model: a ColBERT's folder, or any BERT-family encoder's.
      devices: that the rows of a batch are spread over; None: all local ones.

    Raises UserError: no such model, a marker that its vocabulary lacks, or lengths that it has no
    positions for.
    """

    def __init__(self, model: str, *, devices: Sequence[Any] | None = None) -> None:
        self.folder: Path = locate(model)
        if self.folder.is_file():
            raise UserError(f"{model!r} is a GGUF file; give the folder of a ColBERT or of a BERT encoder")
        self.is_colbert = colbert.has_projection(self.folder)
        self.config = colbert.read_config(self.folder, projection=self.is_colbert)
        positions = self.config.body.max_position_embeddings
        if not self.is_colbert:
            settings = read_settings(self.folder, positions)
            self.lengths = {"query": settings.max_length, "document": settings.max_length}
            self._prompts = {"query": settings.query_prompt, "document": settings.document_prompt}
        else:
            most = sentence_folder.max_length(self.folder, fields.TOKENS_TRANSFORMER)
            most = min(most or positions, positions)
            stated = self.config.query_length or most, self.config.document_length or most
            self.lengths = dict(zip(("query", "document"), stated))
            self._prompts = {"query": self.config.query_prompt, "document": self.config.document_prompt}
        for role, length in self.lengths.items():
            if not _SPECIAL <= length <= positions:
                raise UserError(
                    f"{role}_length is {length}, want {_SPECIAL} to {positions}, the positions of "
                    f"{self.folder}"
                )
        tokens = {"query": self.config.query_token, "document": self.config.document_token}
        markers = {role: token for role, token in tokens.items() if token and self.is_colbert}
        self._tokenizers = {
            role: load_tokenizer(self.folder, max_length=length - (role in markers))
            for role, length in self.lengths.items()
        }
        self._markers = {role: self._id(token) for role, token in markers.items()}
        self._fills = self.is_colbert and self.config.expand_queries
        if self._fills:
            mask = tokenizer_file.settings(self.folder).get("mask_token", "[MASK]")
            self._mask = self._id(self.config.expansion_token or mask)
        devices = list(devices or jax.local_devices())
        self._platform = devices[0].platform
        mesh = jax.make_mesh((len(devices),), ("data",), axis_types=(AxisType.Auto,), devices=devices)
        self._rows = NamedSharding(mesh, PartitionSpec("data"))
        self._replicated = NamedSharding(mesh, PartitionSpec())

    @property
    def dim(self) -> int:
        """Width of a token's vector."""
        return self.config.width or self.config.body.hidden_size

    def cut(self, documents: Iterable[str]) -> dict[str, int]:
        """How many documents are longer than is read (`text.lengths`)."""
        return lengths(self._tokenizers["document"], (self._prompts["document"] + d for d in documents))

    def encode(self, texts: Sequence[str], role: Role) -> list[np.ndarray]:
        """The vectors of each text's compared tokens, float32 [t e], of unit length."""
        prompted = [self._prompts[role] + text for text in texts]
        tokens = [self._read(ids, role) for ids in self._tokenizers[role].encode_batch(prompted)]
        vectors_of: list[np.ndarray] = [np.zeros((0, self.dim), np.float32)] * len(texts)
        for (rows, kept), vectors in fetched(self._started(tokens, role)):
            for place, row in enumerate(rows):
                vectors_of[row] = vectors[place][kept[place]]
        return vectors_of

    def _started(
        self, tokens: Sequence[Sequence[int]], role: Role
    ) -> Iterator[tuple[tuple[np.ndarray, np.ndarray], jax.Array]]:
        """Of each batch its texts, and which of their tokens are compared; and the vectors of all tokens."""
        fill = role == "query" and self._fills
        for rows, shape in self._batches([len(ids) for ids in tokens], role, whole=fill):
            ids, mask = padded([tokens[row] for row in rows], shape)
            attended, kept = mask, mask
            if fill:  # query augmentation: every place is compared
                ids, kept = np.where(mask, ids, self._mask), np.ones_like(mask)
                attended = kept if self.config.attend_to_mask_tokens else mask
            elif self.is_colbert and role == "document":
                kept = mask & ~np.isin(ids, self._skipped)
            yield (rows, kept), self._forward(ids, attended, kept)

    def _read(self, ids: list[int], role: Role) -> list[int]:
        return [ids[0], self._markers[role], *ids[1:]] if role in self._markers else ids

    def _batches(
        self, lengths: Sequence[int], role: Role, whole: bool
    ) -> Iterator[tuple[np.ndarray, tuple[int, int]]]:
        widest = self.lengths[role]
        narrowest = widest if whole else 1
        devices = self._rows.mesh.size
        return padded_batches(lengths, self._platform, widest=widest, narrowest=narrowest, devices=devices)

    def _forward(self, ids: np.ndarray, attended: np.ndarray, kept: np.ndarray) -> jax.Array:
        apply, params = self._model
        return apply(params, *jax.device_put((ids, attended, kept), self._rows))

    @cached_property
    def _model(self) -> tuple[Any, Any]:
        model, params, _ = colbert.load(self.folder, projection=self.is_colbert)

        def apply(params: Any, ids: jax.Array, attended: jax.Array, kept: jax.Array) -> jax.Array:
            return model.apply(params, ids, attended=attended, kept=kept)

        return jax.jit(apply), jax.device_put(params, self._replicated)

    @cached_property
    def _skipped(self) -> np.ndarray:
        find = self._tokenizers["document"].backend.token_to_id
        ids = [find(word) for word in self.config.skiplist]
        return np.array([token for token in ids if token is not None], int)

    def _id(self, token: str) -> int:
        """Of a token; PyLate's markers may end with a space that the vocabulary has, or has not."""
        find = self._tokenizers["query"].backend.token_to_id
        number = find(token) if find(token) is not None else find(token.strip())
        if number is None:
            raise UserError(f"{self.folder}: the vocabulary has no {token!r}, which its settings name")
        self._tokenizers["query"].check_known([[number]])
        return number


def max_sims(query: np.ndarray, documents: Sequence[np.ndarray]) -> np.ndarray:
    """Late interaction of a query's tokens [s e] with those of each document [t e], float32 [c].

    Sums over the query's tokens the largest inner product with a token of the document. A document without
    tokens scores -1, the lowest cosine, for each of the query's, so it ranks last.
    """
    scores = [(query @ tokens.T).max(1).sum() if len(tokens) else -len(query) for tokens in documents]
    return np.array(scores, np.float32)


def mean_vectors(tokens: Sequence[np.ndarray], dim: int) -> np.ndarray:
    """The unit mean of each text's token vectors, float32 [n e]; zeros where there are none."""
    means = np.zeros((len(tokens), dim), np.float32)
    for place, of_text in enumerate(tokens):
        if len(of_text):
            means[place] = of_text.mean(0)
    return np.asarray(bert.unit_length(jnp.asarray(means)))
