"""What is sent to a server, so that it answers as the model in this process would.

Fields beside OpenAI's protocol override the server's own defaults and turn thinking off; what a server
refuses is left out from then on, with a note. The log-probabilities of a prompt's tokens are no part of that
protocol: servers give them in one of three dialects (`DIALECTS`), each for token ids of the served model's
own tokenizer. llama.cpp and TGI give none.
"""

import datetime
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from pbr_jax.base import terminal
from pbr_jax.llm.http.client import Refused
from pbr_jax.llm.http.replies import choice
from pbr_jax.llm.protocol import BadAnswer
from pbr_jax.llm.tokens.templates import without_system
from pbr_jax.options import LLM

Body = dict[str, Any]

NEUTRAL: Mapping[str, Body] = {
    # https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html; SGLang has the same names
    "vllm": {"repetition_penalty": 1.0, "top_k": -1, "min_p": 0.0},
    # https://github.com/ggml-org/llama.cpp/tree/master/tools/server
    "llama_cpp": {
        "repeat_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "top_k": 0,
        "min_p": 0.0,
    },
    "openai": {},  # it refuses fields that it does not know
}
"""By the kind of server (`llm.server`): the fields that make probabilities the model's own."""

_THINKING = "chat_template_kwargs"
_OPENAI = ("api.openai.com", ".openai.azure.com", ".cognitiveservices.azure.com")
_STOP = (
    "[\"'`]stop[\"'`]|(argument|parameter|field|input)s?\\b[^.]*\\bstop\\b"
    "|\\bstop (parameter|sequence|string|word)"
)
_SYSTEM = re.compile(
    "system.{0,9}(role|message|prompt|turn|instruction)|role.{0,9}system|roles must alternate"
)


def server_of(config: LLM) -> str:
    """The kind of server: as the config says, else OpenAI by its address, else vLLM."""
    if config.server != "auto":
        return config.server
    host = urlsplit(config.url).hostname or ""
    return "openai" if config.log_probs in ("none", "echo") and host.endswith(_OPENAI) else "vllm"


class Manner:
    """How a server wants to be asked, which its refusals teach."""

    def __init__(self, config: LLM) -> None:
        server = server_of(config)
        self._extra = config.extra_fields
        self._own: Body = dict(NEUTRAL[server])
        if server != "openai":
            # Templates that print today's date (Llama 3) take it from here.
            day = datetime.date.fromisoformat(config.date)
            self._own[_THINKING] = {"enable_thinking": False, "date_string": f"{day:%d %b %Y}"}
        self._limit = "max_tokens"
        self._no_temperature = False
        self._no_stop = False
        self.merges_system = False

    @property
    def neutral(self) -> Body:
        """The fields of sampling that are sent."""
        return {name: value for name, value in self._own.items() if name != _THINKING}

    def asking(self, given: Body, options: Body, limit: int) -> Body:
        """The request for a text of at most `limit` tokens; `given` has the prompt or the messages."""
        options = dict(options)
        if self.merges_system and "messages" in given:
            given = {**given, "messages": without_system(given["messages"])}
        if self._no_temperature and options.get("temperature") == 0:
            del options["temperature"]
        if self._no_stop:
            options.pop("stop", None)
        own = self._own if "messages" in given else self.neutral
        return self.whole({**given, **own, **options, self._limit: limit})

    def whole(self, body: Body) -> Body:
        """A request with the config's own fields: those that are null are taken out, objects are joined."""
        body = dict(body)
        for name, value in self._extra.items():
            both = isinstance(value, dict) and isinstance(body.get(name), dict)
            body[name] = {**body[name], **value} if both else value
        return {name: value for name, value in body.items() if name not in self._extra or value is not None}

    def learn(self, error: Refused, body: Mapping[str, Any]) -> None:
        """Takes from a refusal that names a field what the server would be asked instead."""
        if error.status not in (400, 422):
            return
        words = error.words.lower()
        sent = {**body, **body.get("sampling_params", {})}
        own = [name for name in self._own if name in sent and name not in self._extra]
        named = [name for name in own if _names(name, words)]
        if _THINKING in own and "enable_thinking" in words:
            named.append(_THINKING)
        if self._limit in body and self._limit == "max_tokens" and "max_completion_tokens" in words:
            self._limit = "max_completion_tokens"
        elif named:
            self._leave_out(named)
        elif body.get("temperature") == 0 and _names("temperature", words):
            if not self._no_temperature:
                _note("the model takes no temperature, so it is not greedy: its answers may vary")
            self._no_temperature = True
        elif "stop" in body and _names("stop", words):
            if not self._no_stop:
                _note("the server refuses stop: answers are cut when they are there, and cost more tokens")
            self._no_stop = True
        elif without_system(messages := body.get("messages") or []) != messages and _SYSTEM.search(words):
            self.merge_system("takes")

    def merge_system(self, what: str) -> None:
        """From now on system turns are sent inside the user's; `what` the server does not do with them."""
        if not self.merges_system:
            _note(f"the server {what} no system turn: it stands in front of the user's, in the same turn")
        self.merges_system = True

    def _leave_out(self, names: list[str]) -> None:
        gone = [name for name in names if name in self._own]
        self._own = {name: value for name, value in self._own.items() if name not in gone}
        if gone:
            _note(f"the server does not take {', '.join(gone)}, left out: its own defaults hold there")


def _names(field: str, words: str) -> bool:
    """Whether an error names a field of the request; of `stop` more than the English word is wanted."""
    return re.search(_STOP if field == "stop" else rf"(?<![\w-]){field}(?![\w-])", words) is not None


def _note(text: str) -> None:
    terminal.err(f"llm: note: {text}")


# -- log-probabilities of a prompt's tokens -------------------------------------------------------------


class Dialect(NamedTuple):
    """A way to ask for the log-probabilities of `ids[first:]`. One token is generated, and not used."""

    name: str  # in `llm.log_probs`
    path: str
    fields: Body  # of the request, that ask for log-probabilities
    entries: tuple[str, ...]  # where the answer lists the tokens
    log_prob: Callable[[Any, int], Any]  # of a token, by its entry; LookupError: it is another token's
    one_more: bool = False  # whether the generated token may be listed too
    beside_v1: bool = False  # with tokens from the last of the prompt on; else all are listed

    def body(self, model: str, ids: Sequence[int], first: int, neutral: Body) -> Body:
        """The request, with `Manner.neutral`."""
        sampling = {"temperature": 0.0, **neutral}
        if self.beside_v1:
            begin = {"input_ids": list(ids), "logprob_start_len": first - 1}
            return {**begin, "sampling_params": {"max_new_tokens": 1, **sampling}, **self.fields}
        return {"model": model, "prompt": list(ids), "max_tokens": 1, **sampling, **self.fields}

    def read(self, answer: Mapping[str, Any], ids: Sequence[int], first: int) -> list[Any]:
        """The log-probabilities in an answer, as the server gives them. BadAnswer: not those of the ids."""
        inner: Any = answer if self.beside_v1 else choice(answer)
        for name in self.entries:
            inner = inner.get(name) if isinstance(inner, dict) else None
        if not isinstance(inner, list):
            raise _wrong(f"the answer has no {'.'.join(self.entries)}")
        size = len(ids) - first + 1 if self.beside_v1 else len(ids)
        if not size <= len(inner) <= size + self.one_more:
            wanted = f"{size} or {size + 1}" if self.one_more else size
            raise _wrong(f"{self.name} gave {len(inner)} log-probabilities, want {wanted}")
        if self.name == "echo" and inner[0]:  # which some write as 0; else places are those behind
            raise _wrong(f"echo gave {inner[0]!r:.40} for the first token, want null")
        start = size - (len(ids) - first)  # of the target's tokens among the entries
        log_probs = []
        for token, entry in zip(ids[first:], inner[start:]):
            try:
                log_probs.append(self.log_prob(entry, token))
            except (LookupError, TypeError, AttributeError):
                raise _wrong(f"{self.name} gave other tokens than {token}, which was sent") from None
        if wrong := [value for value in log_probs if not _is_log_prob(value)]:
            raise _wrong(f"a token's log-probability is {wrong[0]!r:.40}, want a number up to 0")
        return log_probs


def _wrong(what: str) -> BadAnswer:
    advice = "check that llm.log_probs names this server's kind and llm.tokenizer is the served model's"
    return BadAnswer("log_probs", f"{what}; {advice}")


def _is_log_prob(value: Any) -> bool:
    """Whether it is a finite number up to 0, but for rounding; 100,000 of the least still have a sum."""
    return isinstance(value, float | int) and not isinstance(value, bool) and -1e300 <= value <= 1e-6


def _sglang_log_prob(entry: Any, token: int) -> Any:
    if entry[1] not in (token, 0):  # the last id of the vocabulary is reported as 0
        raise LookupError
    return entry[0]


DIALECTS = {
    dialect.name: dialect
    for dialect in (
        # https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html: an entry for each token, the
        # first null: by token id, the token's own and the most probable ones.
        Dialect(
            "vllm",
            "/completions",
            {"prompt_logprobs": 0},
            ("prompt_logprobs",),
            lambda entry, token: entry[str(token)].get("logprob"),
        ),
        # OpenAI's former way, which vLLM and others kept: a number for each token, the first null.
        Dialect(
            "echo",
            "/completions",
            {"echo": True, "logprobs": 1},
            ("logprobs", "token_logprobs"),
            lambda entry, token: entry,
            one_more=True,
        ),
        # https://docs.sglang.io/basic_usage/sampling_params.html: [log-probability, id, text] for each token
        # from `logprob_start_len` on, the first of them null.
        Dialect(
            "sglang",
            "/generate",
            {"return_logprob": True},
            ("meta_info", "input_token_logprobs"),
            _sglang_log_prob,
            beside_v1=True,
        ),
    )
}
"""By the name that `llm.log_probs` has for each."""
