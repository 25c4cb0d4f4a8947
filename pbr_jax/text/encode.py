"""Texts to embeddings: packed, batched, and spread over devices. In files: `embedding_file`.

Texts of any length share rows (`packing`), and attention stays inside a text. The rows come in few
fixed shapes, so few programs are compiled.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import Float32

from pbr_jax import cores, terminal
from pbr_jax import options as schema
from pbr_jax.files import private_folder
from pbr_jax.models import bert, pretrained
from pbr_jax.models.sentence_folder import Role
from pbr_jax.text.packing import PLACES, Batch, fill, multiple, pack, power_of_two, row_sizes
from pbr_jax.text.tokenizing import Settings, load_tokenizer, read_settings
from pbr_jax.types import Params, UserError

BATCH_TOKENS = {"cpu": 512}  # elsewhere 16,384; on CPU few, so that activations stay in the cores' caches
WINDOW = 8192  # texts tokenized, sorted and packed together


def enable_compilation_cache(folder: Path) -> None:
    """Keep compiled programs in `folder`, for this process and the next ones.

    Where the user has chosen a folder (JAX_COMPILATION_CACHE_DIR), in that one.
    """
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        private_folder(folder)
        jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


class TextEncoder:
    """A BERT-family encoder of texts, from the configuration of a run.

    Weights are read at the first `encode`; `fingerprint` and `dim` need only the small files.

    Args:
      config: which model, and how texts are cut, pooled and batched. "auto" means what the model's
        folder says (sentence-transformers files), else mean pooling without normalisation.
      devices: the `jax.Device`s that the rows of a batch are spread over; None: all local ones.
      tuned: parameters in place of the folder's, and a name that identifies them.
      unit: whether tuned vectors are of unit length, whatever the settings say: as they were tuned.

    Raises:
      UserError: no such model, a file of it is malformed, or a setting does not fit it.
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
        self.batch_tokens = config.batch_tokens or BATCH_TOKENS.get(devices[0].platform, 16384)
        mesh = jax.make_mesh((len(devices),), ("data",), axis_types=(AxisType.Auto,), devices=devices)
        self._rows = NamedSharding(mesh, PartitionSpec("data"))
        self._replicated = NamedSharding(mesh, PartitionSpec())

    @property
    def dim(self) -> int:
        """Width of the embeddings."""
        return self.bert_config.hidden_size

    @property
    def fingerprint(self) -> str:
        """sha256 (hex) of all that the embeddings depend on: model files, settings and prefixes."""
        parts = [
            self._content,  # with the folder's own prompts, and whether they are pooled
            *self.settings[:3],
            self.prefix("query"),
            self.prefix("document"),
            *([] if self._tuned is None else [self._tuned[1]]),
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def prefix(self, role: Role) -> str:
        """What is put before every text of a role: as the configuration says, else the model's folder."""
        if role == "query":
            stated, own = self.config.query_prefix, self.settings.query_prompt
        else:
            stated, own = self.config.document_prefix, self.settings.document_prompt
        return own if stated == "auto" else stated

    def encode(
        self, texts: Sequence[str], *, role: Role = "document", progress: bool = False
    ) -> Float32[np.ndarray, "n d"]:
        """Embeddings of texts, float32 in the order given; equal texts are encoded once.

        Args:
          texts: any lengths; what exceeds the settings' `max_length` is cut.
          role: whose prefix is put before each text.
          progress: show a progress bar.
        """
        prefix = self.prefix(role)
        skipped = 0 if self.settings.include_prompt else self.tokenizer.prompt_length(prefix)
        unique = list(dict.fromkeys(texts))
        embeddings, done = np.zeros((len(unique), self.dim), np.float32), 0
        with terminal.bar(total=len(unique), show=progress, unit="text") as bar:
            for start in range(0, len(unique), WINDOW):  # bounds the memory of token ids
                tokens = self.tokenizer.encode_batch([prefix + t for t in unique[start : start + WINDOW]])
                for batch, vectors in self._run(self._batches(tokens), skipped):
                    embeddings[start + batch.texts] = vectors[batch.rows, batch.places]
                    done += len(batch.texts)
                    bar.update(len(batch.texts))
                    terminal.doing(f"{done} of {len(unique)} texts")
        places = {text: place for place, text in enumerate(unique)}
        return embeddings[np.array([places[text] for text in texts], int)]

    def _batches(self, tokens: Sequence[Sequence[int]]) -> Iterator[Batch]:
        devices = self._rows.mesh.size
        lengths = [len(ids) for ids in tokens]
        sizes = row_sizes(self.settings.max_length)
        packed = pack(lengths, sizes)
        small = sum(size * len(rows) for size, rows in packed) <= self.batch_tokens
        if small:  # one program, no larger than the texts need
            size = max((size for size, _ in packed), default=sizes[0])
            packed = pack(lengths, [size])
        for size, rows in packed:
            full = multiple(max(1, self.batch_tokens // size), devices)
            height = min(full, multiple(power_of_two(len(rows)), devices)) if small else full
            for start in range(0, len(rows), height):
                yield fill(rows[start : start + height], tokens, (height, size))

    def _run(self, batches: Iterable[Batch], skipped: int) -> Iterator[tuple[Batch, np.ndarray]]:
        """Each batch with its embeddings [rows places d], in order; `_lanes` of them compute at a time.

        The first `skipped` tokens of a text are not pooled.
        """
        alone = self._lanes > 1
        pooling, normalize = self.settings.pooling, self.settings.normalize
        forward = _forward(self.bert_config, pooling, normalize, alone, skipped)
        params = self._params

        def compute(batch: Batch) -> tuple[Batch, np.ndarray]:
            inputs = jax.device_put((batch.ids, batch.segments, batch.positions), self._rows)
            return batch, np.asarray(forward(params, *inputs))

        with ThreadPoolExecutor(self._lanes) as pool:
            yield from pool.map(compute, batches)

    @cached_property
    def _lanes(self) -> int:
        """Batches computed at a time: one a core on a CPU."""
        if len(self._devices) > 1 or self._devices[0].platform != "cpu":
            return 1
        return cores.count()

    @cached_property
    def _params(self) -> Params:
        terminal.doing(f"loading {self.folder.name}", slow=True)
        params = bert.load(self.folder)[1] if self._tuned is None else self._tuned[0]
        return jax.device_put(params, self._replicated)


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

    def forward(params: Any, ids: jax.Array, segments: jax.Array, positions: jax.Array) -> jax.Array:
        states = model.apply(params, ids, segments=segments, positions=positions)
        places = max(1, ids.shape[1] // PLACES)
        if skipped:
            positions = positions - skipped
            segments = jnp.where(positions < 0, 0, segments)
        return bert.pool(states, segments, positions, places, pooling=pooling, normalize=normalize)

    return cores.compiled(forward, one_core)
