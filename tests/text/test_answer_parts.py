"""Answers in parts, against `parse_answer` of the whole output."""

import random

import pytest

from pbr_jax.base.types import UserError
from pbr_jax.tasks import AnswerFormat
from pbr_jax.text.answers import Parts, parse_answer

FORMS = [
    AnswerFormat("generation", (), (), "text", "Review:", "review:"),
    AnswerFormat("generation", (), (), "text", "Abstract:", "title:"),
    AnswerFormat("generation", (), (), "text", "", ""),
    AnswerFormat("generation", (), (), "line", "Tweet:", "tweet:"),
    AnswerFormat("choice", (), (), "line", "", ""),
    AnswerFormat("classification", ("yes", "no"), (), "line", "Answer:", "answer:"),
    AnswerFormat("rating", ("1", "2", "3"), (), "line", "Score:", "score:"),
]
PIECES = (
    "the cat sat on a mat ", "yes", "2 ", "\n", "\n\n", " ", "Here is one:\n", '"quoted"', "Review: ",
    "title: a\n", "Abstract: b", "Tweet:", "<think>", "</think>", "<thinking>\nwhy\n</thinking>\n",
    "Here is my thought process:",
)  # fmt: skip


@pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{form.kind} {form.span} {form.cue}")
def test_parts_join_to_the_answer_or_an_error_says_that_they_do_not(form: AnswerFormat):
    draw, refused, several = random.Random(0), 0, 0
    for _ in range(600):
        output = "".join(draw.choices(PIECES, [9, *[1] * (len(PIECES) - 1)], k=draw.randint(1, 12)))
        answer, sent = parse_answer(form, output), list[str]()
        parts = Parts(form, sent.append)
        for end in range(0, len(output), draw.randint(1, 9)):
            parts.grow(output[:end])
        before = "".join(sent)
        if not answer.startswith(before):
            with pytest.raises(UserError, match="ask without a stream"):
                parts.end(answer)
            refused += 1
            assert output.count("think") + output.count("thought") > 0  # thoughts in the middle of a text
            continue
        parts.end(answer)
        several += len(sent) > 1
        assert "".join(sent) == answer
        assert "" not in sent
    grows = form.kind == "choice" or (form.kind == "generation" and form.span == "text")
    assert (several > 60) == grows
    assert refused < 200


def test_thoughts_at_the_begin_are_not_sent():
    for opening in ("<think>", "Here is my thought process:", "<|channel|>analysis<|message|>"):
        sent = list[str]()
        parts = Parts(FORMS[0], sent.append)
        output = opening + "\n" + "secret " * 40
        for end in range(len(output)):
            parts.grow(output[:end])
        assert sent == []
