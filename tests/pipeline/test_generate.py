"""Slot 6: what the language model is asked."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from pbr_jax.config import Config, override
from pbr_jax.data import task
from pbr_jax.index.store import Store
from pbr_jax.pipeline import generate
from pbr_jax.pipeline.pipeline import Generate, Resources

FIELDS = {"generate.max_new_tokens": 9, "generate.top_p": 0.5, "seed": 4}
MESSAGES = [[{"role": "user", "content": "hello"}]]


def slot(fields: dict[str, Any], asked: list[dict[str, Any]]) -> Generate:
    def answer(prompts: Sequence[Any], *, on_batch: Callable[..., None], **options: Any) -> list[str]:
        asked.append(options)
        on_batch([0], ["answer"])
        return ["answer"]

    llm: Any = SimpleNamespace(
        fingerprint="", generate=answer, score=zip, count=len, truncate=zip, render=str, num_tokens=len
    )
    resources = Resources(task("lamp_7"), Store.__new__(Store), llm=llm)  # documents are not looked at here
    return generate.ipa(override(Config(), fields), resources)


def test_the_model_is_asked_as_the_config_says_and_the_caller_is_told():
    asked, told = [], []
    answers = slot({**FIELDS, "generate.num_beams": 3}, asked)(MESSAGES, on_batch=lambda *p: told.append(p))
    assert answers == ["answer"]
    assert asked == [{"max_new_tokens": 9, "temperature": 0.0, "top_p": 0.5, "num_beams": 3, "seed": 4}]
    assert told == [([0], ["answer"])]
