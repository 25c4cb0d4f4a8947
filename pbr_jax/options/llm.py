"""Options of the language models: the one that answers, the one that selects, and the judge."""

import dataclasses
import datetime
import json
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from pbr_jax.base.types import UserError
from pbr_jax.options.base import IDLE, Options

_ASKED = frozenset(
    {"model", "messages", "prompt", "input_ids", "max_tokens", "max_completion_tokens", "temperature",
     "top_p", "seed", "n", "stop", "use_beam_search", "stream", "echo", "logprobs", "prompt_logprobs",
     "sampling_params", "return_logprob", "logprob_start_len"}
)  # fmt: skip
"""Fields of a request that `llm.extra_body` must not set."""


@dataclass(frozen=True, kw_only=True)
class LLM(Options):
    """The frozen language model that answers."""

    section: ClassVar[str] = "llm"

    # embedded default model, or a local folder or GGUF file. http: the model's name on the server
    model: str = field(default="SmolLM2-135M-Instruct", metadata=IDLE)
    # jax: the model runs in this process; http: it runs on a server with an OpenAI-compatible API
    backend: Literal["jax", "http"] = "jax"
    dtype: Literal["float32", "bfloat16"] = "float32"  # type of the weights and activations
    batch_size: int = 32  # number of prompts decoded together
    # maximum length of prompt and answer together, in tokens. None: as the model specifies
    context: int | None = field(default=None, metadata=IDLE)
    date: str = "2024-07-26"  # date that chat templates show as today's (Llama 3 prints it), as YYYY-MM-DD
    # LoRA adapter for the model: a folder saved by PEFT. http: the adapter's name on the server. "": none
    adapter: str = field(default="", metadata=IDLE)
    # what happens to a prompt longer than the context. refuse: an error, raised after all other prompts are
    # answered; cut: its middle is removed
    overflow: Literal["refuse", "cut"] = "refuse"
    tensor_parallel: int = 1  # number of devices over which the weights of every layer are split
    # whether answers come only from the cache. An answer that is not cached is then an error
    offline: bool = field(default=False, metadata=IDLE)
    url: str = ""  # http: base URL of the server's API, such as http://127.0.0.1:8000/v1
    # http: tokenizer of the served model, a folder or GGUF file. "": token counts are estimates
    tokenizer: str = ""
    # http: the API by which the server returns the log-probabilities of a prompt's tokens. none: it returns
    # none
    log_probs: Literal["none", "vllm", "echo", "sglang"] = "none"
    # http: whose extra request fields turn off thinking and the server's defaults. auto: none for OpenAI's
    # own address, otherwise vLLM's, which SGLang also accepts; refused fields are left out
    server: Literal["auto", "vllm", "llama_cpp", "openai"] = "auto"
    # http: JSON object with fields for every request. A value of null removes a field. "": none
    extra_body: str = ""
    # http: price of a million prompt tokens, in any currency. results.json then includes the cost of the run
    price_prompt: float | None = field(default=None, metadata=IDLE)
    # http: price of a million generated tokens, in any currency
    price_completion: float | None = field(default=None, metadata=IDLE)
    # http: environment variable that holds the API key, if there is one
    key_variable: str = field(default="OPENAI_API_KEY", metadata=IDLE)
    # http: maximum number of requests in progress at a time
    concurrency: int = field(default=8, metadata=IDLE)
    # http: time limit of one attempt, in seconds, up to the last byte of the response
    timeout: float = field(default=120.0, metadata=IDLE)
    # http: how often a request is repeated after a temporary failure
    retries: int = field(default=6, metadata=IDLE)

    def check(self) -> None:
        self.at_least("batch_size", 1)
        self.at_least("context", 2)
        self.at_least("tensor_parallel", 1)
        self.at_least("concurrency", 1)
        self.at_least("timeout", 0.001)
        self.at_least("retries", 0)
        self.at_least("price_prompt", 0)
        try:
            datetime.date.fromisoformat(self.date)
        except ValueError:
            raise UserError(f"{self.named('date')} is {self.date!r}, want a day as YYYY-MM-DD") from None
        self.at_least("price_completion", 0)
        taken = sorted(set(self.extra_fields) & _ASKED)
        if taken:
            raise UserError(
                f"{self.named('extra_body')} has {', '.join(taken)}, which other options say; take it out"
            )
        if self.backend == "http" and not self.url.startswith(("http://", "https://")):
            raise UserError(
                f"{self.named('url')} is {self.url!r}, want the address of the server's API, such as "
                "http://127.0.0.1:8000/v1"
            )
        if self.backend == "http" and self.overflow == "cut":
            raise UserError(
                f"{self.named('overflow')} is cut, and a server is sent texts, not tokens; lower "
                "prompt.max_tokens"
            )

    @property
    def extra_fields(self) -> dict[str, Any]:
        """The JSON object in `extra_body`. Raises UserError if it is none."""
        try:
            fields = json.loads(self.extra_body or "{}")
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict):
            raise UserError(
                f"{self.named('extra_body')} is {self.extra_body!r:.80}, want a JSON object, such as "
                '{"reasoning_effort": "low"}'
            )
        return fields

    @property
    def can_score(self) -> bool:
        """Whether the backend can compute the likelihood of a given answer."""
        return self.backend == "jax" or (self.log_probs != "none" and bool(self.tokenizer))

    def check_scoring(self, who: str) -> None:
        """Raises UserError if the backend cannot score answers. `who`: what needs it, for the message."""
        if not self.can_score:
            raise UserError(
                f"{who} with a model on a server needs {self.named('log_probs')} (vllm, echo or sglang) and "
                f"{self.named('tokenizer')} (the served model's folder or GGUF file); set both"
            )

    def check_beams(self, num_beams: int) -> None:
        """Raises UserError for a beam search that the server does not support."""
        if self.backend == "http" and num_beams > 1 and self.log_probs != "vllm":
            raise UserError(
                f"generate.num_beams is {num_beams}, but of servers only vLLM searches beams; "
                f"set it to 1, or {self.named('log_probs')} to vllm if the server is one"
            )


@dataclass(frozen=True, kw_only=True)
class OtherLLM(LLM):
    """A language model in addition to the one that answers."""

    @property
    def plain(self) -> LLM:
        """The same options as `LLM`, so that a model with two roles is loaded only once."""
        return LLM(**{item.name: getattr(self, item.name) for item in dataclasses.fields(self)})


@dataclass(frozen=True, kw_only=True)
class SelectLLM(OtherLLM):
    """The language model that selects documents, if it is not the one that answers."""

    section: ClassVar[str] = "select.llm"


@dataclass(frozen=True, kw_only=True)
class JudgeLLM(OtherLLM):
    """The language model that grades answers, if it is not the model of the run."""

    section: ClassVar[str] = "eval.judge_llm"
