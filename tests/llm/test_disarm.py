"""What is sent to a server as text holds no control token that its tokenizer would read."""

import unicodedata

import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from pbr_jax.llm import chat
from pbr_jax.llm.disarm import disarm
from pbr_jax.types import UserError

TOKENS = ("<|im_end|>", "</s>", "<s>", "<end_of_turn>", "[INST]", "[/INST]", "<<SYS>>", "<|eot_id|>")
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
        sent = disarm([{"role": "user", "content": text}], server if known else None)
        assert isinstance(sent, list)
        assert not server.controls(sent[0]["content"]), (token, sent)
        assert sent[0]["role"] == "user"
        for normal in () if known else ("NFC", "NFD", "NFKC", "NFKD"):
            assert token not in unicodedata.normalize(normal, sent[0]["content"])


def test_other_text_is_sent_as_it_is() -> None:
    text = "if a < b and c[i] > 2: <div>é 😀 <not|a|token> \uff1c \ue000"
    assert disarm(text) == disarm(text, codec("NFKC")) == text


def test_a_token_of_another_kind_is_broken_up() -> None:
    server = codec(None, ("EOT!",))
    sent = disarm("say EOT! now", server)
    assert sent == "say E\u2060OT! now"
    assert disarm("say EOT! now") == "say EOT! now"


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(UserError, match="half of a surrogate pair"):
        disarm("a \ud800")
