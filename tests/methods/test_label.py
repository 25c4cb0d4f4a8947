"""Answers by probability against torch, closed forms, and a run that is interrupted."""

import json
import math
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pbr_jax import Config, run
from pbr_jax.base.types import Example, UserError
from pbr_jax.config import override
from pbr_jax.experiment.plan import Plan
from pbr_jax.llm.cache import Cached
from pbr_jax.llm.engine.jax_backend import JaxLLM
from pbr_jax.llm.protocol import Score
from pbr_jax.methods.generate import Ipa, Label
from pbr_jax.pipeline import Answer, Tally
from pbr_jax.tasks import released
from pbr_jax.text.answers import parse_answer
from pbr_jax.text.prompts import Written

torch: Any = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")

LABELLED = ("lamp_1", "lamp_2", "lamp_3")
ASKED = {"ann": "fine", "bob": "a longer one, and better", "cyd": "bad"}
DOCUMENTS = {"ann": 2, "bob": 0, "cyd": 1}
PROMPT = Written(
    [{"role": "system", "content": "s"}, {"role": "user", "content": "review: x\nscore:"}], 0, (0, 9)
)
EXAMPLE = Example("q", "u", "x", "review: x", None)


@pytest.fixture
def config(tiny_models, tmp_path: Path) -> Callable[..., Config]:
    """A LaMP-3 run over three users, one of them without a history."""

    def made(**fields: Any) -> Config:
        record = {"text": "Broke at once.", "score": "1"}
        questions = [
            {"id": user, "input": f"What is the score of the following review? review: {text}",
             "profile": [{"id": f"{user}{i}", **record} for i in range(DOCUMENTS[user])]}
            for user, text in ASKED.items()
        ]  # fmt: skip
        golds = [{"id": user, "output": "2"} for user in ASKED]
        (tmp_path / "dev_questions.json").write_text(json.dumps(questions))
        (tmp_path / "dev_outputs.json").write_text(json.dumps({"task": "LaMP_3", "golds": golds}))
        place = {"benchmark.name": "lamp_3", "benchmark.root": str(tmp_path), "retrieve.method": "recency"}
        place |= {"llm.model": tiny_models["llm.model"], "prompt.max_tokens": 900, "eval.resamples": 50}
        return override(Config(), {**place, "generate.method": "label", **fields})

    return made


@pytest.fixture(scope="module")
def log_p(tiny_models) -> Callable[[Sequence[dict[str, str]], str], float]:
    """log p(label | messages), token by token, by torch."""
    from tokenizers import Tokenizer

    reference = transformers.LlamaForCausalLM.from_pretrained(tiny_models["llm.model"]).eval()
    tokenizer = Tokenizer.from_file(str(Path(tiny_models["llm.model"]) / "tokenizer.json"))

    def found(messages: Sequence[dict[str, str]], label: str) -> float:
        first = tokenizer.encode("\n\n".join(message["content"] for message in messages)).ids
        second = tokenizer.encode(label).ids
        with torch.no_grad():
            logits = reference(torch.tensor([first + second])).logits[0].double()
        chosen = torch.log_softmax(logits, -1)[range(len(first) - 1, len(first + second) - 1), second]
        return float(chosen.sum())

    return found


def softmax(values: Sequence[float]) -> np.ndarray:
    powers = np.exp(np.array(values) - max(values))
    return powers / powers.sum()


def test_ratings_are_answered_as_torch_has_them(config, log_p, tmp_path: Path):
    results = run(config(**{"generate.calibration": "content_free"}), tmp_path / "out")
    texts = [json.loads(text) for text in (tmp_path / "out" / "texts.jsonl").read_text().splitlines()]
    for record, seen in zip(results.records(), texts, strict=True):
        asked = ASKED[record["user_id"]]
        assert record["prompt_documents"] == DOCUMENTS[record["user_id"]]
        assert asked in seen["prompt"][-1]["content"]
        empty = [{**m, "content": m["content"].replace(asked, "N/A")} for m in seen["prompt"]]
        values = [log_p(seen["prompt"], label) - log_p(empty, label) for label in "12345"]
        wanted = dict(zip("12345", softmax(values)))
        assert record["probabilities"] == pytest.approx(wanted, rel=1e-3)
        assert record["prediction"] == max(wanted, key=lambda label: wanted[label])
        expected = sum(int(label) * share for label, share in wanted.items())
        assert record["expected"] == pytest.approx(expected, rel=1e-3)
        assert record["metrics"]["expected_mae"] == pytest.approx(abs(expected - 2), rel=1e-2)
    predicted = [record["prediction"] for record in results.records()]
    assert results.values["answers"] == {label: predicted.count(label) / 3 for label in "12345"}


@pytest.mark.parametrize("name", ["lamp_1", "lamp_2"])
def test_labels_of_several_tokens_are_weighed_as_torch_weighs_them(tiny_models, log_p, name: str):
    slot = Label().slot(Tally(), llm=JaxLLM(Path(tiny_models["llm.model"])), labels=released(name).labels)
    [found] = slot([EXAMPLE], [[]], lambda examples, rankings: [PROMPT])
    values = [log_p(PROMPT.messages, label) for label in released(name).labels]
    assert list((found.probabilities or {}).values()) == pytest.approx(softmax(values), rel=1e-3)
    assert found.text == released(name).labels[int(np.argmax(values))]


def test_without_documents_every_question_is_calibrated_by_the_wording_alone(config, log_p, tmp_path: Path):
    fields = {"generate.calibration": "content_free_no_documents", "generate.normalize": "tokens"}
    results = run(config(**fields), tmp_path / "out")
    texts = [json.loads(text) for text in (tmp_path / "out" / "texts.jsonl").read_text().splitlines()]
    bare = next(seen["prompt"] for seen in texts if not seen["documents"])
    empty = [{**m, "content": m["content"].replace(ASKED["bob"], "N/A")} for m in bare]
    for record, seen in zip(results.records(), texts, strict=True):
        values = [log_p(seen["prompt"], label) - log_p(empty, label) for label in "12345"]
        assert list(record["probabilities"].values()) == pytest.approx(softmax(values), rel=1e-3)


def answered(method: Label, plain: Sequence[Score], empty: Sequence[Score], name: str = "lamp_1") -> Answer:
    """The answer of a model that gives these scores to the labels of the prompt, and of that without x."""

    def score(prompts: Sequence[Any], targets: Sequence[str], *, on_batch: Any) -> list[Score]:
        places = map(released(name).labels.index, targets)
        return [
            (empty if "N/A" in prompt[-1]["content"] else plain)[place]
            for prompt, place in zip(prompts, places, strict=True)
        ]

    llm: Any = SimpleNamespace(
        fingerprint="", generate=zip, score=score, count=len, truncate=zip, render=str, num_tokens=len
    )
    slot = method.slot(Tally(), llm=llm, labels=released(name).labels)
    return slot([EXAMPLE], [[]], lambda examples, rankings: [PROMPT for _ in examples])[0]


def test_calibration_divides_by_what_the_model_says_of_nothing():
    plain = [Score(math.log(0.6), 3), Score(math.log(0.3), 3)]
    empty = [Score(math.log(0.8), 3), Score(math.log(0.1), 3)]
    found = answered(Label(), plain, empty)
    assert (found.text, found.probabilities) == ("[1]", pytest.approx({"[1]": 2 / 3, "[2]": 1 / 3}))
    found = answered(Label(calibration="content_free"), plain, empty)
    assert (found.text, found.probabilities) == ("[2]", pytest.approx({"[1]": 0.2, "[2]": 0.8}))


def test_normalising_compares_means_of_tokens():
    plain = [Score(-2.0, 1), Score(-6.0, 4)]
    assert answered(Label(), plain, plain).text == "[1]"
    found = answered(Label(normalize="tokens"), plain, plain)
    shares = softmax([-2.0, -1.5])
    assert (found.text, found.probabilities) == ("[2]", pytest.approx(dict(zip(("[1]", "[2]"), shares))))
    both = Label(normalize="tokens", calibration="content_free")
    shares = softmax([-2.0 + 0.3, -1.5 + 2.0])
    found = answered(both, plain, [Score(-0.3, 1), Score(-8.0, 4)])
    assert list(found.probabilities.values()) == pytest.approx(shares)  # pyright: ignore


@pytest.mark.parametrize("name", LABELLED)
def test_every_label_is_its_own_prediction(name: str):
    for label in released(name).labels:
        assert parse_answer(released(name).answers, label) == label


def test_no_examples_have_no_answers(tiny_models):
    llm = JaxLLM(Path(tiny_models["llm.model"]))
    slot = Label(calibration="content_free").slot(Tally(), llm=llm, labels=released("lamp_3").labels)
    assert slot([], [], lambda examples, rankings: []) == []


@pytest.mark.long
def test_an_interrupted_run_asks_only_for_what_is_missing(tiny_models, tmp_path: Path):
    """Scores are kept as they come; whoever watches is told of every answer once."""
    count = 30  # two of the windows that are scored at a time
    examples = [Example(f"q{i}", f"u{i}", f"no. {i}", f"review: no. {i}", None) for i in range(count)]

    def write(examples: Sequence[Example], _: Any) -> list[Written]:
        return [
            Written([{"role": "user", "content": f"{e.input}\nscore:"}], 0, (0, len(e.input)))
            for e in examples
        ]

    class Stop(Exception):
        pass

    def stop(places: Sequence[int], texts: Sequence[str]) -> None:
        if places:
            raise Stop

    def slot(file: str) -> Any:
        llm = Cached(JaxLLM(Path(tiny_models["llm.model"])), tmp_path / file)
        return Label().slot(Tally(), llm=llm, labels=released("lamp_3").labels)

    def kept() -> int:
        with closing(sqlite3.connect(tmp_path / "killed")) as connection:
            return connection.execute("SELECT count(*) FROM answers").fetchone()[0]

    told: dict[int, str] = {}

    def tell(places: Sequence[int], texts: Sequence[str]) -> None:
        assert not told.keys() & set(places)
        told.update(zip(places, texts, strict=True))

    whole = slot("whole")(examples, [[]] * count, write, on_batch=tell)
    assert [told[place] for place in range(count)] == [answer.text for answer in whole]
    with pytest.raises(Stop):
        slot("killed")(examples, [[]] * count, write, on_batch=stop)
    assert 0 < kept() < count * 5
    before = kept()
    again = slot("killed")(examples, [[]] * count, write)
    assert kept() == count * 5 > before
    for one, other in zip(again, whole, strict=True):
        assert one.text == other.text
        assert one.probabilities == pytest.approx(other.probabilities, rel=1e-4)


def test_a_task_without_labels_is_refused_before_any_work(write_tweets, tiny_models):
    place = {"benchmark.name": "lamp_7", "benchmark.root": str(write_tweets({"ann": ["tea"]}))}
    with pytest.raises(UserError, match=r"lamp_7 has none; take generate\.method ipa"):
        Plan(override(Config(), {**place, **tiny_models, "generate.method": "label"}))


def test_a_server_that_cannot_score_is_refused_before_any_work(config, tiny_models):
    server = {"llm.backend": "http", "llm.url": "http://127.0.0.1:9/v1", "llm.log_probs": "vllm"}
    with pytest.raises(UserError, match=r"generate.method label .* needs llm.log_probs .* and llm.tokenizer"):
        Plan(config(**server))
    Plan(config(**server, **{"llm.tokenizer": tiny_models["llm.model"]}))


@pytest.mark.parametrize(
    ("field", "value", "usual"),
    [
        ("temperature", 0.7, "0.0"),
        ("num_beams", 3, "1"),
        ("max_new_tokens", 4, "none"),
        ("top_p", 0.5, "1.0"),
    ],
)
def test_options_of_decoding_are_refused(field: str, value: float, usual: str):
    options: Any = {field: value}
    with pytest.raises(
        UserError, match=f"generate.{field} is {value}.* decodes nothing; leave it at {usual}"
    ):
        Label(**options)
    with pytest.raises(UserError, match="decodes nothing"):
        override(Config(generate=Ipa(**options)), {"generate.method": "label"})


@pytest.mark.parametrize("field", ["normalize", "calibration"])
def test_unknown_choices_are_refused(field: str):
    with pytest.raises(UserError, match=rf"generate\.{field} is 'perhaps', want one of none, "):
        override(Config(), {"generate.method": "label", f"generate.{field}": "perhaps"})
