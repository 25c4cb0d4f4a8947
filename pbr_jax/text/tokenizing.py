"""Text to token ids, with the `tokenizers` library, and the encoder settings that a folder names.

Truncation keeps the special tokens; nothing is padded here (`encode` pads).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pbr_jax.base.types import UserError
from pbr_jax.models import fields, sentence_folder, tokenizer_file
from pbr_jax.models.pretrained import one_line, read_json


@dataclass(frozen=True)
class Tokenizer:
    """A text tokenizer without padding; longer texts than `max_length` tokens are cut."""

    backend: Any  # tokenizers.Tokenizer
    max_length: int | None = None  # special tokens included; None: never cut
    typed: bool = True  # whether the model is told the types of tokens
    rows: int | None = None  # tokens that the model knows; None: all
    source: str = ""  # whose they are

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, special tokens included, at most `max_length` of them."""
        tokens = [encoding.ids for encoding in self.backend.encode_batch_fast(list(texts))]
        self.check_known(tokens)
        return tokens

    def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[list[int], list[int]]]:
        """Token ids of each pair of texts, and each token's type: 0 in the first text and 1 in the second.

        Special tokens included, at most `max_length`; the longer of the two texts is cut first. Types are
        as the tokenizer gives them: XLM-R's are all 0, and so are all where the folder's `model_input_names`
        lack them.
        """
        encodings = self.backend.encode_batch_fast(list(pairs))
        self.check_known([encoding.ids for encoding in encodings])
        return [(one.ids, one.type_ids if self.typed else [0] * len(one.ids)) for one in encodings]

    def check_known(self, texts: Iterable[Sequence[int]]) -> None:
        """Raises UserError for a token that the model has no row for."""
        tokenizer_file.check_known(texts, self.rows, self.source)

    def cut(self, ids: list[int], n: int) -> list[int]:
        """At most n tokens of a text, the first and the last among them, cut where `max_length` cuts."""
        if len(ids) <= n:
            return ids
        left = (self.backend.truncation or {}).get("direction") == "left"
        return [ids[0], *ids[1 - n :]] if left else [*ids[: n - 1], ids[-1]]

    def prompt_length(self, prompt: str) -> int:
        """Tokens in front of a text behind this prompt, special ones included; 0 without a prompt."""
        if not prompt:
            return 0
        encoding = self.backend.encode(prompt)
        return len(encoding.ids) - encoding.special_tokens_mask[-1]

    def count(self, text: str) -> int:
        """Number of tokens of a text, uncut and without special tokens."""
        return len(self._uncut(text).ids)

    def truncate(self, text: str, n: int) -> str:
        """The longest beginning of `text` that ends with its n-th token or before, specials not counted.
        Case and spacing stay. A piece that has more than n tokens on its own is cut further."""
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

    `tokenizer.json` is read directly; a folder without it goes through `transformers.AutoTokenizer`, which
    reads the older files (vocab.txt, merges.txt, ...). Raises UserError: neither way works, or `max_length`
    leaves no room beside the special tokens.
    """
    if (folder / "tokenizer.json").is_file():
        backend, settings = tokenizer_file.read_folder(folder)
    else:
        backend, settings = _from_transformers(folder), tokenizer_file.settings(folder)
    if sentence_folder.lower_case(folder):
        tokenizer_file.lowered(backend)
    backend.no_padding()
    backend.no_truncation()
    if max_length is not None:
        specials = backend.num_special_tokens_to_add(is_pair=False)
        if max_length <= specials:
            raise UserError(
                f"encoder.max_length {max_length} leaves no room beside {specials} special tokens; "
                f"give at least {specials + 1}"
            )
        side = settings.get("truncation_side", "right")
        if side not in ("left", "right"):
            raise UserError(f"{folder}: truncation_side is {side!r:.80}; left or right is wanted")
        backend.enable_truncation(max_length, direction=side)
    inputs = settings.get("model_input_names")
    if not isinstance(inputs, list | None):
        raise UserError(f"{folder}: model_input_names is {inputs!r:.80}; a list of names is wanted")
    rows = fields.read_object(folder / "config.json", absent=True).get("vocab_size")
    typed = inputs is None or "token_type_ids" in inputs
    return Tokenizer(backend, max_length, typed, rows if isinstance(rows, int) else None, str(folder))


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
    query_prompt: str = ""  # put before every query
    document_prompt: str = ""
    include_prompt: bool = True  # whether the prompt's tokens are pooled


def read_settings(folder: Path, max_positions: int) -> Settings:
    """The settings in a sentence-transformers folder; mean pooling, no normalisation where it has none.

    Vectors are normalised where the folder has a module for it, or is searched by cosine.

    Args:
      folder: may hold `modules.json`, the modules' `config.json`, `sentence_bert_config.json`,
        `config_sentence_transformers.json`.
      max_positions: tokens that the model has positions for; the upper bound of `max_length`.

    Raises UserError: a file is malformed, or names a pooling, module or field that is not supported.
    """
    length = sentence_folder.max_length(folder)
    length = max_positions if length is None else min(length, max_positions)
    modules = sentence_folder.modules(folder)
    whole = ("Transformer", "Pooling", "Normalize")
    sentence_folder.check_order(modules, folder, whole, whole[:2], whole[:1])
    files = {module.kind: module.folder / "config.json" for module in modules}
    pooling = fields.read(files["Pooling"], fields.POOLING) if "Pooling" in files else None
    if "Normalize" in files:
        fields.read(files["Normalize"], fields.NORMALIZE)
    # A folder of sentence-transformers that names no similarity is searched by cosine there.
    order = sentence_folder.model(folder).get("similarity_fn_name") or ("cosine" if modules else "dot")
    if order not in ("cosine", "dot"):
        raise UserError(f"{folder}: similarity_fn_name is {order!r:.80}; cosine or dot is wanted")
    return Settings(
        max_length=length,
        pooling="mean" if pooling is None else _pooling(pooling, files["Pooling"]),
        normalize="Normalize" in files or order == "cosine",
        query_prompt=sentence_folder.prompt(folder, "query"),
        document_prompt=sentence_folder.prompt(folder, "document"),
        include_prompt=pooling is None or pooling.get("include_prompt") is not False,
    )


def _pooling(content: dict[str, Any], file: Path) -> Literal["mean", "cls"]:
    # Recent releases write one word, or a list, older ones a flag for each mode.
    stated = content.get("pooling_mode")
    flags = {name.removeprefix("pooling_mode_") for name, on in content.items() if on is True}
    modes = flags - {"include_prompt"}
    if stated is not None:
        modes = {str(mode) for mode in (stated if isinstance(stated, list) else [stated])}
    if modes <= {"mean", "mean_tokens"} and modes:
        return "mean"
    if modes <= {"cls", "cls_token"} and modes:
        return "cls"
    raise UserError(
        f"{file}: pooling {', '.join(sorted(modes)) or 'missing'} is not supported; mean and cls are"
    )
