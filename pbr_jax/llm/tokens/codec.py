"""The tokens of texts, prompts and answers, with one tokenizer and chat template.

Made by `chat.load`, which reads both from a model's files.
"""

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pbr_jax.base.files import parse_json
from pbr_jax.base.types import UserError
from pbr_jax.llm.protocol import Prompt, check_prompt, check_text
from pbr_jax.llm.tokens.templates import DATE, manner, render
from pbr_jax.models import tokenizer_file
from pbr_jax.models.thinking import is_mark

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

_PRIVATE = range(0x100000, 0x10FFFE)  # characters that Unicode gives no meaning
_SPACED = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")  # as transformers has them
_REMEMBERED = 65_536  # texts, and prompts, whose numbers of tokens are known: documents come again


class _Read(NamedTuple):
    """A rendered prompt: its text, the content of its last message in it, its token ids, and where in the
    text each token stands."""

    text: str
    content: str
    ids: list[int]
    offsets: list[tuple[int, int]]


@dataclass(frozen=True)
class Codec:
    """Tokenizer, template and stop tokens of a model.

    What messages and plain prompts hold is text whatever it spells: control tokens are the template's alone.
    """

    source: str  # where they were read from, for messages
    tokenizer: "Tokenizer"
    template: str | None
    specials: Mapping[str, str]  # bos_token, eos_token, ...: what a template may write
    stops: frozenset[int]  # ids that end an answer
    date: str = DATE  # what the template takes for today
    tidy: bool = False  # whether answers lose the spaces before punctuation (clean_up_tokenization_spaces)

    def render(self, prompt: Prompt) -> str:
        """The text the model reads. Messages without a template are joined by blank lines."""
        check_prompt(prompt)
        if isinstance(prompt, str):
            return prompt
        if self.template is None:
            return "\n\n".join(message["content"] for message in prompt)
        return render(self.template, prompt, self.specials, source=self.source, date=self.date)

    @functools.cached_property
    def notes(self) -> tuple[str, ...]:
        """What readers of results should know of how the template is used."""
        if self.template is None:
            return ()
        try:
            how = manner(self.template, ("system", "user"), tuple(self.specials.items()), True, self.date)
        except Exception:  # whatever the template raises: `render` says it where such a prompt is written
            return ()
        merged = "the chat template writes no system message, so its text stands in front of the user's"
        closed = f"the chat template opens thinking: {how.closing.strip()} closes it before the answer"
        return tuple(note for note, true in ((merged, how.merged), (closed, how.closing)) if true)

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt; plain text gets the special tokens that the tokenizer adds. Control tokens
        that a text spells out are read as ordinary text: what a user wrote cannot open a turn."""
        ids = self._read(prompt).ids
        self._size("prompt", prompt, ids.__len__)
        return ids

    def num_tokens(self, prompt: Prompt) -> int:
        """Number of tokens of a prompt, special tokens included."""
        check_prompt(prompt)
        return self._size("prompt", prompt, lambda: len(self._read(prompt).ids))

    def count(self, text: str) -> int:
        """Number of tokens of a text as `encode` reads it, no special tokens added."""
        check_text(text, "a text")
        return self._size("text", text, lambda: len(self._literal.encode(text, add_special_tokens=False).ids))

    def _size(self, kind: str, content: Prompt, measure: Callable[[], int]) -> int:
        """A number of tokens, remembered by the hash of what it is of: texts themselves are not kept."""
        if isinstance(content, str):
            parts = [content]
        else:
            parts = [part for message in content for item in (*message.items(), ("", "")) for part in item]
        key = kind, isinstance(content, str), hash(tuple(parts)), sum(map(len, parts))
        if (size := self._sizes.get(key)) is None:
            if len(self._sizes) >= _REMEMBERED:
                self._sizes.clear()
            size = self._sizes[key] = measure()
        return size

    @functools.cached_property
    def _sizes(self) -> dict[tuple[Any, ...], int]:
        return {}

    def __getstate__(self) -> dict[str, Any]:
        """Without what was remembered: another process hashes otherwise."""
        return {name: value for name, value in self.__dict__.items() if name != "_sizes"}

    def locate(self, prompt: Prompt, spans: Sequence[tuple[int, int]]) -> tuple[list[int], list[range]]:
        """Token ids of messages, and which of them hold each span (characters) of the last message's
        content; a token over a border belongs to both sides. UserError where the template changes the
        content."""
        content = prompt if isinstance(prompt, str) else prompt[-1]["content"]
        text, kept, ids, offsets = self._read(prompt)
        controls = self.controls(content) if kept != content else []
        lost = len(kept) - len(kept.lstrip())
        start = text.rfind(kept.strip())
        if not kept.strip() or start < 0:
            raise UserError(
                f"{self.source}: the chat template does not write a message's content as it is, so its "
                "tokens cannot be located; take a model with another template"
            )

        def place(character: int) -> int:
            gone = sum(end - begin - 1 for begin, end in controls if end <= character)
            return start - lost + character - gone

        ranges = []
        for span in spans:
            low, high = map(place, span)
            inside = [i for i, (first, last) in enumerate(offsets) if first < high and last > low]
            ranges.append(range(inside[0], inside[-1] + 1) if inside else range(0))
        return ids, ranges

    def _read(self, prompt: Prompt) -> "_Read":
        """The prompt with marks in the place of control tokens that texts spell out, and its tokens."""
        if isinstance(prompt, str) or self.template is None:
            text = self.render(prompt)
            encoding = self._literal.encode(text)
            content = prompt if isinstance(prompt, str) else "".join(m["content"] for m in prompt[-1:])
            return _Read(text, content, encoding.ids, encoding.offsets)
        check_prompt(prompt)
        marks, messages = self._marked(prompt)
        text = render(self.template, messages, self.specials, source=self.source, date=self.date)
        first, *pieces = re.split(f"([{''.join(marks)}])", text) if marks else [text]
        encoding = self.tokenizer.encode(first, add_special_tokens=False)
        ids, offsets, end = encoding.ids, encoding.offsets, len(first)
        for mark, piece in zip(pieces[::2], pieces[1::2]):
            spelled = self._within.encode(marks[mark], add_special_tokens=False).ids
            ids, offsets, end = ids + spelled, offsets + [(end, end + 1)] * len(spelled), end + 1
            for encoding, start in self._continued(piece):
                ids = ids + encoding.ids
                offsets = offsets + [(end + start + a, end + start + b) for a, b in encoding.offsets]
            end += len(piece)
        return _Read(text, "".join(message["content"] for message in messages[-1:]), ids, offsets)

    def encode_target(self, text: str, *, begins: bool = False) -> list[int]:
        """Token ids of an answer: no special tokens added or recognised.

        An answer continues the prompt, with a space before it where the template writes one there (Llama 2)
        or the text itself has one. `begins`: it is a text of its own, as an encoder-decoder writes.
        """
        check_text(text, "the target")
        if begins:
            return self._literal.encode(text, add_special_tokens=False).ids
        lead = "" if text[:1].isspace() or not text else self._lead
        return self._within.encode(lead + text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text up to the first stop token. Of special tokens it shows the marks of thinking alone."""
        end = next((place for place, token in enumerate(ids) if token in self.stops), len(ids))
        shown = [token for token in ids[:end] if token not in self._hidden]
        text = self.tokenizer.decode(shown, skip_special_tokens=False)
        for spaced in _SPACED if self.tidy else ():
            text = text.replace(spaced, spaced.strip())
        return text

    @functools.cached_property
    def _hidden(self) -> frozenset[int]:
        return frozenset(number for number, token in self._controls.items() if not is_mark(token))

    @functools.cached_property
    def thinks(self) -> bool:
        """Whether the tokenizer has tokens for marks of thinking."""
        return any(is_mark(token.content) for token in self.tokenizer.get_added_tokens_decoder().values())

    def truncate(self, text: str, tokens: int) -> str:
        """The longest prefix, cut where a token ends, that has at most this many tokens."""
        check_text(text, "a text")
        if self.count(text) <= tokens:
            return text
        offsets = self._literal.encode(text, add_special_tokens=False).offsets
        for kept in range(tokens, 0, -1):
            prefix = text[: offsets[kept - 1][1]]
            # The last token may be a part of a character, and the prefix alone may split otherwise.
            if self.count(prefix) <= tokens:
                return prefix
        return ""

    @functools.cached_property
    def _literal(self) -> "Tokenizer":
        """The same tokenizer, blind to control tokens."""
        return _blind(self.tokenizer.to_str())

    @functools.cached_property
    def _within(self) -> "Tokenizer":
        """The same again for what stands inside a text: nothing is put in front."""
        state = parse_json(self.tokenizer.to_str())
        bare = {**state, "normalizer": tokenizer_file.unprefixed(state.get("normalizer"))}
        bare["pre_tokenizer"] = tokenizer_file.unprefixed(state.get("pre_tokenizer"))
        return self._literal if bare == state else _blind(json.dumps(bare))

    @functools.cached_property
    def _lead(self) -> str:
        """What the template writes between the answer's opened turn and the answer: nothing, or a space.
        Found by a turn that is complete, so that spaces count that a tokenizer takes away or adds
        there."""
        before, whole = self._turn
        for lead in ("", " ") if whole[: len(before)] == before else ():
            ids = self._within.encode(f"{lead}b", add_special_tokens=False).ids
            if whole[len(before) : len(before) + len(ids)] == ids:
                return lead
        return ""

    @functools.cached_property
    def _turn(self) -> tuple[list[int], list[int]]:
        """Tokens of a question with the answer's turn opened, and of it with an answer, "b"; nothing where no
        template writes them."""
        if self.template is None:
            return [], []
        question, answer = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
        write = functools.partial(render, self.template, specials=self.specials, source=self.source)
        try:
            texts = write([question]), write([question, answer], opened=False)
        except UserError:
            return [], []
        before, whole = (self.tokenizer.encode(text, add_special_tokens=False).ids for text in texts)
        return before, whole

    @functools.cached_property
    def end(self) -> int | None:
        """The token that a model learns to end an answer with: what the template writes there, else the end
        token of texts; None where there is neither."""
        named = self.specials.get("eos_token")
        plain = self.tokenizer.token_to_id(named) if named else min(self.stops, default=None)
        before, whole = self._turn
        return next((token for token in whole[len(before) :] if token in self.stops), plain)

    def _continued(self, piece: str) -> "list[tuple[Encoding, int]]":
        """Tokens of what a template wrote after a mark: up to a control token, inside a text; and where each
        part begins."""
        encoding = self.tokenizer.encode(piece, add_special_tokens=False)
        spans = zip(encoding.ids, encoding.offsets)
        cut = next((start for token, (start, _) in spans if token in self._controls), len(piece))
        return [
            (self._within.encode(piece[:cut], add_special_tokens=False), 0),
            (self.tokenizer.encode(piece[cut:], add_special_tokens=False), cut),
        ]

    @functools.cached_property
    def _controls(self) -> Mapping[int, str]:
        added = self.tokenizer.get_added_tokens_decoder().items()
        return {number: token.content for number, token in added if token.special}

    @functools.cached_property
    def _spelled(self) -> re.Pattern[str] | None:
        """What a text must hold to be read as a control token; None where a normaliser may make one."""
        added = [t for t in self.tokenizer.get_added_tokens_decoder().values() if t.special]
        if self.tokenizer.normalizer is not None and any(token.normalized for token in added):
            return None
        return re.compile("|".join(re.escape(token.content) for token in added) or "(?!)")

    def _marked(self, prompt: Sequence[Mapping[str, str]]) -> tuple[dict[str, str], list[dict[str, str]]]:
        """Messages with a mark in the place of each control token, and what each mark stands for: private-use
        characters that neither the messages nor the template hold, and that never reach the tokenizer."""
        controls = {text: self.controls(text) for message in prompt for text in message.values()}
        if not any(controls.values()):
            return {}, [dict(message) for message in prompt]
        used = {*"".join([*controls, self.template or "", *self.specials.values()])}
        free = (chr(code) for code in _PRIVATE if chr(code) not in used)
        marks: dict[str, str] = {}  # by what they stand for
        marked: dict[str, str] = {}
        for text, spans in controls.items():
            pieces, end = [], 0
            for start, after in spans:
                name = text[start:after]
                if name not in marks:
                    marks[name] = next(free)
                pieces += [text[end:start], marks[name]]
                end = after
            marked[text] = "".join([*pieces, text[end:]])
        named = [{name: marked[text] for name, text in message.items()} for message in prompt]
        return {mark: name for name, mark in marks.items()}, named

    def controls(self, text: str) -> list[tuple[int, int]]:
        """Where the tokenizer reads control tokens in a text, also where only its normaliser makes them."""
        if self._spelled is not None and not self._spelled.search(text):
            return []
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        unknown = self.specials.get("unk_token", "<unk>")  # what no piece covers reads as this, too
        spans = zip(encoding.ids, encoding.offsets)
        return [
            (start, end)
            for token, (start, end) in spans
            if token in self._controls and (self._controls[token] != unknown or text[start:end] == unknown)
        ]


def _blind(state: str) -> "Tokenizer":
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(state)
    tokenizer.encode_special_tokens = True
    return tokenizer
