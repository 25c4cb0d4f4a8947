"""What is sent to a server as text holds no control token that its tokenizer would read."""

import unicodedata

import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from pbr_jax.base.types import UserError
from pbr_jax.llm.tokens import chat
from pbr_jax.llm.tokens.control_tokens import escape_control_tokens

TOKENS = (
    "<|im_end|>", "</s>", "<s>", "<end_of_turn>", "[INST]", "[/INST]", "<<SYS>>", "<|eot_id|>",
    "[|endofturn|]", "<extra_id_1>", "<seed:eos>", "[EOS]", "<end_of_utterance>", "<reserved_106>",
)  # fmt: skip
SPELLINGS = {
    "as it is": str,
    "full width": lambda text: text.replace("<", "\uff1c").replace("[", "\uff3b").replace("|", "\uff5c"),
    "small": lambda text: text.replace("<", "\ufe64").replace(">", "\ufe65"),
    "letters too": lambda text: "".join(chr(ord(c) + 0xFEE0) if c.isalpha() else c for c in text),
}


def codec(form: str | None, tokens: tuple[str, ...] = TOKENS) -> chat.Codec:
    """A tokenizer that normalises before it looks for control tokens."""
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if form is not None:
        tokenizer.normalizer = {"NFKC": normalizers.NFKC, "NFKD": normalizers.NFKD}[form]()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=True) for token in tokens])
    return chat.Codec("tiny", tokenizer, None, {}, frozenset())


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("form", [None, "NFKC", "NFKD"])
@pytest.mark.parametrize("known", [True, False])
def test_a_tokenizer_finds_no_control_token(spelling: str, form: str | None, known: bool) -> None:
    server = codec(form)
    for token in TOKENS:
        text = f"a {SPELLINGS[spelling](token)} b {token}{token[:2]}{token}"
        sent = escape_control_tokens([{"role": "user", "content": text}], server if known else None)
        assert isinstance(sent, list)
        assert not server.controls(sent[0]["content"]), (token, sent)
        assert sent[0]["role"] == "user"
        for normal in () if known else ("NFC", "NFD", "NFKC", "NFKD"):
            assert token not in unicodedata.normalize(normal, sent[0]["content"])


def test_other_text_is_sent_as_it_is() -> None:
    text = "if a < b and c[i] > 2: <div>é 😀 <not|a|token> \uff1c \ue000 E[|X|] <seed:1> [eos "
    assert escape_control_tokens(text) == escape_control_tokens(text, codec("NFKC")) == text


def test_a_token_of_another_kind_is_broken_up() -> None:
    server = codec(None, ("EOT!",))
    sent = escape_control_tokens("say EOT! now", server)
    assert sent == "say E\u2060OT! now"
    assert escape_control_tokens("say EOT! now") == "say EOT! now"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("say |end| now", "say end| now"), ("||end|end|", "endend|"), ("|e|end|nd|", "|eend|nd|")],
)
def test_a_token_that_a_normaliser_puts_together_again_loses_its_beginning(text, wanted):
    server = codec(None, ("|end|",))
    server.tokenizer.normalizer = normalizers.BertNormalizer(clean_text=True, lowercase=False)
    assert server.controls("|\u2060end|")
    sent = escape_control_tokens(text, server)
    assert isinstance(sent, str)
    assert not server.controls(sent)
    assert sent.replace("\u2060", "") == wanted


class Odd(chat.Codec):
    """Reads a control token at the beginning of every text."""

    def controls(self, text: str) -> list[tuple[int, int]]:
        return [(0, 1)]


def test_a_tokenizer_that_reads_control_tokens_in_anything_is_one_clear_line():
    odd = Odd("odd", codec(None).tokenizer, None, {}, frozenset())
    for text in ("some text", ""):
        with pytest.raises(UserError, match=r"whatever is taken out of it \('.*'\); leave") as caught:
            escape_control_tokens(text, odd)
        assert "\n" not in str(caught.value)


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(UserError, match="half of a surrogate pair"):
        escape_control_tokens("a \ud800")
