"""Feedback: values of answers, which candidate gets which, and which candidates are left out."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbr_jax.base.types import Candidate, Document, Example, UserError
from pbr_jax.corpus.store import Store, build
from pbr_jax.options import LLM
from pbr_jax.pipeline import Answer
from pbr_jax.stages.feedback import Feedbacks, _collect, by_answers, by_likelihood, collect, metric, metric_of
from pbr_jax.stages.rankings import Questions, Rankings, drop_leaks
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


# -- documents that hold the question's own target, which would teach to look for it -----------------------

TITLES = ("rain", "snow", " rain ", "")  # whose third is the first's, and whose last says nothing


def titled(id: str, target: str) -> Example:
    profile = tuple(
        Document(f"{id}{i}", id, f"text {i}", {"text": f"text {i}", "title": title})
        for i, title in enumerate(TITLES)
    )
    return Example(id, id, "q", "q", target, profile, training=True)


ASKED = [titled("a", "rain"), titled("b", "snow"), titled("c", "hail"), titled("d", "rain ")]
KEPT = {"a": [3, 1], "b": [3, 2, 0], "c": [3, 2, 1, 0], "d": [3, 1]}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    build(tmp_path / "store.sqlite", [], "title", ASKED)
    return Store(tmp_path / "store.sqlite")


@pytest.fixture
def ranked(store: Store, tmp_path: Path) -> Rankings:
    """All four documents of each question, last first."""
    lines = [
        {"id": e.id, "rows": store.history(e.user_id)[::-1].tolist(), "scores": [4.0, 3.0, 2.0, 1.0]}
        for e in ASKED
    ]
    (tmp_path / "rankings.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Rankings(tmp_path)


def test_the_questions_own_target_is_left_out_and_the_order_stays(store: Store, ranked: Rankings):
    asked = list(Questions(training=True).read(store))
    found = list(drop_leaks(store, asked, ranked.read(store, asked)))
    wanted = [[f"{id}{i}" for i in places] for id, places in KEPT.items()]
    assert [[c.document.id for c in ranking] for ranking in found] == wanted


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.none() | st.integers(1, 14), st.integers(0, 3))
@settings(deadline=None, max_examples=40)
def test_what_is_learned_from_has_a_target(
    tmp_path_factory: pytest.TempPathFactory, told: list[bool], sample: int | None, seed: int
):
    file = tmp_path_factory.mktemp("some") / "store.sqlite"
    training = [replace(ask(f"{i:02}", "x" if has else None), training=True) for i, has in enumerate(told)]
    build(file, [], "", training)
    asked, known = Questions(training=True, sample=sample, seed=seed, answered=True), Store(file)
    found, having = [one.id for one in asked.read(known)], [e.id for e in training if e.target is not None]
    assert found == sorted(found)
    assert set(found) <= set(having)
    assert asked.count(known) == len(found) == min(len(having), sample or len(having))
    if all(told):  # then it is what was always drawn
        assert found == [one.id for one in replace(asked, answered=False).read(known)]


def test_what_has_no_target_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    some = [replace(ask(id, target), training=True) for id, target in (("a", None), ("b", "x"), ("c", None))]
    build(tmp_path / "store.sqlite", [], "", some)
    Questions(training=True, answered=True).check_known(Store(tmp_path / "store.sqlite"), "target", "purple")
    assert capsys.readouterr().err == (
        "purple learns nothing from 2 of 3 training questions: they have no target, the first is 'a'\n"
    )


def test_the_language_model_is_never_asked_with_it(store: Store, ranked: Rankings, tmp_path: Path):
    shown: list[tuple[str, str]] = []

    def write(examples: Any, rankings: Any) -> list[Written]:
        shown.extend((e.id, c.document.id) for e, ranking in zip(examples, rankings) for c in ranking)
        return [Written([{"role": "user", "content": ""}], len(ranking), (0, 0)) for ranking in rankings]

    def generate(examples: Any, rankings: Any, write: Any, *, on_batch: Any = None) -> list[Answer]:
        return [Answer("hail", prompt, 1) for prompt in write(examples, rankings)]

    folder = tmp_path / "feedback"
    folder.mkdir()
    _collect(
        folder, Questions(training=True), "rouge1", "scaled", store=store, ranked=ranked,
        write=write, generate=lambda tally: generate, answer_format=released("lamp_4").answers,
    )  # fmt: skip
    assert shown == [(id, f"{id}{i}") for id, places in KEPT.items() for i in places]
    found = Feedbacks(folder).read(ASKED)
    rows = {e.id: store.history(e.user_id) for e in ASKED}
    assert [f.rows.tolist() for f in found] == [rows[id][places].tolist() for id, places in KEPT.items()]
    assert [f.values.tolist() for f in found] == [
        [1.0 * (id == "c")] * len(places) for id, places in KEPT.items()
    ]
