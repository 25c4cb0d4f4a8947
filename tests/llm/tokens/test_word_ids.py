"""Tokens by words against the tokenizer's own of the whole text."""

import gc
import random
import weakref
from itertools import pairwise, product

import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from pbr_jax.base.types import UserError
from pbr_jax.llm import reads
from pbr_jax.llm.tokens import chat
from pbr_jax.llm.tokens.word_ids import WordIds, is_separable
from pbr_jax.models import pretrained
from pbr_jax.models.gguf_tokenizer import SPLITS

CORPUS = [
    "the cat's hat  sat on\n\nthe mat. It's 10 o'clock /etc/ !!\r\n\t and  the Cat SAT",
    "naïve 漢字 a.\n/b ",
] * 9
# What expressions and normalisers look at: blanks of all kinds, marks that join, digits, ends of words.
PIECES = [
    " ", " ", " ", " ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u2003", "\u3000", "\x1c", "\x85",
    "\u200b", "\u0301", "\u180e", "a", "the", "cat", "Cat", "SAT", "é", "e\u0301", "漢", "字", "1", "20",
    "½", ".", "!!", "/", "'s", "'S", "'", "-", "😀", "👩\u200d👩", "<t>", "<u>", "<|x|>", "\ud7a3", "_",
    "\u1100\u1161", "\u212b",
]  # fmt: skip


def made(split: str, normalizer=None, trim: bool = True) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = SPLITS[split]()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, show_progress=False)  # type: ignore[call-arg]
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken("<|x|>", special=True, normalized=False)])
    tokenizer.add_tokens(
        [AddedToken("<t>", normalized=True), AddedToken("<u>", normalized=False, lstrip=True)]
    )
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim)  # type: ignore[assignment]
    return tokenizer


def texts(seed: int, count: int = 100) -> list[str]:
    draw = random.Random(seed)
    return [
        "",
        " ",
        "  ",
        " a",
        "a ",
        *("".join(draw.choices(PIECES, k=draw.randint(1, 24))) for _ in range(count)),
    ]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize(("normalizer", "trim"), [(None, True), (normalizers.NFC(), False)])
def test_tokens_by_words_are_those_of_the_whole_text(split, normalizer, trim):
    tokenizer = made(split, normalizer, trim)
    assert is_separable(tokenizer)
    words = WordIds(tokenizer)
    for text in texts(0) * 2:  # the second time they are known
        whole = tokenizer.encode(text, add_special_tokens=False)
        assert words.encode(text) == whole.ids, text
        assert words.count(text) == len(whole.ids)
        for tokens, (_, end) in enumerate(whole.offsets, 1):
            assert words.beginning(text, tokens) == text[:end], (text, tokens)
        assert words.beginning(text, len(whole.ids) + 1) == text


def test_words_are_encoded_once_and_long_ones_are_not_remembered(monkeypatch):
    words = WordIds(made("gpt-2"))
    text = "the cat sat on the mat " + "x" * 65
    first = words.encode(text)
    assert set(words) == {"cat", "sat", "on", "the", "mat"}
    monkeypatch.setattr("pbr_jax.llm.tokens.word_ids._MOST", 5)
    assert words.encode("the hat") + words.encode(text) == words.encode("the hat") + first
    assert len(words) <= 5


def test_words_are_forgotten_with_the_texts_that_are_erased(tmp_path, monkeypatch):
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path))
    tables = [WordIds(made("gpt-2")), WordIds(made("smollm"))]
    assert all(table.encode("the secret word") and "secret" in table for table in tables)
    assert reads.erase(["another text"]) == 0
    assert not any(tables)
    gone = weakref.ref(tables.pop())
    gc.collect()
    assert gone() is None  # what clears tables keeps none alive


@pytest.mark.parametrize(
    "change",
    [
        lambda t: setattr(t, "pre_tokenizer", pre_tokenizers.Metaspace(split=False)),
        lambda t: setattr(t, "pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=True)),
        lambda t: setattr(t, "pre_tokenizer", pre_tokenizers.Sequence([])),
        lambda t: setattr(t, "normalizer", normalizers.Replace(" ", "")),
        lambda t: setattr(t.model, "dropout", 0.5),
        lambda t: t.enable_truncation(4),
        lambda t: t.enable_padding(length=30),
        lambda t: t.add_tokens([AddedToken("a b")]),
        lambda t: t.add_tokens([AddedToken("<r>", rstrip=True)]),
        lambda t: t.add_tokens([AddedToken("<w>", single_word=True)]),
    ],
)
def test_texts_of_other_tokenizers_are_encoded_as_a_whole(change):
    tokenizer = made("gpt-2")
    change(tokenizer)
    assert not is_separable(tokenizer)
    if tokenizer.model.dropout is None:
        words = WordIds(tokenizer)
        for text in texts(1, 40):
            whole = tokenizer.encode(text, add_special_tokens=False)
            assert words.encode(text) == whole.ids
            assert words.count(text) == len(whole.ids)
        assert not words


def test_no_match_of_a_known_expression_holds_a_space_behind_another_character():
    """What the module says of its expressions, for every pair of kinds of characters around the space."""
    sides = ["a", "Z", "漢", "\u0301", "ʰ", "1", "½", ".", "/", "'", "_", "😀", "\u200b", "\x00", "\u00ad"]
    for split in SPLITS.values():
        cut = split()
        for left, right in product(sides, [*sides, " ", "\n", "\t", "\u00a0", "'s", ""]):
            for before in ("", "b", " ", "\n", "3", "!", "'"):
                pieces = cut.pre_tokenize_str(f"{before}{left} {right}")
                assert len(before + left) in {start for _, (start, _) in pieces}, (before, left, right)


def test_prompts_of_the_embedded_model_have_the_tokens_of_their_rendered_text():
    try:
        path = pretrained.locate("SmolLM2-135M-Instruct")
    except UserError as error:
        pytest.skip(str(error))
    codec = chat.load(path)
    assert is_separable(codec.tokenizer)
    found = [text.encode("utf-8", "ignore").decode() for text in texts(2, 50)]
    prompts = [[{"role": "system", "content": a}, {"role": "user", "content": b}] for a, b in pairwise(found)]
    for prompt, ids in zip(prompts, codec.encode_each(prompts), strict=True):
        assert ids == codec.tokenizer.encode(codec.render(prompt), add_special_tokens=False).ids
        assert ids == codec.locate(prompt, [])[0] if prompt[-1]["content"].strip() else True
