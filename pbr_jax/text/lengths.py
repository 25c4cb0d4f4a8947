"""How many texts are longer than a model reads, and what is told of them."""

from collections import Counter
from collections.abc import Iterable, Mapping

from pbr_jax.text.tokenizing import Tokenizer

CUT = ("cut_documents", "encoded_documents", "encoder_tokens")
"""The counts of documents for `cut_notes`, which stages keep as measures."""

_NOTES = {
    "cut_documents": "{cut_documents} of {encoded_documents} documents are longer than the encoder's "
    "{encoder_tokens} tokens and are cut, so what stands behind is not found: --corpus.chunk words, or "
    "--encoder.max_length",
    "cut_queries": "{cut_queries} queries are longer than the encoder reads and are cut",
    "cut_pairs": "{cut_pairs} pairs of query and document are longer than the reranker reads and are cut: "
    "--corpus.chunk words, or --select.max_length",
    "cut_prompts": "{cut_prompts} prompts are longer than the language model's context and are cut in the "
    "middle (llm.overflow cut): lower --prompt.max_tokens",
}
_SPACES = 4  # tokens that a tokenizer may write in front of texts


def count_cut(tokenizer: Tokenizer, texts: Iterable[tuple[str, ...]]) -> int:
    """How many texts, or pairs of texts, have more tokens than the tokenizer's `max_length`."""
    if tokenizer.max_length is None:
        return 0
    specials = [tokenizer.backend.num_special_tokens_to_add(pair) for pair in (False, True)]
    most = tokenizer.max_length
    return sum(_is_longer(tokenizer, parts, most - specials[len(parts) - 1]) for parts in texts)


def _is_longer(tokenizer: Tokenizer, parts: tuple[str, ...], tokens: int) -> bool:
    if all(map(str.isascii, parts)) and sum(map(len, parts)) + _SPACES <= tokens:
        return False  # without counting: a token of ASCII has a character or more
    return sum(map(tokenizer.count, parts)) > tokens


def cut_notes(counts: Mapping[str, float]) -> list[str]:
    """What a reader has to know of texts that are cut, from the counts of a run."""
    numbers = {name: int(counts[name]) for name in (*_NOTES, *CUT) if counts.get(name)}
    return [note.format(**numbers) for name, note in _NOTES.items() if name in numbers]


def lengths(tokenizer: Tokenizer, texts: Iterable[str]) -> dict[str, int]:
    """The values of `CUT`."""
    longer = Counter(count_cut(tokenizer, [(text,)]) for text in texts)
    return dict(zip(CUT, (longer[1], longer.total(), tokenizer.max_length or 0), strict=True))
