"""Between text and token ids: the tokenizer, the chat template and the tokens that end an answer.

A `Codec` is read from a Hugging Face folder or a GGUF file, without the weights.
"""

import dataclasses
import json
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pbr_jax.base.files import parse_json
from pbr_jax.base.types import UserError
from pbr_jax.llm.protocol import check_text
from pbr_jax.llm.tokens.codec import Codec
from pbr_jax.llm.tokens.templates import DATE
from pbr_jax.models import fields, gguf_file, tokenizer_file

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|eom_id|>")
_TURN = re.compile(r"<\|[^<>|]+\|>|<(?:start|end)_of_turn>|\[/?INST\]")
_MOST = 1 << 31  # ids that an integer of 32 bits holds, where no file says how many there are
_ENDS = ("eot", "eom")  # of a turn, of a message; names of the format

VERSION = 5
"""Of how prompts and answers become tokens; raised when the same text would become others."""


def load(path: Path, date: str = DATE) -> Codec:
    """The codec of a Hugging Face folder or GGUF file; `date` is the day that its template takes for today.
    Raises UserError: no tokenizer that can be read, named."""
    with fields.sound(str(path)):
        codec = _from_gguf(path) if path.is_file() else _from_folder(path)
        return dataclasses.replace(codec, date=date)


def _from_gguf(path: Path) -> Codec:
    file = gguf_file.read(path)
    tokens = file.field("tokenizer.ggml.tokens")
    named = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: file.metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in named.items()}
    specials = {name: tokens[place] for name, place in ids.items() if place is not None}
    template = _checked(_gguf_template(file), path)
    ends = [ids["eos_token"], *(file.metadata.get(f"tokenizer.ggml.{end}_token_id") for end in _ENDS)]
    stops = _end_tokens(ends, file.tokenizer, template, len(tokens), str(path))
    return Codec(str(path), _armed(file.tokenizer, stops), template, _texts(specials), stops)


def _from_folder(path: Path) -> Codec:
    file = path / "tokenizer.json"
    if not file.is_file():
        raise UserError(f"{path} has no tokenizer.json; save the tokenizer of the model there in that format")
    tokenizer, settings = tokenizer_file.read_folder(path)
    specials = {name: settings[name] for name in tokenizer_file.SPECIAL if name in settings}
    ends = [tokenizer.token_to_id(specials["eos_token"])] if "eos_token" in specials else []
    config = fields.read_object(path / "config.json", absent=True)
    generation = fields.read(path / "generation_config.json", fields.GENERATION)
    for declared in (generation, config):
        number = declared.get("eos_token_id")
        ends += number if isinstance(number, list) else [number]
    template = _checked(_folder_template(path, settings), path)
    stops = _end_tokens(ends, tokenizer, template, _vocabulary(config, tokenizer), str(path))
    tidy = bool(settings.get("clean_up_tokenization_spaces")) and type(tokenizer.model).__name__ != "BPE"
    return Codec(str(path), _armed(tokenizer, stops), template, specials, stops, tidy=tidy)


def _texts(specials: Mapping[str, Any]) -> dict[str, str]:
    return {name: text for name, text in specials.items() if isinstance(text, str) and text}


def _checked(template: Any, path: Path) -> str | None:
    if template is not None:
        check_text(template, f"{path}: the chat template")
    return template


def _folder_template(path: Path, settings: Mapping[str, Any]) -> str | None:
    file = path / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    others = [file.stem for file in sorted((path / "additional_chat_templates").glob("*.jinja"))]
    if isinstance(template, list):  # several, by name
        named = {entry.get("name"): entry.get("template") for entry in template}
        template, others = named.get("default"), list(named)
    if template is None and others:
        raise _no_default(path, others, "write one of them into chat_template.jinja")
    return template


def _gguf_template(file: gguf_file.GGUFFile) -> str | None:
    """The default template; further ones have names behind the same field's."""
    start = "tokenizer.chat_template."
    others = [name.removeprefix(start) for name in file.metadata if name.startswith(start)]
    if file.chat_template is None and others:
        raise _no_default(file.path, others, "convert the model again with one template")
    return file.chat_template


def _no_default(path: Path, names: Iterable[Any], advice: str) -> UserError:
    return UserError(
        f"{path}: found chat templates {', '.join(map(str, names)):.80} and no default; {advice}"
    )


# -- the tokens that end an answer or open a turn: their files are not trusted ---------------------------


def _end_tokens(
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


def _vocabulary(config: Mapping[str, Any], tokenizer: "Tokenizer") -> int:
    """How many ids a model of this `config.json` has, or its tokenizer where that has more. As many as
    can be where the file does not say it."""
    inner = config.get("text_config")
    size = (inner if isinstance(inner, Mapping) else config).get("vocab_size")
    if not isinstance(size, int) or not 0 < size <= _MOST:
        return _MOST
    return max(size, tokenizer.get_vocab_size())


def _armed(tokenizer: "Tokenizer", stops: Collection[int]) -> "Tokenizer":
    """The same tokenizer, for which every added token that ends or opens a turn is a control token. Files
    may have such tokens without the mark, and what a user spells out would then be read as one."""
    added = tokenizer.get_added_tokens_decoder()
    bare = [
        number
        for number, token in added.items()
        if not token.special and (number in stops or _TURN.fullmatch(token.content))
    ]
    if not bare:
        return tokenizer
    from tokenizers import Tokenizer

    state = parse_json(tokenizer.to_str())
    for token in state["added_tokens"]:
        token["special"] |= token["id"] in bare
    return Tokenizer.from_str(json.dumps(state))
