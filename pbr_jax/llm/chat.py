"""Between text and token ids: the tokenizer, the chat template and the tokens that end an answer.

A `Codec` is read from a Hugging Face folder or a GGUF file, without the weights. Templates are Jinja
programs that come with a model, so they run in a sandbox, with the same functions that Hugging Face
gives them.
"""

import contextlib
import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pbr_jax.llm.protocol import Prompt
from pbr_jax.models import gguf_file, pretrained
from pbr_jax.models.sizes import check_object
from pbr_jax.types import UserError

if TYPE_CHECKING:
    import jinja2
    from tokenizers import Tokenizer

_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|eom_id|>")
_OPEN, _CLOSE = "\ue000", "\ue001"  # private-use characters around control tokens that a message quotes


@dataclass(frozen=True)
class Codec:
    """Tokenizer, template and stop tokens of a model."""

    source: str  # where they were read from, for messages
    tokenizer: "Tokenizer"
    template: str | None
    specials: Mapping[str, str]  # bos_token, eos_token, ...: what a template may write
    stops: frozenset[int]  # ids that end an answer

    def render(self, prompt: Prompt) -> str:
        """The text the model reads. Messages without a template are joined by blank lines."""
        if isinstance(prompt, str):
            return prompt
        if self.template is None:
            return "\n\n".join(message["content"] for message in prompt)
        return render(self.template, prompt, source=self.source, **self.specials)

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt.

        Plain text gets the special tokens that the tokenizer adds (a beginning-of-text token). A template
        writes its own. Control tokens that a message's content spells out are read as ordinary text: what
        a user wrote cannot open a turn.
        """
        if isinstance(prompt, str) or self.template is None:
            return self.tokenizer.encode(self.render(prompt)).ids
        guarded = [{name: self._guard(text) for name, text in message.items()} for message in prompt]
        pieces = re.split(f"{_OPEN}(.*?){_CLOSE}", self.render(guarded), flags=re.DOTALL)
        ids: list[int] = []
        for place, piece in enumerate(pieces):
            tokenizer = self._literal if place % 2 else self.tokenizer
            ids += tokenizer.encode(piece, add_special_tokens=False).ids
        return ids

    def encode_target(self, text: str) -> list[int]:
        """Token ids of an answer: no special tokens added or recognised."""
        return self._literal.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text up to the first stop token, without special tokens."""
        end = next((place for place, token in enumerate(ids) if token in self.stops), len(ids))
        return self.tokenizer.decode(list(ids[:end]), skip_special_tokens=True)

    def count(self, text: str) -> int:
        """Number of tokens, no special tokens added."""
        return len(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def truncate(self, text: str, tokens: int) -> str:
        """The longest prefix, cut where a token ends, that has at most this many tokens."""
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        if len(encoding.ids) <= tokens:
            return text
        for kept in range(tokens, 0, -1):
            prefix = text[: encoding.offsets[kept - 1][1]]
            # The last token may be a part of a character, and the prefix alone may split otherwise.
            if self.count(prefix) <= tokens:
                return prefix
        return ""

    @functools.cached_property
    def _literal(self) -> "Tokenizer":
        """The same tokenizer, blind to control tokens."""
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_str(self.tokenizer.to_str())
        tokenizer.encode_special_tokens = True
        return tokenizer

    @functools.cached_property
    def _control(self) -> re.Pattern[str]:
        added = self.tokenizer.get_added_tokens_decoder().values()
        names = sorted((token.content for token in added if token.special), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, names)) or "(?!)")

    def _guard(self, text: str) -> str:
        if not isinstance(text, str) or not self._control.search(text):
            return text
        return self._control.sub(rf"{_OPEN}\g<0>{_CLOSE}", re.sub(f"[{_OPEN}{_CLOSE}]", "", text))


def render(template: str, messages: Sequence[Mapping[str, str]], *, source: str = "", **specials: str) -> str:
    """A chat template applied to messages, with the answer's turn opened.

    Models that can think before they answer (Qwen3) are asked not to. Where a template refuses a system
    message (Gemma, older Mistrals), it is put in front of the first user's, with a blank line between.

    Raises:
      UserError: the template is malformed or refuses the messages (roles that do not alternate).
    """
    import jinja2

    messages = [dict(message) for message in messages]

    def write(messages: Sequence[Mapping[str, str]]) -> str:
        return _compile(template).render(
            messages=messages,
            tools=None,
            documents=None,
            add_generation_prompt=True,
            enable_thinking=False,
            **specials,
        )

    try:
        return write(messages)
    except jinja2.TemplateError as error:
        roles = [message.get("role") for message in messages]
        if roles[:2] == ["system", "user"]:
            with contextlib.suppress(jinja2.TemplateError):
                return write(_without_system(messages))
        raise UserError(
            f"{source}: the chat template cannot write messages with roles {roles}: "
            f"{pretrained.one_line(error)}; change the roles, or give the prompt as plain text"
        ) from error


def _without_system(messages: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    system, user, *rest = messages
    return [{"role": "user", "content": f"{system['content']}\n\n{user['content']}"}, *rest]


@functools.lru_cache(maxsize=16)
def _compile(template: str) -> "jinja2.Template":
    import jinja2
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(jinja2.ext.Extension):
        """`{% generation %} ... {% endgeneration %}` marks answers for training; here it is its content."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML, which no model was trained on."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def load(path: Path) -> Codec:
    """The codec of a Hugging Face folder or GGUF file.

    Raises:
      UserError: no tokenizer that can be read, named.
    """
    return _from_gguf(path) if path.is_file() else _from_folder(path)


def _from_gguf(path: Path) -> Codec:
    file = gguf_file.read(path)
    tokens = file.field("tokenizer.ggml.tokens")
    named = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: file.metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in named.items()}
    specials = {name: tokens[place] for name, place in ids.items() if place is not None}
    ends = [ids["eos_token"], file.metadata.get("tokenizer.ggml.eot_token_id")]
    stops = _stops(ends, file.tokenizer, file.chat_template)
    return Codec(str(path), file.tokenizer, file.chat_template, specials, stops)


def _from_folder(path: Path) -> Codec:
    from tokenizers import Tokenizer

    file = path / "tokenizer.json"
    if not file.is_file():
        raise UserError(f"{path} has no tokenizer.json; save the tokenizer of the model there in that format")
    try:
        tokenizer = Tokenizer.from_str(file.read_text(encoding="utf-8"))
    except Exception as error:  # the library raises bare Exception
        raise UserError(f"{file} is not a tokenizer: {pretrained.one_line(error)}; fetch it again") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    settings = _optional_json(path / "tokenizer_config.json")
    specials = {name: text for name in _SPECIAL if (text := _content(settings.get(name)))}
    ends = [tokenizer.token_to_id(specials["eos_token"])] if "eos_token" in specials else []
    for name in ("generation_config.json", "config.json"):
        declared = _optional_json(path / name).get("eos_token_id")
        ends += declared if isinstance(declared, list) else [declared]
    template = _folder_template(path, settings)
    return Codec(str(path), tokenizer, template, specials, _stops(ends, tokenizer, template))


def _optional_json(file: Path) -> dict[str, Any]:
    content = pretrained.read_json(file) if file.is_file() else {}
    check_object(content, str(file))
    return content


def _content(token: Any) -> str | None:
    """The text of a special token, which files give as a string or as an object."""
    return token.get("content") if isinstance(token, dict) else token


def _folder_template(path: Path, settings: Mapping[str, Any]) -> str | None:
    file = path / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {entry.get("name"): entry.get("template") for entry in template}
        return named.get("default")
    return template


def _stops(ends: Iterable[int | None], tokenizer: "Tokenizer", template: str | None) -> frozenset[int]:
    """Declared end tokens, and the ends of turns that the template writes."""
    turns = [tokenizer.token_to_id(name) for name in _END_OF_TURN if template and name in template]
    return frozenset(int(token) for token in (*ends, *turns) if token is not None)
