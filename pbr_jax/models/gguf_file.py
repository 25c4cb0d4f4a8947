"""GGUF files of the `llama` architecture: weights, tokenizer and chat template in one file.

Tensors come back as float32 under their Hugging Face names, quantised ones expanded; the bytes are read
by the `gguf` library. Everything wrong with a file is a `UserError` that names it.
"""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pbr_jax.models.pretrained import one_line
from pbr_jax.types import UserError

if TYPE_CHECKING:
    from gguf import ReaderTensor
    from tokenizers import Tokenizer

_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_ROPE_DIVISORS = "rope_freqs.weight"
_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4  # token types of the format

# What a reader meets in a file that is cut short, foreign or damaged.
_DAMAGE = (ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError)


@dataclass(frozen=True)
class GGUFFile:
    """An open GGUF file. Tensors stay on disk until they are asked for."""

    path: Path
    metadata: Mapping[str, Any]
    entries: Mapping[str, "ReaderTensor"]

    @property
    def names(self) -> Sequence[str]:
        """Names of the tensors, as the file has them."""
        return list(self.entries)

    def field(self, name: str) -> Any:
        """A metadata value; `UserError` where the file has none."""
        if name not in self.metadata:
            raise UserError(f"{self.path} has no metadata field {name}; convert the model to GGUF again")
        return self.metadata[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor in row-major order, as Hugging Face has it."""
        if name not in self.entries:
            raise UserError(f"{self.path} has no tensor {name}; convert the model to GGUF again")
        return tuple(int(size) for size in reversed(self.entries[name].shape.tolist()))

    def tensors(self) -> dict[str, np.ndarray]:
        """All weights by their Hugging Face names, float32."""
        return {
            _hugging_face_name(name): self._weights(name) for name in self.entries if name != _ROPE_DIVISORS
        }

    def rope_divisors(self) -> tuple[float, ...]:
        """What divides each rotary frequency (Llama 3.1 and later); empty where the file does not say."""
        if _ROPE_DIVISORS not in self.entries:
            return ()
        return tuple(float(value) for value in _dequantise(self.path, self.entries[_ROPE_DIVISORS]))

    @property
    def chat_template(self) -> str | None:
        """The Jinja template that turns messages into text."""
        return self.metadata.get("tokenizer.chat_template")

    @functools.cached_property
    def tokenizer(self) -> "Tokenizer":
        """The tokenizer inside the file."""
        return _tokenizer(self)

    def _weights(self, name: str) -> np.ndarray:
        tensor = _dequantise(self.path, self.entries[name])
        if ".attn_q." in name:
            return _half_split(tensor, int(self.field("llama.attention.head_count")))
        if ".attn_k." in name:
            heads = self.field("llama.attention.head_count")
            return _half_split(tensor, int(self.metadata.get("llama.attention.head_count_kv", heads)))
        return tensor


def read(path: Path) -> GGUFFile:
    """Opens a GGUF file of the `llama` architecture; weights are not read yet.

    Raises:
      UserError: not a GGUF file, cut short, or of another architecture.
    """
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
    """Metadata holds the whole vocabulary and takes a second to read: kept while the file is the same."""
    from gguf import GGUFReader

    try:
        with np.errstate(over="ignore"):  # offsets of a damaged file; the reads after them fail cleanly
            reader = GGUFReader(path)
            metadata = {name: field.contents() for name, field in reader.fields.items()}
    except _DAMAGE as error:
        raise UserError(
            f"{path} ({size} bytes) cannot be read as GGUF: {one_line(error)}; "
            "it is cut short or not a GGUF file, fetch it again"
        ) from error
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise UserError(f"{path} holds a model of architecture {architecture!r}; GGUF models must be 'llama'")
    return GGUFFile(path, metadata, {tensor.name: tensor for tensor in reader.tensors})


def _hugging_face_name(name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`; unknown names stay as they are."""
    if match := re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name):
        layer, part, kind = match.groups()
        return f"model.layers.{layer}.{_BLOCK[part]}.{kind}" if part in _BLOCK else name
    part, _, kind = name.rpartition(".")
    return f"{_OUTER[part]}.{kind}" if part in _OUTER else name


def _dequantise(path: Path, entry: "ReaderTensor") -> np.ndarray:
    from gguf.quants import dequantize

    try:
        return np.asarray(dequantize(entry.data, entry.tensor_type), np.float32)
    except (NotImplementedError, *_DAMAGE) as error:  # the first: a type that `gguf` itself cannot expand
        raise UserError(
            f"{path}: tensor {entry.name} of type {entry.tensor_type.name} cannot be expanded "
            f"({one_line(error)}); use a file in F32, F16, BF16, Q8_0, Q4_0, Q4_1 or a K type"
        ) from error


def _half_split(tensor: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head from interleaved rotary pairs (2i, 2i+1) to halves (i, i + h/2).

    The `llama` architecture of GGUF stores query and key rows interleaved; models in Hugging Face's
    layout turn halves. `tensor` is [heads * h, d] or a bias [heads * h].
    """
    rest = tensor.shape[1:]
    return tensor.reshape(heads, -1, 2, *rest).swapaxes(1, 2).reshape(tensor.shape)


def _tokenizer(file: GGUFFile) -> "Tokenizer":
    """Byte-level BPE from the file's tokens and merges.

    Control tokens are matched as a whole before anything is split. `add_bos_token` (by default
    only Llama 3's) becomes a template that puts the first token in front when special tokens are asked for.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, processors

    kind, split = file.metadata.get("tokenizer.ggml.model"), file.metadata.get("tokenizer.ggml.pre")
    if kind != "gpt2" or split not in _SPLITS:
        raise UserError(
            f"{file.path}: tokenizer {kind!r} with pre-tokenizer {split!r} is not supported; "
            f"use a file with 'gpt2' and one of {sorted(_SPLITS)}, or the Hugging Face folder of the model"
        )
    tokens = file.field("tokenizer.ggml.tokens")
    kinds = file.metadata.get("tokenizer.ggml.token_type", [_NORMAL] * len(tokens))
    merges = [tuple(merge.split(" ", 1)) for merge in file.field("tokenizer.ggml.merges")]
    vocabulary = {token: place for place, token in enumerate(tokens)}
    try:
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=split == "llama-bpe"))
    except Exception as error:  # the library raises bare Exception for merges outside the vocabulary
        raise UserError(
            f"{file.path}: its tokenizer is inconsistent: {one_line(error)}; fetch it again"
        ) from error
    tokenizer.pre_tokenizer = _SPLITS[split]()
    tokenizer.decoder = decoders.ByteLevel()
    pairs = list(zip(tokens, kinds))
    tokenizer.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t, k in pairs if k == _CONTROL]
    )
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t, k in pairs if k == _USER_DEFINED])
    if file.metadata.get("tokenizer.ggml.add_bos_token", split == "llama-bpe"):
        first = int(file.field("tokenizer.ggml.bos_token_id"))
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{tokens[first]} $A", special_tokens=[(tokens[first], first)]
        )
    return tokenizer


def _gpt2() -> Any:
    from tokenizers import pre_tokenizers

    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _smollm() -> Any:
    """Every digit stands alone; the rest is split as in GPT-2."""
    from tokenizers import pre_tokenizers

    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _llama3() -> Any:
    from tokenizers import Regex, pre_tokenizers

    words = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    split = pre_tokenizers.Split(Regex(words), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_SPLITS: dict[str, Callable[[], Any]] = {"gpt-2": _gpt2, "smollm": _smollm, "llama-bpe": _llama3}
"""How text is cut before BPE, by the name the file gives."""
