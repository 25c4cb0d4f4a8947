"""Encodes texts as vectors: pads them to a few lengths, batches them and distributes them over devices.

The vector of a text is bitwise independent of the other texts in a batch. Each text has its own row, whose
padded length depends only on the text, and all batches of a length and role have the same number of rows. So
vectors from different calls are identical (`corpus.vectors`)."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import Float32

from pbr_jax import options as schema
from pbr_jax.base import compilation, terminal
from pbr_jax.base.prefetch import fetched
from pbr_jax.base.types import Params, UserError
from pbr_jax.cache.code import code_of
from pbr_jax.models import bert, layers, pretrained
from pbr_jax.models.sentence_folder import Role
from pbr_jax.text.padding import padded, padded_batches, row_sizes
from pbr_jax.text.tokenizing import Settings, load_tokenizer, read_settings

BATCH_TOKENS = {"cpu": 512}  # elsewhere 16,384; on CPU few, so that activations stay in the cores' caches
QUERIES = 4  # a batch of queries is that much smaller: often there is only one
WINDOW = 8192  # texts tokenized and sorted together


class TextEncoder:
    """A BERT-family encoder of texts, from the configuration of a run.

    Weights are read at the first `encode`. `fingerprint` and `dim` need only the small files.

    Args:
      config: the model, and how texts are truncated, pooled and batched. "auto" uses the settings in the
        model's folder (sentence-transformers files), or otherwise mean pooling without normalisation.
      devices: the `jax.Device`s over which the rows of a batch are sharded. None: all local devices.
      tuned: parameters that replace those of the folder, and a name that identifies them.
      unit: whether tuned vectors have unit length, as in their training. It overrides the settings.

    Raises:
      UserError: the model does not exist, a file is malformed, or a setting is not valid for the model.
    """

    def __init__(
        self,
        config: schema.Encoder,
        *,
        devices: Sequence[Any] | None = None,
        tuned: tuple[Params, str] | None = None,
        unit: bool = True,
    ):
        self.config, self._tuned = config, tuned
        self.folder = pretrained.locate(config.model)
        if self.folder.is_file():
            raise UserError(
                f"encoder.model {config.model!r} is a GGUF file; give a BERT folder with safetensors"
            )
        self._content = pretrained.fingerprint(self.folder)  # now: whatever lies there later is another's
        self.bert_config = bert.BertConfig.from_json(self.folder)
        self.settings = _resolve(config, self.folder, self.bert_config.max_position_embeddings)
        if tuned is not None:
            self.settings = self.settings._replace(normalize=unit)
        self.tokenizer = load_tokenizer(self.folder, max_length=self.settings.max_length)
        devices = self._devices = list(devices or jax.local_devices())
        self._platform = devices[0].platform
        self._batch_tokens = config.batch_tokens or BATCH_TOKENS.get(self._platform, 16384)
        mesh = jax.make_mesh((len(devices),), ("data",), axis_types=(AxisType.Auto,), devices=devices)
        self._rows = NamedSharding(mesh, PartitionSpec("data"))
        self._replicated = NamedSharding(mesh, PartitionSpec())

    @property
    def dim(self) -> int:
        """The dimension of the embeddings."""
        return self.bert_config.hidden_size

    @property
    def fingerprint(self) -> str:
        """The sha256 (hex) of everything that embeddings depend on: model files, settings and prefixes."""
        return self._digest(self.prefix("query"), self.prefix("document"))

    def vectors_key(self, role: Role) -> str:
        """The sha256 (hex) of everything that determines a role's vectors bitwise, with code and platform."""
        code = code_of(TextEncoder)
        return self._digest(role, self.prefix(role), self._batch_tokens, self._platform, code)

    def _digest(self, *parts: str | int) -> str:
        # The content has the folder's own prompts, and whether they are pooled.
        known = [
            self._content,
            *self.settings[:3],
            *parts,
            *([] if self._tuned is None else [self._tuned[1]]),
            *self.config.narrow,
        ]
        return hashlib.sha256(json.dumps(known).encode()).hexdigest()

    def prefix(self, role: Role) -> str:
        """The prefix of all texts of a role, from the configuration or otherwise from the model's folder."""
        if role == "query":
            stated, own = self.config.query_prefix, self.settings.query_prompt
        else:
            stated, own = self.config.document_prefix, self.settings.document_prompt
        return own if stated == "auto" else stated

    def encode(
        self, texts: Sequence[str], *, role: Role = "document", progress: bool = False
    ) -> Float32[np.ndarray, "n d"]:
        """Encodes texts as float32 vectors in the same order. Equal texts are encoded once.

        Args:
          texts: texts of any length. Longer ones are truncated to `max_length` tokens.
          role: the role whose prefix is prepended to each text.
          progress: whether to show a progress bar.
        """
        prefix = self.prefix(role)
        skipped = 0 if self.settings.include_prompt else self.tokenizer.prompt_length(prefix)
        unique = list(dict.fromkeys(texts))
        embeddings, done = np.zeros((len(unique), self.dim), np.float32), 0
        with terminal.bar(total=len(unique), show=progress, unit="text") as bar:
            for start in range(0, len(unique), WINDOW):  # bounds the memory of token ids
                tokens = self.tokenizer.encode_batch([prefix + t for t in unique[start : start + WINDOW]])
                for some, vectors in self._run(tokens, role, skipped):
                    embeddings[start + some] = vectors[: len(some)]
                    done += len(some)
                    bar.update(len(some))
                    terminal.doing(f"{done} of {len(unique)} texts")
        places = {text: place for place, text in enumerate(unique)}
        return embeddings[np.array([places[text] for text in texts], int)]

    def _batches(self, lengths: np.ndarray, role: Role) -> Iterator[tuple[np.ndarray, tuple[int, int]]]:
        """Numbers of texts [n], and the shape of their batch; texts without tokens are left out."""
        sizes = np.array(row_sizes(self.settings.max_length))
        widths = np.where(lengths > 0, sizes[np.searchsorted(sizes, lengths)], 0)
        tokens = self._batch_tokens // (QUERIES if role == "query" else 1)
        for width in np.unique(widths[widths > 0]).tolist():
            height = max(1, tokens // width) * self._rows.mesh.size
            texts = np.flatnonzero(widths == width)
            for start in range(0, len(texts), height):
                yield texts[start : start + height], (height, width)

    def _run(
        self, tokens: Sequence[Sequence[int]], role: Role, skipped: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Numbers of texts [n], and a batch's vectors [rows d] that begins with theirs.

        `_lanes` batches compute at a time; with one, the next is started before a batch is fetched. The
        first `skipped` tokens of a text are not pooled.
        """
        lengths = np.array([len(ids) for ids in tokens], np.int32)
        pooling, normalize = self.settings.pooling, self.settings.normalize
        forward = _forward(self.bert_config, pooling, normalize, self._lanes > 1, skipped)
        params = self._params

        def start(batch: tuple[np.ndarray, tuple[int, int]]) -> tuple[np.ndarray, jax.Array]:
            texts, shape = batch
            ids, used = np.zeros(shape, np.int32), np.zeros(shape[0], np.int32)
            used[: len(texts)] = lengths[texts]
            for row, text in enumerate(texts):
                ids[row, : used[row]] = tokens[text]
            return texts, forward(params, *jax.device_put((ids, used), self._rows))

        if self._lanes == 1:
            yield from fetched(map(start, self._batches(lengths, role)))
            return
        with ThreadPoolExecutor(self._lanes) as pool:
            yield from pool.map(lambda batch: jax.device_get(start(batch)), self._batches(lengths, role))

    @cached_property
    def _lanes(self) -> int:
        """Batches computed at a time: one a core on a CPU."""
        if len(self._devices) > 1 or self._platform != "cpu":
            return 1
        return compilation.count()

    @cached_property
    def _params(self) -> Params:
        terminal.doing(f"loading {self.folder.name}", slow=True)
        params = bert.load(self.folder)[1] if self._tuned is None else self._tuned[0]
        return jax.device_put(layers.in_format(params, self.config.dtype), self._replicated)


def _resolve(config: schema.Encoder, folder: Path, max_positions: int) -> Settings:
    """The folder's settings, with those that the configuration states in their place."""
    settings = read_settings(folder, max_positions)
    length = settings.max_length if config.max_length is None else config.max_length
    if length > max_positions:
        raise UserError(
            f"encoder.max_length {length} is more than the {max_positions} positions of {folder}; "
            f"give at most {max_positions}"
        )
    return settings._replace(
        max_length=length,
        pooling=settings.pooling if config.pooling == "auto" else config.pooling,
        normalize=settings.normalize if config.normalize == "auto" else config.normalize == "yes",
    )


@lru_cache(maxsize=8)
def _forward(
    config: bert.BertConfig, pooling: bert.Pooling, normalize: bool, one_core: bool = False, skipped: int = 0
) -> Any:
    model = bert.bert(config)

    def forward(params: Any, ids: jax.Array, lengths: jax.Array) -> jax.Array:
        places = jnp.arange(ids.shape[1])[None]
        segments = (places < lengths[:, None]).astype(jnp.int32)
        positions = segments * places  # a row may be longer than the model has positions
        states = model.apply(params, ids, segments=segments, positions=positions)
        pooled, states = jnp.where(positions < skipped, 0, segments), states.astype(jnp.float32)
        return bert.pool(states, pooled, positions - skipped, 1, pooling=pooling, normalize=normalize)[:, 0]

    return compilation.compiled(forward, one_core)


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
        ids, mask = padded(tokens, shape)
        return _states_program(self._encoder.bert_config)(self._params, ids, mask.astype(np.int32))

    @cached_property
    def _params(self) -> Params:
        return jax.device_put(bert.load(self._encoder.folder)[1])


@lru_cache(maxsize=4)
def _states_program(config: bert.BertConfig) -> Any:
    model = bert.bert(config)

    def forward(params: Params, ids: jax.Array, mask: jax.Array) -> jax.Array:
        return model.apply(params, ids, segments=mask).astype(jnp.float16)

    return jax.jit(forward)
