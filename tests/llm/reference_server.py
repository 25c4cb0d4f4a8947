"""A server whose model, tokenizer, template and decoding are those of transformers: nothing of it is ours.

As real servers do, it lets the model think and decodes by defaults of its own unless told otherwise, and its
log-probabilities are those that it would sample from.
"""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import transformers
from servers import Json, Server, in_dialect

DEFAULTS: Mapping[str, float] = {"repetition_penalty": 1.7, "top_k": 3, "min_p": 0.2, "temperature": 0.8}
"""What holds where a request is silent."""


class Reference:
    """A model of transformers behind OpenAI's protocol and SGLang's."""

    def __init__(self, model: Any, tokenizer: Any, defaults: Mapping[str, float] = DEFAULTS) -> None:
        self._model, self._tokenizer, self._defaults = model, tokenizer, defaults
        self._one_at_a_time = threading.Lock()

    def serve(self) -> Server:
        """The server, to be entered."""
        return Server(self._answer)

    def _answer(self, path: str, request: Json) -> tuple[int, Json]:
        said = {**self._defaults, **request, **request.get("sampling_params", {})}
        ids = request.get("input_ids") or request.get("prompt")
        with self._one_at_a_time, torch.no_grad():
            if isinstance(ids, list):
                return 200, in_dialect(path, request, self._log_probs(ids, said), {}, -1.0)
            is_chat = path == "/v1/chat/completions"
            ids = self._rendered(request) if is_chat else self._tokenizer.encode(ids)
            return 200, self._text(ids, said, is_chat)

    def _rendered(self, request: Json) -> list[int]:
        told = {"enable_thinking": True, **request.get("chat_template_kwargs", {})}
        text = self._tokenizer.apply_chat_template(
            request["messages"], tokenize=False, add_generation_prompt=True, **told
        )
        return self._tokenizer.encode(text, add_special_tokens=False)

    def _text(self, ids: Sequence[int], said: Mapping[str, Any], is_chat: bool) -> Json:
        sampled = {"do_sample": True, "temperature": said["temperature"]} if said["temperature"] else {}
        whole = self._model.generate(
            torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=said["max_tokens"], repetition_penalty=said["repetition_penalty"],
            pad_token_id=0, **{"do_sample": False, **sampled},
        )[0].tolist()  # fmt: skip
        new = whole[len(ids) :]
        text = self._tokenizer.decode(new, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        given = {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}
        ends = self._model.generation_config.eos_token_id
        stopped = new[-1] in (ends if isinstance(ends, list) else [ends])
        usage = {"prompt_tokens": len(ids), "completion_tokens": len(new)}
        return {"choices": [{**given, "finish_reason": "stop" if stopped else "length"}], "usage": usage}

    def _log_probs(self, ids: Sequence[int], said: Mapping[str, Any]) -> list[float]:
        """Each token's by the distribution that the server would draw it from, the first one's 0."""
        row: Any = torch.tensor([ids])
        logits = self._model(row).logits[0]
        if said["repetition_penalty"] != 1:
            punish = transformers.RepetitionPenaltyLogitsProcessor(float(said["repetition_penalty"]))
            punished: Any = [punish(row[:, : i + 1], logits[None, i])[0] for i in range(len(ids))]
            logits = torch.stack(punished)
        if said["temperature"]:
            logits = logits / said["temperature"]
        found = logits.log_softmax(-1)
        return [0.0, *(float(found[i, token]) for i, token in enumerate(ids[1:]))]
