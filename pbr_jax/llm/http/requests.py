"""What is sent to a server, so that it answers as the model in this process would.

Fields beside OpenAI's protocol override the server's own defaults and turn thinking off; what a server
refuses is left out from then on, with a note.
"""

import datetime
import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from pbr_jax.base import terminal
from pbr_jax.llm.http.client import Refused
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
_OPENAI = ("api.openai.com", ".openai.azure.com")
_UNKNOWN = (
    "unknown", "unrecognized", "unsupported", "not supported", "unexpected", "extra inputs",
    "extra fields", "extra_forbidden", "not permitted", "not allowed", "additional propert",
)  # fmt: skip


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

    @property
    def neutral(self) -> Body:
        """The fields of sampling that are sent."""
        return {name: value for name, value in self._own.items() if name != _THINKING}

    def asking(self, given: Body, options: Body, limit: int) -> Body:
        """The request for a text of at most `limit` tokens; `given` has the prompt or the messages."""
        options = dict(options)
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
        """Takes from a refusal of a request what the server would be asked instead."""
        if error.status not in (400, 422):
            return
        words = error.words.lower()
        sent = {**body, **body.get("sampling_params", {})}
        own = [name for name in self._own if name in sent and name not in self._extra]
        named = [name for name in own if name in words or (name == _THINKING and "enable_thinking" in words)]
        if self._limit in body and self._limit == "max_tokens" and "max_completion_tokens" in words:
            self._limit = "max_completion_tokens"
        elif named:
            self._leave_out(named)
        elif body.get("temperature") == 0 and "temperature" in words:
            if not self._no_temperature:
                _note("the model takes no temperature, so it is not greedy: its answers may vary")
            self._no_temperature = True
        elif "stop" in body and re.search(r"\bstop\b", words):
            if not self._no_stop:
                _note("the server refuses stop: answers are cut when they are there, and cost more tokens")
            self._no_stop = True
        elif any(sign in words for sign in _UNKNOWN):
            self._leave_out(own)

    def _leave_out(self, names: list[str]) -> None:
        gone = [name for name in names if name in self._own]
        self._own = {name: value for name, value in self._own.items() if name not in gone}
        if gone:
            _note(f"the server does not take {', '.join(gone)}, left out: its own defaults hold there")


def identity(config: LLM) -> list[Any]:
    """What of a config's requests changes their answers, beside the sampling."""
    return [config.server, config.date, json.dumps(config.extra_fields, sort_keys=True)]


def _note(text: str) -> None:
    terminal.err(f"llm: note: {text}")
