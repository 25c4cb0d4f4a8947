"""The tokens that end an answer or open a turn: checked, and marked, for their files are not trusted."""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pbr_jax.base.files import parse_json
from pbr_jax.base.types import UserError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|eom_id|>")
_CONTROL = re.compile(r"<\|[^<>|]+\|>|<(?:start|end)_of_turn>|\[/?INST\]")
_MOST = 1 << 31  # ids that an integer of 32 bits holds, where no file says how many there are


def end_tokens(
    declared: Iterable[Any], tokenizer: "Tokenizer", template: str | None, vocabulary: int, source: str
) -> frozenset[int]:
    """Declared end tokens (None: none), and the ends of turns that the template writes. Raises UserError:
    one is no id of a vocabulary of this size."""
    turns = [tokenizer.token_to_id(name) for name in _END_OF_TURN if template and name in template]
    tokens = [token for token in (*declared, *turns) if token is not None]
    for token in tokens:
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocabulary:
            raise UserError(
                f"{source}: a token that ends texts or turns is {token!r:.40}, want an id from 0 to "
                f"{vocabulary - 1}; correct eos_token_id or eot_token_id, or fetch the file again"
            )
    return frozenset(tokens)


def vocabulary_of(config: Mapping[str, Any], tokenizer: "Tokenizer") -> int:
    """How many ids a model of this `config.json` has, or its tokenizer where that has more. As many as
    can be where the file does not say it."""
    inner = config.get("text_config")
    size = (inner if isinstance(inner, Mapping) else config).get("vocab_size")
    if not isinstance(size, int) or not 0 < size <= _MOST:
        return _MOST
    return max(size, tokenizer.get_vocab_size())


def armed(tokenizer: "Tokenizer", stops: Collection[int]) -> "Tokenizer":
    """The same tokenizer, for which every added token that ends or opens a turn is a control token. Files
    may have such tokens without the mark, and what a user spells out would then be read as one."""
    added = tokenizer.get_added_tokens_decoder()
    bare = [
        number
        for number, token in added.items()
        if not token.special and (number in stops or _CONTROL.fullmatch(token.content))
    ]
    if not bare:
        return tokenizer
    from tokenizers import Tokenizer

    state = parse_json(tokenizer.to_str())
    for token in state["added_tokens"]:
        token["special"] |= token["id"] in bare
    return Tokenizer.from_str(json.dumps(state))
