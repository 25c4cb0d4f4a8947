"""Text to token ids, with the `tokenizers` library, and the encoder settings that a folder names.

Truncation keeps the special tokens; nothing is padded here (`encode` packs instead).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pbr_jax.models import tokenizer_file
from pbr_jax.models.pretrained import one_line, read_json
from pbr_jax.types import UserError


@dataclass(frozen=True)
class Tokenizer:
    """A text tokenizer without padding; longer texts than `max_length` tokens are cut."""

    backend: Any  # tokenizers.Tokenizer
    max_length: int | None = None  # special tokens included; None: never cut

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, special tokens included, at most `max_length` of them."""
        return [encoding.ids for encoding in self.backend.encode_batch_fast(list(texts))]

    def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[list[int], list[int]]]:
        """Token ids of each pair of texts, and each token's type: 0 in the first text and 1 in the second.

        Special tokens included, at most `max_length`; the longer of the two texts is cut first. Types are
        as the tokenizer gives them: XLM-R's are all 0.
        """
        found = self.backend.encode_batch_fast(list(pairs))
        return [(encoding.ids, encoding.type_ids) for encoding in found]

    def count(self, text: str) -> int:
        """Number of tokens of a text, uncut and without special tokens."""
        return len(self._uncut(text).ids)

    def truncate(self, text: str, n: int) -> str:
        """The longest beginning of `text` that ends with its n-th token or before, specials not counted.

        It is a piece of the text itself, so case and spacing stay. Should the piece tokenize into
        more than n tokens on its own (a word cut in the middle), tokens are taken from its end.
        """
        if n <= 0:
            return ""
        encoding = self._uncut(text)
        if len(encoding.ids) <= n:
            return text
        for end in range(n, 0, -1):
            piece = text[: encoding.offsets[end - 1][1]]
            if self.count(piece) <= n:
                return piece
        return ""

    def _uncut(self, text: str) -> Any:
        return self._bare.encode(text, add_special_tokens=False)

    @cached_property
    def _bare(self) -> Any:
        from tokenizers import Tokenizer as Backend

        bare = Backend.from_str(self.backend.to_str())
        bare.no_truncation()
        return bare


def load_tokenizer(folder: Path, *, max_length: int | None = None) -> Tokenizer:
    """The tokenizer of a Hugging Face folder.

    `tokenizer.json` is read directly; a folder without it goes through `transformers.AutoTokenizer`,
    which reads the older files (vocab.txt, merges.txt, ...).

    Raises:
      UserError: neither way works, or `max_length` leaves no room beside the special tokens.
    """
    file = folder / "tokenizer.json"
    backend = tokenizer_file.read(file) if file.is_file() else _from_transformers(folder)
    backend.no_padding()
    backend.no_truncation()
    if max_length is not None:
        specials = backend.num_special_tokens_to_add(is_pair=False)
        if max_length <= specials:
            raise UserError(
                f"encoder.max_length {max_length} leaves no room beside {specials} special tokens; "
                f"give at least {specials + 1}"
            )
        backend.enable_truncation(max_length)
    return Tokenizer(backend, max_length)


_VOCABULARIES = ("vocab.*", "merges.txt", "*.model", "*.tiktoken")


def _from_transformers(folder: Path) -> Any:
    if not any(file for pattern in _VOCABULARIES for file in folder.glob(pattern)):
        raise UserError(f"{folder} holds no tokenizer.json and no vocabulary; save the tokenizer there too")
    for file in folder.glob("*.json"):
        read_json(file)  # transformers reads them without bounds
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        # Without a vocabulary it can build an empty tokenizer instead of failing.
        if len(tokenizer) <= len(tokenizer.all_special_ids):
            raise ValueError("its vocabulary is empty")
        return tokenizer.backend_tokenizer
    except (OSError, ValueError, KeyError, ImportError, TypeError, AttributeError) as error:
        raise UserError(
            f"{folder} holds no tokenizer.json, and transformers reads no tokenizer from it "
            f"({one_line(error)[:200]}); save the tokenizer there with save_pretrained"
        ) from error


class Settings(NamedTuple):
    """How a folder wants its texts encoded."""

    max_length: int  # tokens, special ones included
    pooling: Literal["mean", "cls"]
    normalize: bool  # to unit length


def read_settings(folder: Path, max_positions: int) -> Settings:
    """The settings in a sentence-transformers folder; mean pooling, no normalisation where it has none.

    Args:
      folder: may hold `modules.json`, the pooling module's `config.json`, `sentence_bert_config.json`.
      max_positions: tokens that the model has positions for; the upper bound of `max_length`.

    Raises:
      UserError: a file is malformed, or names a pooling or module that is not supported.
    """
    length = _max_length(folder)
    length = max_positions if length is None else min(length, max_positions)
    modules = _modules(folder)
    unknown = sorted(set(modules) - {"Transformer", "Pooling", "Normalize"})
    if unknown:
        raise UserError(
            f"{folder / 'modules.json'}: module {unknown[0]} is not supported; "
            "Transformer, Pooling and Normalize are"
        )
    pooling = _pooling(folder / modules["Pooling"] / "config.json") if "Pooling" in modules else "mean"
    return Settings(max_length=length, pooling=pooling, normalize="Normalize" in modules)


def _modules(folder: Path) -> dict[str, str]:
    """Module kind -> its folder, from `modules.json`; empty where there is none."""
    file = folder / "modules.json"
    if not file.is_file():
        return {}
    try:
        return {module["type"].rsplit(".", 1)[-1]: module["path"] for module in read_json(file)}
    except (TypeError, KeyError, AttributeError) as error:
        raise UserError(
            f"{file}: every module wants the fields type and path; fetch the file again"
        ) from error


def _max_length(folder: Path) -> int | None:
    file = folder / "sentence_bert_config.json"
    if not file.is_file():
        return _tokenizer_max_length(folder)
    length = _object(file).get("max_seq_length")
    if length is None:
        return _tokenizer_max_length(folder)
    if not isinstance(length, int) or length < 1:
        raise UserError(f"{file}: max_seq_length is {length!r}; a positive whole number is wanted")
    return length


def _tokenizer_max_length(folder: Path) -> int | None:
    """`model_max_length` of the tokenizer, which sentence-transformers falls back to."""
    file = folder / "tokenizer_config.json"
    length = _object(file).get("model_max_length") if file.is_file() else None
    return int(length) if isinstance(length, int | float) else None


def _pooling(file: Path) -> Literal["mean", "cls"]:
    content = _object(file)
    # Recent releases write one word, older ones a flag for each mode.
    mode = content.get("pooling_mode")
    flags = {name.removeprefix("pooling_mode_") for name, on in content.items() if on is True}
    modes = {str(mode)} if mode is not None else flags & {
        "cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken",
    }  # fmt: skip
    if modes <= {"mean", "mean_tokens"} and modes:
        return "mean"
    if modes <= {"cls", "cls_token"} and modes:
        return "cls"
    raise UserError(
        f"{file}: pooling {', '.join(sorted(modes)) or 'missing'} is not supported; mean and cls are"
    )


def _object(file: Path) -> dict[str, Any]:
    content = read_json(file)
    if not isinstance(content, dict):
        raise UserError(f"{file} does not hold a JSON object; fetch the file again")
    return content
