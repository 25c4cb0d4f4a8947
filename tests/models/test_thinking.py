"""Where a model's thinking ends and its answer begins, in the marks of each family."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pbr_jax.models.thinking import after_thinking, is_mark

FAMILIES = {  # what opens, and what closes
    "DeepSeek, Qwen": ("<think>", "</think>"),
    "Claude": ("<thinking>", "</thinking>"),
    "EXAONE": ("<thought>", "</thought>"),
    "Reka": ("<reasoning>", "</reasoning>"),
    "Seed": ("<seed:think>", "</seed:think>"),
    "LongCat": ("<longcat_think>", "</longcat_think>"),
    "Magistral": ("[THINK]", "[/THINK]"),
    "Cohere": ("<|START_THINKING|>", "<|END_THINKING|>"),
    "Sky-T1": ("<|begin_of_thought|>", "<|end_of_thought|>"),
    "control tokens": ("<|think|>", "<|/think|>"),
    "control tokens, named": ("<|thinking_start|>", "<|thinking_end|>"),
    "Solar": ("<|think|>", "<|end|><|begin|>assistant<|content|>"),
    "Apertus": ("<|inner_prefix|>", "<|inner_suffix|>"),
    "Kimi": ("◁think▷", "◁/think▷"),
    "MedGemma": ("<unused94>thought", "<unused95>"),
    "Gemma 4": ("<|channel>thought", "<channel|>"),
    "gpt-oss": ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    "gpt-oss, commentary": ("<|channel|>commentary to=user<|message|>", "<|channel|>final<|message|>"),
}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("between", ["", "\n", "\r\n"])
def test_the_answer_follows_the_closing_mark(name: str, between: str):
    opens, closes = FAMILIES[name]
    thought = f"{between}A 1 would be harsh.{between}"
    for text in (f"{opens}{thought}{closes}", f" \n{opens}{thought}{closes}", f"{thought}{closes}"):
        assert after_thinking(f"{text}{between}4") == "4"
        assert after_thinking(text) == ""
    assert after_thinking(f"Well.\n{opens}{thought}{closes}4") == "4"


@pytest.mark.parametrize("name", FAMILIES)
def test_thinking_without_an_end_has_no_answer(name: str):
    opens, closes = FAMILIES[name]
    for text in (f"{opens}A 1?", f"{opens}\nA 1?", f"Well.\n{opens}A 1?", f"{opens}A{closes}4\n{opens}or 3?"):
        assert after_thinking(text) is None


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Why I love the <think> tag", "Why I love the <think> tag"),
        ("[think] about it", "[think] about it"),
        ("analysis of the <reason> you gave", "analysis of the <reason> you gave"),
        ("Here is my response: tea", "Here is my response: tea"),
        ("<think>a</think>Write </think> at the end", "Write </think> at the end"),
        ("<think>a</think>Tea\n<think>b</think>Milk", "Milk"),
        ("<think>\n\n</think>\n\n</think>\nTea", "Tea"),
        ('<THINK effort="low">a</Think>Tea', "Tea"),
        ("\ufeff<think>a</think>Tea", "Tea"),
        ("analysisWe think of a 1.assistantfinal4", "4"),
        ("analysisWe think of a 1", None),
        ('analysis"Tea" may be a 1.assistantfinal4', "4"),
        ("Here's my thought process: a 1?\n\nHere's my response: 4", "4"),
        ("<think>a</think>\n<answer>\n4\n</answer>", "4"),
        ("<think>a</think><answer>4", "4"),
        ("<|END_THINKING|><|START_RESPONSE|>4<|END_RESPONSE|>", "4"),
        ("<|channel|>final<|message|>4<|return|>", "4"),
        ("<answer>4</answer>", "<answer>4</answer>"),  # there was no thinking
        ("<think>a<think>b</think>c</think>4", "4"),
        ("<think><think>b</think></think>4", "4"),
        ("<thinking>a<reflection>b</reflection>c</thinking>4", "4"),
        ("<think>\n<think>\na</think>4", "4"),  # the template's mark and the model's own
        ("<think>Is <think> a tag?</think>4", "4"),
        ("<think>\nIs <think> a tag?\n</think>4\n<think>\nor 3?", None),
        ("<think\n>a</think >4", "4"),
        ("<think/>4", "4"),
        ("<think />\n\n4", "4"),
        ("<thinking out loud> tea", "<thinking out loud> tea"),
        ("<|channel|>final <|constrain|>json<|message|>4<|return|>", "4"),
        ("<|START_RESPONSE|>4<|END_RESPONSE|>", "4"),
        ("Here are my reasoning steps:\na\n[BEGIN FINAL RESPONSE]\n4\n[END FINAL RESPONSE]", "4"),
        ("Here are my reasoning steps:\na", None),
        ("Here’s my thought process: a\nHere’s my response: 4", "4"),
    ],
)
def test_what_is_thinking_and_what_is_text(text: str, answer: str | None):
    assert after_thinking(text) == answer


@given(st.text(max_size=80).filter(lambda text: "<" not in text and "[" not in text))
@example("a\nanalysis\n")
def test_a_text_without_marks_is_the_answer(text: str):
    assert after_thinking(text) == text


def test_long_texts_are_read_in_one_pass():
    for text in ("\n<think>" * 20_000, "<channel" * 20_000, "x\n</think>" * 20_000, "\n" * 100_000):
        after_thinking(text)  # a pass for each mark would take minutes


def test_control_tokens_that_mark_thinking_are_known():
    marks = [mark for pair in FAMILIES.values() for mark in pair if mark.count("|>") < 2 and " " not in mark]
    assert all(map(is_mark, [*marks, "<|channel|>", "<|message|>"]))
    assert not any(map(is_mark, ["<s>", "</s>", "<|im_end|>", "<unused3>", "[INST]", "<pad>", "<unk>"]))
