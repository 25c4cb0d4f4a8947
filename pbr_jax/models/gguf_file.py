"""GGUF files: a language model's weights, tokenizer and chat template in one file.

Tensors come back as float32 under their Hugging Face names and in Hugging Face's layout, quantised ones
expanded by the `gguf` library. Everything wrong with a file is a `UserError` that names it.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pbr_jax.base.types import UserError
from pbr_jax.models import fields, gguf_header, gguf_tokenizer
from pbr_jax.models.families import ARCHITECTURES, Family
from pbr_jax.models.pretrained import Tensors, one_line

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_NO_WEIGHTS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")

# What is met in a file that is cut short, foreign or damaged.
_DAMAGE = (ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError)


@dataclass(frozen=True)
class GGUFFile:
    """An open GGUF file. Tensors stay on disk until they are asked for."""

    path: Path
    header: gguf_header.Header

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the file says of itself, by name."""
        return self.header.metadata

    @property
    def names(self) -> Sequence[str]:
        """Names of the tensors, as the file has them."""
        return list(self.header.tensors)

    @property
    def architecture(self) -> str:
        """One of `ARCHITECTURES`."""
        return self.metadata["general.architecture"]

    @property
    def family(self) -> Family:
        """The model's family."""
        return ARCHITECTURES[self.architecture]

    def get(self, name: str, default: Any = None) -> Any:
        """A metadata value; `{arch}` in its name stands for the architecture."""
        return self.metadata.get(name.format(arch=self.architecture), default)

    def field(self, name: str) -> Any:
        """As `get`; `UserError` where the file has none."""
        name = name.format(arch=self.architecture)
        if name not in self.metadata:
            raise UserError(f"{self.path} has no metadata field {name}; convert the model to GGUF again")
        return self.metadata[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor in row-major order, as Hugging Face has it."""
        if name not in self.header.tensors:
            raise UserError(f"{self.path} has no tensor {name}; convert the model to GGUF again")
        return self.header.tensors[name].shape

    def tensors(self) -> Tensors:
        """The weights by their Hugging Face names, float32, each expanded when it is asked for."""
        return Tensors(
            {
                self._hugging_face_name(name): functools.partial(self._weights, name)
                for name in self.header.tensors
                if name not in _NO_WEIGHTS
            }
        )

    def rope_divisors(self, name: str) -> tuple[float, ...]:
        """What divides each rotary frequency, from the tensor of this name; empty where there is none."""
        if name not in self.header.tensors:
            return ()
        return tuple(float(value) for value in self._expanded(name).ravel())

    @property
    def chat_template(self) -> str | None:
        """The Jinja template that turns messages into text."""
        return self.metadata.get("tokenizer.chat_template")

    @functools.cached_property
    def tokenizer(self) -> "Tokenizer":
        """The tokenizer inside the file."""
        return gguf_tokenizer.tokenizer(str(self.path), self.metadata)

    def _weights(self, name: str) -> np.ndarray:
        tensor = self._expanded(name)
        with fields.sound(str(self.path)):
            return self._as_hugging_face(name, tensor)

    def _as_hugging_face(self, name: str, tensor: np.ndarray) -> np.ndarray:
        if self.family.layers.get("norm_offset") and name.endswith("norm.weight"):
            return tensor - 1  # the format adds the 1 that Gemma's norms add
        if self.family.interleaved and (".attn_q." in name or ".attn_k." in name):
            heads = self.field("{arch}.attention.head_count")
            if ".attn_k." in name:
                heads = self.get("{arch}.attention.head_count_kv", heads)
            return _half_split(tensor, int(heads))
        return tensor

    def _expanded(self, name: str) -> np.ndarray:
        from gguf.quants import dequantize

        stored = self.header.tensors[name]
        try:
            values = gguf_header.values(self.header, stored)
            return np.asarray(dequantize(values, stored.kind), np.float32)
        except (NotImplementedError, *_DAMAGE) as error:  # the first: a type that `gguf` itself cannot expand
            raise UserError(
                f"{self.path}: tensor {name} of type {stored.kind.name} cannot be expanded "
                f"({one_line(error)}); use a file in F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1 or a K type"
            ) from error

    def _hugging_face_name(self, name: str) -> str:
        """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`; unknown names stay."""
        names = self.family.blocks
        if match := re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name):
            layer, part, kind = match.groups()
            return f"model.layers.{layer}.{names[part]}.{kind}" if part in names else name
        part, _, kind = name.rpartition(".")
        return f"{_OUTER[part]}.{kind}" if part in _OUTER else name


def read(path: Path) -> GGUFFile:
    """Opens a GGUF file of one of `ARCHITECTURES`; weights are not read yet. Raises UserError: not a GGUF
    file, cut short, a part of one, of another architecture, or with a field that would change results and
    is not followed."""
    path = Path(path)
    try:
        status = path.stat()
    except OSError as error:
        raise UserError(
            f"{path} cannot be opened ({one_line(error)}); give the path of a .gguf file"
        ) from None
    return _read(path, status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=2)
def _read(path: Path, size: int, changed: int) -> GGUFFile:
    """Metadata holds the whole vocabulary: kept while the file is the same."""
    try:
        header = gguf_header.read(path)
    except (OSError, *_DAMAGE) as error:
        raise UserError(
            f"{path} ({size} bytes) cannot be read as GGUF: {one_line(error)}; "
            "it is cut short or not a GGUF file, fetch it again"
        ) from error
    parts, kind = header.metadata.get("split.count", 0), header.metadata.get("general.type", "model")
    if parts not in (0, 1):  # 0: joined by llama-gguf-split
        raise UserError(
            f"{path} is one of {parts} parts of a model (split.count), which are read joined: join them with "
            "`llama-gguf-split --merge FIRST_PART MODEL.gguf` and give MODEL.gguf"
        )
    if kind != "model":
        raise UserError(f"{path}: found general.type {kind!r:.80}; want the file of a model")
    architecture = header.metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise UserError(
            f"{path} holds a model of architecture {architecture!r}; a GGUF model must be of "
            f"{tuple(ARCHITECTURES)}"
        )
    fields.check_gguf(header.metadata, architecture, str(path))
    return GGUFFile(path, header)


def _half_split(tensor: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head from interleaved rotary pairs (2i, 2i+1) to halves (i, i + h/2). The `llama`
    architecture of GGUF stores query and key rows interleaved; models in Hugging Face's layout turn
    halves. `tensor` is [heads * h, d] or a bias [heads * h]."""
    rest = tensor.shape[1:]
    return tensor.reshape(heads, -1, 2, *rest).swapaxes(1, 2).reshape(tensor.shape)
