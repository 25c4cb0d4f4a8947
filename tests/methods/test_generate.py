"""Slot 6: what the language model is asked."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from pbr_jax.base.types import Example
from pbr_jax.llm import Sampling
from pbr_jax.methods.generate import Auto, Ipa
from pbr_jax.pipeline import GenerateSlot, Tally
from pbr_jax.tasks import released
from pbr_jax.text.prompts import Written

MESSAGES = [{"role": "user", "content": "hello"}]
ASKED = Example("q", "u", "hello", "hello", None)


def slot(method: Ipa, asked: list[Sampling]) -> GenerateSlot:
    def answer(prompts: Sequence[Any], sampling: Sampling, *, on_batch: Callable[..., None]) -> list[str]:
        assert prompts == [MESSAGES]
        asked.append(sampling)
        on_batch([0], ["answer"])
        return ["answer"]

    llm: Any = SimpleNamespace(
        fingerprint="", generate=answer, score=zip, count=len, truncate=zip, render=str, num_tokens=len
    )
    return method.slot(Tally(), llm=llm, max_new_tokens=9, seed=4, stop=("\n",))


def write(examples: Sequence[Example], rankings: Sequence[Any]) -> list[Written]:
    assert (list(examples), list(rankings)) == ([ASKED], [[]])
    return [Written(MESSAGES, 0, (0, 0))]


def test_the_model_is_asked_as_the_config_says_and_the_caller_is_told():
    asked, told = [], []
    method = Ipa(max_new_tokens=9, top_p=0.5, num_beams=3)
    answers = slot(method, asked)([ASKED], [[]], write, on_batch=lambda *p: told.append(p))
    assert [(a.text, a.prompt.messages, a.prompt_tokens) for a in answers] == [("answer", MESSAGES, 1)]
    assert asked == [Sampling(9, top_p=0.5, num_beams=3, seed=4, stop=("\n",))]
    assert told == [([0], ["answer"])]


def test_auto_answers_where_answers_are_scored_and_keeps_its_options():
    assert Auto(max_new_tokens=5, top_p=0.5).resolved(released("lamp_7")) == Ipa(max_new_tokens=5, top_p=0.5)
    assert Auto().resolved(released("personabench")) is None
    assert Ipa().resolved(released("personabench")) == Ipa()
