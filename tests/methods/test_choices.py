"""Questions with options of their own: orders, listing, and answers by likelihood against torch."""

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbr_jax import Config, data, run
from pbr_jax.base.types import Example, UserError
from pbr_jax.config import override
from pbr_jax.eval.evaluate import evaluate, place_distribution
from pbr_jax.experiment.plan import Plan
from pbr_jax.llm.protocol import Score, TooLong
from pbr_jax.methods.generate import Auto, Label
from pbr_jax.pipeline import Answer, Tally
from pbr_jax.tasks import released
from pbr_jax.text.answers import parse_answer
from pbr_jax.text.choices import LETTERS, listed, orders
from pbr_jax.text.prompts import Written

OPTIONS = ("Go out.", "Stay at home, and read", "Ask", "Wait")
FORMS = ("text", "letter", "cloze")
LENGTHS = ("per_token", "per_byte", "total")


def example(name: str = "q", options: tuple[str, ...] = OPTIONS) -> Example:
    return Example(name, "u", "what now?", "what now?", options[0] if options else None, options=options)


def write(examples: Sequence[Example], rankings: Sequence[Any]) -> list[Written]:
    return [
        Written([{"role": "user", "content": f"{e.input}\nanswer:"}], 0, (0, len(e.input))) for e in examples
    ]


def answered(
    method: Label, value: Callable[[str, str], float], *examples: Example, seed: int = 0
) -> list[Answer]:
    """Answers of a model with these log-probabilities of (prompt, target), a token for each word."""

    def score(prompts: Sequence[Any], targets: Sequence[str], *, on_batch: Any) -> list[Score]:
        pairs = [(prompt[0]["content"], target) for prompt, target in zip(prompts, targets, strict=True)]
        found = [Score(value(*pair), len(pair[1].split())) for pair in pairs]
        on_batch(range(len(found)), found)
        return found

    llm: Any = SimpleNamespace(
        fingerprint="", generate=zip, score=score, count=len, truncate=zip, render=str, num_tokens=len
    )
    slot = method.slot(Tally(), llm=llm, labels=(), seed=seed)
    return slot(list(examples), [[] for _ in examples], write)


# -- Orders and lists --------------------------------------------------------------------------------


@given(st.integers(1, 26), st.integers(0, 9), st.text(max_size=3))
def test_in_all_orders_every_answer_stands_at_every_place_once(count: int, seed: int, name: str) -> None:
    found = np.array(orders(count, None, seed=seed, name=name))
    everything = np.arange(count)
    assert (np.sort(found, 0) == everything[:, None]).all()
    assert (np.sort(found, 1) == everything).all()


@given(st.integers(2, 12), st.integers(1, 14))
def test_fewer_orders_are_different_rotations_of_the_first(count: int, most: int) -> None:
    found = orders(count, most, seed=3, name="q")
    assert len({tuple(order) for order in found}) == len(found) == min(most, count)
    assert found[0] == orders(count, None, seed=3, name="q")[0]
    turns = [order[0] for order in found]
    assert all(found[0][(found[0].index(turn) + 1) % count] == order[1] for turn, order in zip(turns, found))


def test_orders_are_drawn_by_seed_and_question() -> None:
    drawn = [orders(4, 1, seed=seed, name=str(name))[0] for seed in range(2) for name in range(200)]
    assert len(set(map(tuple, drawn))) == 24
    firsts = Counter(order[0] for order in drawn)
    assert min(firsts.values()) > 60  # of 100 that chance gives, with a deviation of 9
    assert orders(4, 1, seed=0, name="a") == orders(4, 1, seed=0, name="a")


def test_an_answer_is_a_line() -> None:
    assert listed("what?", ["a\nb", " c"]) == "what?\n\nAnswers to choose from:\nA. a b\nB. c"


# -- Values ------------------------------------------------------------------------------------------


def line_of(prompt: str, text: str) -> int:
    """The place at which an option, or the one of a letter, is listed."""
    lines = [line for line in prompt.splitlines() if line[1:3] == ". "]
    return LETTERS.index(text) if text in LETTERS else [line[3:] for line in lines].index(text)


@given(st.lists(st.floats(-9, 9), min_size=4, max_size=4), st.lists(st.floats(-9, 9), min_size=4, max_size=4))
@pytest.mark.parametrize("form", ["text", "letter"])
def test_a_preference_for_places_cancels(form: Any, worth: list[float], bias: list[float]) -> None:
    """log p = what the option is worth + what its place is: the shares are the softmax of the worth alone."""

    def value(prompt: str, target: str) -> float:
        place = line_of(prompt, target)
        shown = [line[3:] for line in prompt.splitlines() if line[1:3] == ". "][place]
        return worth[OPTIONS.index(shown)] + bias[place]

    (found,) = answered(Label(options=form, length="total"), value, example())
    powers = np.exp(np.array(worth) - max(worth))
    assert list((found.probabilities or {}).values()) == pytest.approx(powers / powers.sum(), abs=1e-9)
    assert (found.probabilities or {})[found.text] == max((found.probabilities or {}).values())


def test_where_one_place_always_wins_its_share_is_all() -> None:
    found = answered(Label(options="letter"), lambda prompt, target: -float(target != "C"), example())
    assert found[0].places == (0, 0, 1, 0)
    assert list((found[0].probabilities or {}).values()) == pytest.approx([0.25] * 4)
    assert place_distribution([(0.0, 0.0, 1.0), (0.5, 0.5)]) == {
        "place 1": 0.25,
        "place 2": 0.25,
        "place 3": 0.5,
    }


@pytest.mark.parametrize("length", LENGTHS)
def test_lengths_are_divided_by(length: Any) -> None:
    totals = {"Go out.": -6.0, "Stay at home, and read": -9.0, "Ask": -4.0, "Wait": -4.5}
    divisors = {
        "total": dict.fromkeys(OPTIONS, 1),
        "per_token": {text: len(text.split()) for text in OPTIONS},
        "per_byte": {text: len(text) for text in OPTIONS},
    }[length]
    wanted = np.array([totals[text] / divisors[text] for text in OPTIONS])
    method = Label(options="cloze", length=length)
    (found,) = answered(method, lambda prompt, target: totals[target], example())
    assert list((found.probabilities or {}).values()) == pytest.approx(np.exp(wanted) / np.exp(wanted).sum())
    assert found.text == OPTIONS[int(wanted.argmax())]
    assert found.places is None


def test_calibration_takes_the_question_away_and_leaves_the_options() -> None:
    def value(prompt: str, target: str) -> float:
        assert all(option in prompt for option in OPTIONS)
        return -1.0 if ("N/A" in prompt) == (target == "Ask") else -3.0

    (found,) = answered(Label(length="total", calibration="content_free"), value, example())
    powers = np.exp(np.array([2.0, 2.0, -2.0, 2.0]))
    assert list((found.probabilities or {}).values()) == pytest.approx(powers / powers.sum())


def test_questions_may_offer_unequally_many_options() -> None:
    some = [example("a"), example("b", ("yes", "no")), example("c", tuple(map(str, range(26))))]
    found = answered(Label(permutations=3), lambda prompt, target: -float(len(prompt)), *some)
    assert [len(answer.probabilities or {}) for answer in found] == [4, 2, 26]
    assert [len(answer.places or ()) for answer in found] == [4, 2, 26]


def test_equal_options_are_refused() -> None:
    with pytest.raises(UserError, match=r"question 'q' has equal options \(\['tea', 'no', ' tea'\]\)"):
        answered(Label(), lambda prompt, target: 0.0, example("q", ("tea", "no", " tea")))


@pytest.mark.parametrize("options", [(), ("one",), tuple(map(str, range(27)))])
def test_a_question_without_options_is_told(options: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match=f"question 'q' has {len(options)} options"):
        answered(Label(), lambda prompt, target: 0.0, example(options=options))


def test_a_prompt_that_is_too_long_is_that_of_its_question() -> None:
    def value(prompt: str, target: str) -> float:
        raise TooLong(2 * 16 + 4 * 2 + 3, "is too long")  # layers, questions, orders

    with pytest.raises(TooLong) as error:
        answered(Label(calibration="content_free"), value, example("a"), example("b", OPTIONS))
    assert error.value.index == 0


# -- Metrics -----------------------------------------------------------------------------------------


def test_an_answer_is_right_where_it_is_the_target() -> None:
    found = evaluate(
        released("prefeval"), ids=["1", "2", "3"], users=["a", "b", "c"],
        predictions=["x", "y", "else"], targets=["x", "x", "z"],
        options=[("x", "y"), ("x", "y", "w", "v"), ("z", "y")],
        probabilities=[{"x": 0.5, "y": 0.5}, {"x": 0.2, "y": 0.8}, {"z": 0.0, "y": 1.0}], resamples=10,
    )  # fmt: skip
    assert found.metrics["accuracy"] == pytest.approx(1 / 3)
    nll = [-math.log(0.5), -math.log(0.2), -math.log(np.finfo(float).tiny)]
    assert [one["choice_nll"] for one in found.per_example] == pytest.approx(nll)
    assert found.unreadable == 1
    assert "an option drawn by lot would be right in 41.7%" in found.notes


def test_an_option_is_read_as_it_stands() -> None:
    assert parse_answer(released("prefeval").answers, 'answer: "so"\nand on') == 'answer: "so"\nand on'


def test_auto_chooses_where_there_are_options() -> None:
    assert isinstance(Auto().resolved(released("prefeval")), Label)
    with pytest.raises(UserError, match="decodes nothing"):
        Auto(temperature=1.0).resolved(released("prefeval"))


# -- A run -------------------------------------------------------------------------------------------


@pytest.fixture
def config(tiny_models: dict[str, str], tmp_path: Path) -> Callable[..., Config]:
    """Questions of one's own that offer options."""

    def made(*, write: bool = True, **fields: Any) -> Config:
        documents = [{"id": f"d{i}", "user": "ann", "text": f"i like tea no. {i}"} for i in range(3)]
        questions = [
            {"id": f"q{i}", "user": "ann", "input": f"which tea {i}?", "target": OPTIONS[i % 2],
             "options": OPTIONS[: 2 + i], "relevant": ["d0"]}
            for i in range(3)
        ]  # fmt: skip
        for name, records in (("documents", documents), ("dev", questions)) if write else ():
            (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, records)))
        (tmp_path / "task.toml").write_text('kind = "choice"\nmetrics = ["accuracy"]\n')
        place = {"benchmark.name": "own", "benchmark.root": str(tmp_path), "retrieve.method": "recency"}
        place |= {"llm.model": tiny_models["llm.model"], "prompt.max_tokens": 900, "eval.resamples": 50}
        return override(Config(), {**place, **fields})

    return made


@pytest.fixture(scope="module")
def log_p(tiny_models: dict[str, str]) -> Callable[[Sequence[dict[str, str]], str], tuple[float, int]]:
    """log p(target | messages) and the target's tokens, token by token, by torch."""
    torch: Any = pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")
    from tokenizers import Tokenizer

    reference = transformers.LlamaForCausalLM.from_pretrained(tiny_models["llm.model"]).eval()
    tokenizer = Tokenizer.from_file(str(Path(tiny_models["llm.model"]) / "tokenizer.json"))

    def found(messages: Sequence[dict[str, str]], target: str) -> tuple[float, int]:
        first = tokenizer.encode("\n\n".join(message["content"] for message in messages)).ids
        second = tokenizer.encode(target).ids
        with torch.no_grad():
            logits = reference(torch.tensor([first + second])).logits[0].double()
        chosen = torch.log_softmax(logits, -1)[range(len(first) - 1, len(first + second) - 1), second]
        return float(chosen.sum()), len(second)

    return found


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
def test_a_run_chooses_as_torch_has_it(config, log_p, tmp_path: Path, form: str) -> None:
    results = run(config(**{"generate.method": "label", "generate.options": form}), tmp_path / "out")
    texts = [json.loads(text) for text in (tmp_path / "out" / "texts.jsonl").read_text().splitlines()]
    config_seed, wins = 0, []
    for number, (record, seen) in enumerate(zip(results.records(), texts, strict=True)):
        options, question = OPTIONS[: 2 + number], f"which tea {number}?"
        first = orders(len(options), None, seed=config_seed, name=f"ann\0q{number}")
        lists = (
            [listed(question, [options[i] for i in order]) for order in first]
            if form != "cloze"
            else [question]
        )
        assert lists[0] in seen["prompt"][-1]["content"]
        rows = []
        for text, order in zip(lists, first):
            messages = [{**m, "content": m["content"].replace(lists[0], text)} for m in seen["prompt"]]
            targets = [
                LETTERS[order.index(i)] if form == "letter" else options[i] for i in range(len(options))
            ]
            values = [log_p(messages, target) for target in targets]
            rows.append([total / tokens for total, tokens in values])
            wins.append(order.index(int(np.argmax(rows[-1]))))
        means = np.mean(rows, 0)
        shares = np.exp(means - np.logaddexp.reduce(means))
        assert record["probabilities"] == pytest.approx(dict(zip(options, shares)), rel=1e-3)
        assert record["prediction"] == options[int(means.argmax())]
        wanted = -math.log(record["probabilities"][record["target"]])
        assert record["metrics"]["choice_nll"] == pytest.approx(wanted)
        assert record["metrics"]["accuracy"] == (record["prediction"] == record["target"])
    assert results.values["metrics"]["accuracy"] == np.mean(
        [r["metrics"]["accuracy"] for r in results.records()]
    )
    assert {"choice_nll", "target_nll", "recall@1", "recall@3"} <= results.values["metrics"].keys()
    shown = results.values["answers"]
    assert sum(shown.values()) == pytest.approx(0 if form == "cloze" else 1)
    assert len(shown) == (0 if form == "cloze" else 4)


@pytest.mark.long
@pytest.mark.parametrize(("tokens", "cut"), [(900, 0), (64, 3)])
def test_options_that_do_not_fit_are_counted_and_told(config, tmp_path: Path, tokens: int, cut: int) -> None:
    """The tiny model's tokens are bytes: the shortest question has 76 of them with its options."""
    fields = {"generate.method": "label", "prompt.max_tokens": tokens, "prompt.gamma": 0.1}
    results = run(config(**fields), tmp_path / "out")
    texts = [json.loads(text) for text in (tmp_path / "out" / "texts.jsonl").read_text().splitlines()]
    lines = [[f". {option}" for option in OPTIONS[: 2 + number]] for number in range(3)]
    whole = [
        all(line in seen["prompt"][-1]["content"] for line in own)
        for own, seen in zip(lines, texts, strict=True)
    ]
    assert whole.count(False) == cut
    notes = [note for note in results.values["notes"] if "do not fit a prompt" in note]
    assert results.values["counts"].get("cut_options", 0) == cut
    assert len(notes) == bool(cut)
    assert all(note.startswith(f"the options of {cut} of 3 questions") for note in notes)


@pytest.mark.long
def test_the_seed_of_a_run_draws_the_orders(config, tmp_path: Path) -> None:
    one, again, other = (
        run(
            config(seed=seed, **{"generate.method": "label", "generate.permutations": 1}),
            tmp_path / str(place),
        )
        for place, seed in enumerate((0, 0, 1))
    )
    shares = [[r["probabilities"] for r in results.records()] for results in (one, again, other)]
    assert shares[0] == shares[1] != shares[2]


def test_a_task_of_ones_own_may_offer_options(config, tmp_path: Path) -> None:
    plan = Plan(config())
    assert (plan.task.kind, plan.answered is not None) == ("choice", True)
    faults = {("a", "a"): "found ['a', 'a'], wanted different", ("a", "b"): "found 'Ask', wanted one of"}
    for wrong, told in faults.items():
        record = {"id": "q", "user": "ann", "input": "which?", "target": "Ask", "options": wrong}
        (tmp_path / "dev.jsonl").write_text(json.dumps(record))
        with pytest.raises(UserError) as error:
            list(data.read(config(write=False).benchmark))
        assert told in str(error.value)


def test_feedback_on_options_is_by_likelihood(config, tmp_path: Path) -> None:
    learned = {"collaboration": "signals", "retrieve.method": "tuned", "retrieve.alpha": 0.0}
    config()
    (tmp_path / "train.jsonl").write_text((tmp_path / "dev.jsonl").read_text())
    with pytest.raises(UserError, match="metric to likelihood"):
        Plan(config(**learned)).check()
    Plan(config(**learned, **{"feedback.metric": "likelihood"})).check()
