"""Feedback: values of answers, and which candidate gets which."""

import numpy as np
import pytest

from pbr_jax.base.types import Candidate, Document, Example, UserError
from pbr_jax.options import LLM
from pbr_jax.pipeline import Answer
from pbr_jax.stages.feedback import by_answers, by_likelihood, collect, metric, metric_of
from pbr_jax.system import System
from pbr_jax.tasks import released
from pbr_jax.text.prompts import Written


def value(task: str, answer: str, target: str, name: str = "auto") -> float:
    of = released(task)
    return float(metric(metric_of(of, name), of.labels)([answer], [target])[0])


def test_the_tasks_first_metric_is_the_value():
    assert value("lamp_2", "comedy", "comedy") == 1.0
    assert value("lamp_2", "action", "comedy") == 0.0
    assert value("lamp_7", "a b c", "a b d") == pytest.approx(2 / 3)
    assert value("lamp_7", "c b a", "a b c", "rougeL") == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("answer", "target", "wanted"),
    [("5", "5", 1.0), ("4", "5", 0.75), ("1", "5", 0.0), ("1", "3", 0.0), ("2", "3", 0.5), ("x", "3", 0.0),
     ("9", "5", 0.0), ("50", "5", 0.0)],
)  # fmt: skip
def test_errors_of_ratings_are_values_from_0_to_1(answer, target, wanted):
    assert value("lamp_3", answer, target) == pytest.approx(wanted)


def test_errors_of_ratings_can_count_as_they_are():
    values = metric("mae", released("lamp_3").labels, "negated")(["5", "4", "1", "9"], ["5", "5", "5", "3"])
    assert values.tolist() == [0.0, -1.0, -4.0, -6.0]


def test_a_metric_that_single_answers_do_not_have_is_refused():
    for name in ("f1_macro", "rmse"):
        with pytest.raises(UserError, match="which a single answer does not have"):
            metric(name, released("lamp_3").labels)
    with pytest.raises(UserError, match="no metric of answers is named"):
        metric("bleu", ())


def refuse(*_, **__):
    raise AssertionError("asked")


def ask(id: str, target: str | None = "yes") -> Example:
    return Example(id=id, user_id=id, query=id, input=id, target=target)


def candidate(row: int) -> Candidate:
    return Candidate(Document(str(row), "u", f"text {row}"), 0.0, row)


def test_every_candidate_is_asked_alone_and_gets_its_own_value():
    asked = []

    def write(examples, rankings):
        asked.extend((e.id, [c.row for c in ranking]) for e, ranking in zip(examples, rankings))
        return [
            Written([{"role": "user", "content": str(ranking[0].row)}], 1, (0, 0)) for ranking in rankings
        ]

    def generate(examples, rankings, write, *, on_batch=None):
        written = write(examples, rankings)
        texts = ["yes" if int(prompt.messages[0]["content"]) % 2 else "no" for prompt in written]
        return [Answer(text, prompt, 1) for text, prompt in zip(texts, written, strict=True)]

    examples = [ask("a"), ask("none"), ask("b")]
    rankings = [[candidate(7), candidate(4)], [], [candidate(5)]]
    parts = {"write": write, "generate": lambda tally: generate, "answer_format": released("lamp_7").answers}
    found = collect(by_answers(System(parts), metric("rouge1", ())), examples, rankings)
    assert asked == [("a", [7]), ("a", [4]), ("b", [5])]
    assert [f.rows.tolist() for f in found] == [[7, 4], [], [5]]
    assert [f.values.tolist() for f in found] == [[1.0, 0.0], [], [1.0]]
    assert all(f.values.dtype == np.float32 for f in found)


def test_a_training_question_without_target_is_named():
    with pytest.raises(UserError, match="training question 'b' has no target"):
        collect(refuse, [ask("a"), ask("b", None)], [[], []])


def test_likelihood_is_the_mean_log_probability_of_the_targets_tokens(tiny_models):
    """Against the model's logits, token by token, behind the prompt that each candidate alone makes."""
    import torch
    import transformers

    import pbr_jax.llm

    folder = tiny_models["llm.model"]
    llm = pbr_jax.llm.load(LLM(model=folder))

    def write(examples, rankings):
        told = [f"{e.query} {ranking[0].document.text}" for e, ranking in zip(examples, rankings)]
        return [Written([{"role": "user", "content": text}], 1, (0, 0)) for text in told]

    examples = [ask("a", "tea"), ask("b", "so many cats")]
    rankings = [[candidate(0), candidate(1)], [candidate(2)]]
    found = collect(by_likelihood(System({"write": write, "llm": llm})), examples, rankings)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=f"{folder}/tokenizer.json")

    def encoded(text):
        return tokenizer.encode(text, add_special_tokens=False)

    for example, ranking, feedback in zip(examples, rankings, found, strict=True):
        for one, value in zip(ranking, feedback.values, strict=True):
            ((written,),) = [write([example], [[one]])]
            prompt = encoded(llm.render(written.messages))
            target = encoded(str(example.target))
            with torch.no_grad():
                logits = model(torch.tensor([prompt + target])).logits[0].log_softmax(-1)
            places = range(len(prompt) - 1, len(prompt) + len(target) - 1)
            wanted = np.mean([float(logits[at, token]) for at, token in zip(places, target, strict=True)])
            assert value == pytest.approx(wanted, abs=1e-4)
    assert found[0].values[0] != found[0].values[1]
