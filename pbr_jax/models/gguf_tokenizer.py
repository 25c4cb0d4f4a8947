"""The tokenizer inside a GGUF file: byte-level BPE ('gpt2') or SentencePiece's BPE ('llama').

Control tokens are matched as a whole before anything is split. A beginning-of-text token, where the file
asks for one, is put in front when special tokens are asked for.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pbr_jax.base.types import UserError
from pbr_jax.models.pretrained import one_line

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4  # token types of the format
_SPACE = "\u2581"  # how SentencePiece writes a space
_NOT_STRIPPED = ("<unk>", "<s>", "<|endoftext|>")  # Phi-3's other control tokens swallow the space after them


def tokenizer(source: str, metadata: Mapping[str, Any]) -> "Tokenizer":
    """The tokenizer that a file's metadata describes. Raises UserError: of a kind that is not supported, or
    inconsistent; `source` names the file."""
    kind, split = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    try:
        if kind == "llama":
            return _sentencepiece(metadata)
        if kind == "gpt2" and split in SPLITS:
            return _byte_level(metadata, split)
    except KeyError as error:
        raise UserError(f"{source} has no metadata field {error}; convert the model to GGUF again") from None
    except Exception as error:  # the library raises bare Exception for merges outside the vocabulary
        raise UserError(
            f"{source}: its tokenizer is inconsistent: {one_line(error)}; fetch it again"
        ) from error
    raise UserError(
        f"{source}: tokenizer {kind!r} with pre-tokenizer {split!r} is not supported; use one with 'llama', "
        f"or 'gpt2' and one of {sorted(SPLITS)}, or the Hugging Face folder of the model"
    )


def _byte_level(metadata: Mapping[str, Any], split: str) -> "Tokenizer":
    from tokenizers import Tokenizer, decoders, models, normalizers

    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    vocabulary = {token: place for place, token in enumerate(tokens)}
    model = models.BPE(vocab=vocabulary, merges=merges, ignore_merges=split == "llama-bpe")
    tokenizer = Tokenizer(model)
    if split == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = SPLITS[split]()
    tokenizer.decoder = decoders.ByteLevel()
    return _finished(tokenizer, metadata, begins=split == "llama-bpe")


def _sentencepiece(metadata: Mapping[str, Any]) -> "Tokenizer":
    """Kudo and Richardson, SentencePiece, https://arxiv.org/abs/1808.06226, 2018, as BPE with merges."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    tokens, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    kinds = metadata["tokenizer.ggml.token_type"]
    vocabulary = {token: place for place, token in enumerate(tokens)}
    unknown = tokens[int(metadata.get("tokenizer.ggml.unknown_token_id", 0))]
    merges = _merges(tokens, scores, kinds)
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    prefixed = metadata.get("tokenizer.ggml.add_space_prefix", True)
    spaces = [normalizers.Replace(" ", _SPACE)]
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend(_SPACE), *spaces] if prefixed else spaces  # pyright: ignore[reportArgumentType]
    )
    written = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*written, decoders.Strip(" ", 1, 0)] if prefixed else written)
    return _finished(tokenizer, metadata, begins=True)


def _merges(tokens: Sequence[str], scores: Sequence[float], kinds: Sequence[int]) -> list[tuple[str, str]]:
    """Every way to make a piece of two others, best score first: the order in which SentencePiece joins."""
    pieces = {token: score for token, score, kind in zip(tokens, scores, kinds) if kind == _NORMAL}
    merges = [
        (-score, len(left), left, piece[cut:])
        for piece, score in pieces.items()
        for cut in range(1, len(piece))
        if (left := piece[:cut]) in pieces and piece[cut:] in pieces
    ]
    return [(left, right) for _, _, left, right in sorted(merges)]


def _finished(tokenizer: "Tokenizer", metadata: Mapping[str, Any], begins: bool) -> "Tokenizer":
    """With tokens that are matched whole, and the first token where the file (or its kind) wants one."""
    from tokenizers import AddedToken, processors

    tokens = metadata["tokenizer.ggml.tokens"]
    pairs = list(zip(tokens, metadata.get("tokenizer.ggml.token_type", [_NORMAL] * len(tokens))))
    phi3 = metadata["tokenizer.ggml.model"] == "llama" and metadata.get("general.architecture") == "phi3"
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False, rstrip=phi3 and token not in _NOT_STRIPPED)
            for token, kind in pairs
            if kind == _CONTROL
        ]
    )
    tokenizer.add_tokens(
        [AddedToken(token, normalized=False) for token, kind in pairs if kind == _USER_DEFINED]
    )
    if metadata.get("tokenizer.ggml.add_bos_token", begins):
        first = int(metadata["tokenizer.ggml.bos_token_id"])
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


def _pattern(words: str) -> Callable[[], Any]:
    """Matches of a pattern stand alone, and so does what is between them."""

    def split() -> Any:
        from tokenizers import Regex, pre_tokenizers

        cut = pre_tokenizers.Split(Regex(words), behavior="isolated")
        return pre_tokenizers.Sequence(
            [cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )

    return split


_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _words(digits: str) -> str:
    return rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_BLANKS}"


_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_WORDS = (  # a word also ends where an upper-case letter follows a lower-case one
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDINGS}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDINGS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_BLANKS}"
)
SPLITS: dict[str, Callable[[], Any]] = {
    "gpt-2": _gpt2,
    "smollm": _smollm,
    "qwen2": _pattern(_words(r"\p{N}")),
    "llama-bpe": _pattern(_words(r"\p{N}{1,3}")),
    "dbrx": _pattern(_words(r"\p{N}{1,3}")),  # Phi-4
    "gpt-4o": _pattern(_CASED_WORDS),  # Phi-4-mini
}
"""How text is cut before BPE, by the name the file gives."""
