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

from pbr_jax import Config, ask, run
from pbr_jax.config import override
from pbr_jax.data import TASKS, task
from pbr_jax.llm.cache import Cached
from pbr_jax.llm.jax_backend import JaxLLM
from pbr_jax.llm.protocol import Score
from pbr_jax.methods.generate import Ipa, Label
from pbr_jax.pipeline import Answer, Tally
from pbr_jax.plan import Plan
from pbr_jax.text import prompts
from pbr_jax.text.prompts import Written
from pbr_jax.types import Example, UserError

torch: Any = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")

RECORDS: dict[str, dict[str, str]] = {
    "lamp_1": {"title": "On trees", "abstract": "Trees grow."},
    "lamp_2": {"tag": "comedy", "description": "Two friends."},
    "lamp_3": {"text": "Broke at once.", "score": "1"},
}
INPUTS = {
    "lamp_1": 'For an author with the title "ASKED", which reference is related? Just answer with [1] or [2] '
    'without explanation. [1]: "ASKED" [2]: "ASKED"',
    "lamp_2": "Which tag? tags: [comedy, action] description: ASKED",
    "lamp_3": "What is the score of the following review? review: ASKED",
}
ASKED = {"ann": "fine", "bob": "a longer one, and better", "cyd": "bad"}
DOCUMENTS = {"ann": 2, "bob": 0, "cyd": 1}


@pytest.fixture
def config(tiny_models, tmp_path: Path) -> Callable[..., Config]:
    """A run over three users, one of them without a history."""

    def made(name: str, **fields: Any) -> Config:
        root = tmp_path / name
        root.mkdir(exist_ok=True)
        questions = [
            {"id": user, "input": INPUTS[name].replace("ASKED", text),
             "profile": [{"id": f"{user}{i}", **RECORDS[name]} for i in range(DOCUMENTS[user])]}
            for user, text in ASKED.items()
        ]  # fmt: skip
        golds = [{"id": user, "output": TASKS[name].labels[1]} for user in ASKED]
        (root / "dev_questions.json").write_text(json.dumps(questions))
        told = json.dumps({"task": name.replace("lamp", "LaMP"), "golds": golds})
        (root / "dev_outputs.json").write_text(told)
        place = {"benchmark.name": name, "benchmark.root": str(root), "retrieve.method": "recency"}
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


@pytest.mark.parametrize(
    ("name", "calibration"),
    [("lamp_1", "content_free"), ("lamp_2", "none"), ("lamp_3", "none"), ("lamp_3", "content_free")],
)
def test_the_answer_is_the_most_probable_label_as_torch_has_it(
    config, log_p, tmp_path: Path, name: str, calibration: str
):
    labels = TASKS[name].labels
    results = run(config(name, **{"generate.calibration": calibration}), tmp_path / "out")
    texts = [json.loads(text) for text in (tmp_path / "out" / "texts.jsonl").read_text().splitlines()]
    for record, seen in zip(results.predictions(), texts, strict=True):
        assert record["prompt_documents"] == DOCUMENTS[record["user_id"]]
        values = [log_p(seen["prompt"], label) for label in labels]
        if calibration == "content_free":
            asked = ASKED[record["user_id"]]
            assert asked in seen["prompt"][-1]["content"]
            empty = [{**m, "content": m["content"].replace(asked, "N/A")} for m in seen["prompt"]]
            values = [value - log_p(empty, label) for value, label in zip(values, labels)]
        wanted = dict(zip(labels, softmax(values)))
        assert record["probabilities"] == pytest.approx(wanted, rel=1e-3)
        assert record["prediction"] == max(wanted, key=lambda label: wanted[label])
        if name == "lamp_3":
            expected = sum(int(label) * share for label, share in wanted.items())
            assert record["expected"] == pytest.approx(expected, rel=1e-3)
            assert record["metrics"]["expected_mae"] == pytest.approx(abs(expected - 2), rel=1e-2)
        else:
            assert "expected" not in record
    assert sum(results.values["answers"].values()) == pytest.approx(1)
    assert ask(tmp_path / "out", "bob", "anything at all").text in labels


def test_without_documents_every_question_is_calibrated_by_the_wording_alone(config, log_p, tmp_path: Path):
    fields = {"generate.calibration": "content_free_no_documents", "generate.normalize": "tokens"}
    results = run(config("lamp_3", **fields), tmp_path / "out")
    texts = [json.loads(text) for text in (tmp_path / "out" / "texts.jsonl").read_text().splitlines()]
    bare = next(seen["prompt"] for seen in texts if not seen["documents"])
    empty = [{**m, "content": m["content"].replace(ASKED["bob"], "N/A")} for m in bare]
    for record, seen in zip(results.predictions(), texts, strict=True):
        values = [log_p(seen["prompt"], label) - log_p(empty, label) for label in "12345"]
        assert list(record["probabilities"].values()) == pytest.approx(softmax(values), rel=1e-3)


PROMPT = Written([{"role": "system", "content": "s"}, {"role": "user", "content": "review: x\nscore:"}], 0)
EXAMPLE = Example("q", "u", "x", "review: x", None)


def answered(method: Label, plain: Sequence[Score], empty: Sequence[Score], name: str = "lamp_1") -> Answer:
    """The answer of a model that gives these scores to the labels of the prompt, and of that without x."""

    def score(prompts: Sequence[Any], targets: Sequence[str], *, on_batch: Any) -> list[Score]:
        places = map(TASKS[name].labels.index, targets)
        return [
            (empty if "N/A" in prompt[-1]["content"] else plain)[place]
            for prompt, place in zip(prompts, places, strict=True)
        ]

    llm: Any = SimpleNamespace(
        fingerprint="", generate=zip, score=score, count=len, truncate=zip, render=str, num_tokens=len
    )
    slot = method.slot(Tally(), llm=llm, task=TASKS[name])
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


@pytest.mark.parametrize("name", RECORDS)
def test_every_label_is_its_own_prediction(name: str):
    for label in TASKS[name].labels:
        assert prompts.answer(TASKS[name], label) == label


def test_no_examples_have_no_answers(tiny_models):
    llm = JaxLLM(Path(tiny_models["llm.model"]))
    slot = Label(calibration="content_free").slot(Tally(), llm=llm, task=task("lamp_3"))
    assert slot([], [], lambda examples, rankings: []) == []


def test_an_interrupted_run_asks_only_for_what_is_missing(tiny_models, tmp_path: Path):
    """Scores are kept as they come; whoever watches is told of every answer once."""
    count = 14
    examples = [Example(f"q{i}", f"u{i}", f"no. {i}", f"review: no. {i}", None) for i in range(count)]

    def write(examples: Sequence[Example], _: Any) -> list[Written]:
        return [Written([{"role": "user", "content": f"{e.input}\nscore:"}], 0) for e in examples]

    class Stop(Exception):
        pass

    def stop(places: Sequence[int], texts: Sequence[str]) -> None:
        if places:
            raise Stop

    def slot(file: str) -> Any:
        llm = Cached(JaxLLM(Path(tiny_models["llm.model"])), tmp_path / file)
        return Label().slot(Tally(), llm=llm, task=task("lamp_3"))

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
    with pytest.raises(UserError, match="lamp_7 has none; tasks with labels are lamp_1, lamp_2, lamp_3"):
        Plan(override(Config(), {**place, **tiny_models, "generate.method": "label"}))


def test_a_server_that_cannot_score_is_refused_before_any_work(config, tiny_models):
    server = {"llm.backend": "http", "llm.url": "http://127.0.0.1:9/v1", "llm.log_probs": "vllm"}
    with pytest.raises(UserError, match=r"generate.method label .* needs llm.log_probs .* and llm.tokenizer"):
        Plan(config("lamp_3", **server))
    Plan(config("lamp_3", **server, **{"llm.tokenizer": tiny_models["llm.model"]}))


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
