"""Log-probabilities of a prompt's tokens, which servers give in one of three dialects.

- `vllm`: `/completions` with `prompt_logprobs`
  (https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html);
- `echo`: `/completions` with `echo` and `logprobs`, OpenAI's former way, which vLLM and others kept;
- `sglang`: `/generate` with `return_logprob`, beside `/v1`
  (https://docs.sglang.io/basic_usage/sampling_params.html).

All are sent token ids of the served model's own tokenizer. llama.cpp and TGI give no log-probabilities of a
prompt.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pbr_jax.base.types import UserError
from pbr_jax.llm.http.replies import choice


class Dialect(NamedTuple):
    """A way to ask for a prompt's log-probabilities.

    `body(model, ids, first, neutral)` is the request; `read(answer, ids, first, address)` gives the
    log-probabilities of `ids[first:]`. One token is generated, and not used.
    """

    path: str
    body: Callable[[str, list[int], int, Mapping[str, Any]], dict[str, Any]]
    read: Callable[[Mapping[str, Any], tuple[int, ...], int, str], list[Any]]
    beside_v1: bool = False


ADVICE = "check that llm.log_probs names this server's kind and llm.tokenizer is the served model's"


def _vllm_body(model: str, ids: list[int], first: int, neutral: Mapping[str, Any]) -> dict[str, Any]:
    request = {"model": model, "prompt": ids, "max_tokens": 1, "temperature": 0.0}
    return request | {"prompt_logprobs": 0, **neutral}


def _read_vllm(answer: Mapping[str, Any], ids: tuple[int, ...], first: int, address: str) -> list[Any]:
    """An entry for each token, the first null: by token id, the token's own and the most probable ones."""
    entries = _listed(choice(answer, address).get("prompt_logprobs"), "prompt_logprobs", address)
    _same_number(entries, (len(ids),), "vllm", address)
    log_probs = []
    for token, entry in zip(ids[first:], entries[first:]):
        own = entry.get(str(token)) if isinstance(entry, dict) else None
        if not isinstance(own, dict):
            raise UserError(f"{address}: vllm gave other tokens than {token}, which was sent; {ADVICE}")
        log_probs.append(own.get("logprob"))
    return log_probs


def _echo_body(model: str, ids: list[int], first: int, neutral: Mapping[str, Any]) -> dict[str, Any]:
    request = {"model": model, "prompt": ids, "max_tokens": 1, "temperature": 0.0}
    return request | {"echo": True, "logprobs": 1, **neutral}


def _read_echo(answer: Mapping[str, Any], ids: tuple[int, ...], first: int, address: str) -> list[Any]:
    """A number for each token, the first null, and one more where the generated token is listed too."""
    inner = choice(answer, address).get("logprobs")
    given = inner.get("token_logprobs") if isinstance(inner, dict) else None
    entries = _listed(given, "logprobs.token_logprobs", address)
    _same_number(entries, (len(ids), len(ids) + 1), "echo", address)
    if entries[0]:  # which some write as 0; else the places are those of the tokens behind
        raise UserError(f"{address}: echo gave {entries[0]!r:.40} for the first token, want null; {ADVICE}")
    return entries[first : len(ids)]


def _sglang_body(model: str, ids: list[int], first: int, neutral: Mapping[str, Any]) -> dict[str, Any]:
    sampling = {"max_new_tokens": 1, "temperature": 0.0, **neutral}
    start = {"return_logprob": True, "logprob_start_len": first - 1}
    return {"input_ids": ids, "sampling_params": sampling, **start}


def _read_sglang(answer: Mapping[str, Any], ids: tuple[int, ...], first: int, address: str) -> list[Any]:
    """[log-probability, id, text] for each token from `logprob_start_len` on, the first of them null."""
    inner = answer.get("meta_info")
    given = inner.get("input_token_logprobs") if isinstance(inner, dict) else None
    entries = _listed(given, "meta_info.input_token_logprobs", address)
    _same_number(entries, (len(ids) - first + 1,), "sglang", address)
    for token, entry in zip(ids[first:], entries[1:]):
        # The last id of the vocabulary is reported as 0.
        if not isinstance(entry, list) or len(entry) < 2 or entry[1] not in (token, 0):
            raise UserError(f"{address}: sglang gave other tokens than {token}, which was sent; {ADVICE}")
    return [entry[0] for entry in entries[1:]]


def _listed(value: Any, name: str, address: str) -> list[Any]:
    if not isinstance(value, list):
        raise UserError(f"{address}: the answer has no {name}; {ADVICE}")
    return value


def _same_number(entries: Sequence[Any], wanted: Sequence[int], dialect: str, address: str) -> None:
    if len(entries) not in wanted:
        raise UserError(
            f"{address}: {dialect} gave {len(entries)} log-probabilities, "
            f"want {' or '.join(map(str, wanted))}; {ADVICE}"
        )


DIALECTS = {
    "vllm": Dialect("/completions", _vllm_body, _read_vllm),
    "echo": Dialect("/completions", _echo_body, _read_echo),
    "sglang": Dialect("/generate", _sglang_body, _read_sglang, beside_v1=True),
}
"""By the name that `llm.log_probs` has for each."""
