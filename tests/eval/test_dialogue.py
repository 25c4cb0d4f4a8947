"""Goal accuracy of dialogue states, beside the official scorers' rules written down again."""

import json
import math
import random
from pathlib import Path
from typing import Any

import dialogue_files
import numpy as np
import pytest
from rapidfuzz import fuzz, utils

from pbr_jax import data
from pbr_jax.base.types import Example, UserError
from pbr_jax.eval import dialogue
from pbr_jax.eval.evaluate import evaluate
from pbr_jax.eval.metrics import text_metric
from pbr_jax.eval.report import report
from pbr_jax.options import Benchmark
from pbr_jax.tasks import STATE_METRICS, released
from pbr_jax.tasks.states import State, first_values, read_reference, written

WORDS = ["Rome", "rome", "8 pm", "pm 8", "Oslo!", "2", "1", "True", "north", "the gables", "gables"]


def value(name: str, predictions: list[str], references: list[str]) -> float:
    metric = text_metric(name)
    return float(metric.finish(metric.statistics(predictions, references).mean(0)))


def official(
    schema: list[Any], turns: list[dict[str, Any]], states: list[State], *, fuzzy: bool, by_turn: bool
) -> tuple[float, float]:
    """Joint and average goal accuracy from the released frames, slot by slot of the schema."""
    joint, average = [], []
    for turn, state in zip(turns, states, strict=True):
        product = None
        for frame in turn["frames"]:
            said, truth = state.get(frame["service"], {}), frame["state"]["slot_values"]
            scores, active = [], []
            for slot in next(s["slots"] for s in schema if s["service_name"] == frame["service"]):
                name = slot["name"]
                score = float(name not in truth and name not in said)
                if name in truth and name in said:
                    equal = [float(said[name] == value) for value in truth[name]]
                    if slot["is_categorical"]:
                        score = equal[0]
                    elif not fuzzy:
                        score = max(equal)
                    else:
                        ratios = [
                            fuzz.token_sort_ratio(v, said[name], processor=utils.default_process)
                            for v in truth[name]
                        ]
                        score = max(map(round, ratios)) / 100
                scores.append(score)
                active += [score] if name in truth else []
            if active:
                average.append(sum(active) / len(active))
            if by_turn:
                product = math.prod(scores) * (1 if product is None else product)
            else:
                joint.append(math.prod(scores))
        if product is not None:
            joint.append(product)
    return sum(joint) / len(joint), sum(average) / len(average)


@pytest.mark.parametrize("name", ["sgd", "multiwoz"])
def test_random_states_score_as_by_the_official_rules(name: str, tmp_path: Path) -> None:
    schema, talks = {"sgd": (dialogue_files.SGD, dialogue_files.TALKS),
                     "multiwoz": (dialogue_files.MULTIWOZ, dialogue_files.WOZ)}[name]  # fmt: skip
    root = dialogue_files.write(tmp_path, name)
    examples = [e for e in data.read(Benchmark(name=name, root=str(root), split="test")) if e.scored]
    turns = [t for talk in talks for t in talk["turns"] if t["speaker"] == "USER" and t["frames"]]
    draw = random.Random(3)
    references = [example.alternatives[0] for example in examples]
    for _ in range(100):
        states: list[State] = []
        for example in examples:
            state = first_values(read_reference(example.alternatives[0]))
            for service in state:
                for slot in next(s["slots"] for s in schema if s["service_name"] == service):
                    if draw.random() < 0.3:
                        state[service][slot["name"]] = draw.choice(WORDS)
                    elif draw.random() < 0.2:
                        state[service].pop(slot["name"], None)
            states.append(state)
        texts = list(map(written, states))
        for fuzzy, names in ((True, ("jga_indel", "aga_indel")), (False, ("jga_exact", "aga_exact"))):
            wanted = official(schema, turns, states, fuzzy=fuzzy and name == "sgd", by_turn=name != "sgd")
            assert [value(n, texts, references) for n in names] == pytest.approx(wanted, abs=1e-12)
            if name == "multiwoz":  # official are the exact ones
                assert [value(n, texts, references) for n in ("jga", "aga")] == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("left", "right", "difflib", "indel"),
    [
        ("8 PM", "pm, 8!", 1.0, 1.0),
        ("", "", 1.0, 1.0),
        ("?!", "…", 1.0, 1.0),
        ("Rome", "", 0.0, 0.0),
        ("café", "caf", 1.0, 1.0),  # fuzzywuzzy drops what is beyond ASCII
        ("a_b", "a b", 0.67, 0.67),  # but keeps underscores
        ("Benissimo", "Benisimo", 0.94, 0.94),
        ("San Jose", "San Juan", 0.62, 0.62),
        ("qabxcd", "abycdf", 0.67, 0.67),
        ("tide", "diet", 0.25, 0.5),  # longest matching blocks are not the best alignment
    ],
)
def test_similarity(left: str, right: str, difflib: float, indel: float) -> None:
    assert dialogue.similarity(left, right, "difflib") == difflib
    assert dialogue.similarity(left, right, "indel") == indel
    assert dialogue.similarity(left, right, "exact") == float(left == right)


def test_names_are_compared_by_their_letters() -> None:
    reference = read_reference(
        '[{"hotel": {"hotel-area": ["first", "north"], "hotel-name": ["any", "gables"]}},'
        ' {"Tables_1": {"city": ["similar", "Rome"], "time": ["similar"]}}]'
    )
    for said in (
        {"hotel": {"hotel-area": "north"}},
        {"Hotel": {"area": "north"}},
        {"": {"hotel area": "north"}},
        {"": {"area": "north"}},
    ):
        found = dialogue.align(said, reference)
        assert found.values[0] == {"hotel": {"hotel-area": "north"}}
        assert (found.outside, found.missing, found.named) == (0, 1, True)
    found = dialogue.align(
        {"Trains_9": {"city": "Rome"}, "tables 1": {"mood": "x", "CITY": "Oslo"}}, reference
    )
    assert found.values == [{"hotel": {}}, {"Tables_1": {"city": "Oslo"}}]
    assert (found.outside, found.missing, found.named) == (2, 1, True)
    assert not dialogue.align({"Trains_9": {"mood": "x"}}, reference).named


def examples_of(root: Path) -> list[Example]:
    return list(data.read(Benchmark(name="sgd", root=str(root), split="test")))


def test_an_evaluation_counts_what_it_cannot_read(tmp_path: Path) -> None:
    examples = examples_of(dialogue_files.write(tmp_path, "sgd"))
    answers = ["I do not know", '{"Tables_1": {"mood": "good"}}', str(examples[2].target), "{}", "{}"]
    found = evaluate(
        released("sgd"), ids=[e.id for e in examples], users=[e.user_id for e in examples],
        units=[e.unit for e in examples], predictions=answers, targets=[e.target for e in examples],
        alternatives=[e.alternatives for e in examples], categories=[e.category for e in examples],
    )  # fmt: skip
    assert found.unreadable == 2
    assert found.counts == {"slots_outside_schema": 1, "missing_frames": 4}
    # five turns, seven frames: one right, two empty ones right
    assert found.metrics["jga"] == pytest.approx(3 / 7)
    assert found.metrics["aga"] == pytest.approx(1 / 5)
    assert found.per_example[2] == dict.fromkeys(("jga", "aga", "jga_exact", "aga_exact"), 1.0)
    assert found.per_example[3] == {"jga": 1.0, "jga_frames": 2.0, "jga_exact": 1.0, "jga_exact_frames": 2.0}
    assert found.by_category["Tables_1, Rides_2"]["jga"] == pytest.approx(2 / 4)
    assert found.clusters == "units"
    assert "the empty state for every turn would have jga 0.2857; answers without a state score as it" in (
        found.notes
    )
    low, high = found.intervals["jga"]
    assert 0 <= low < 3 / 7 < high <= 1
    with pytest.raises(UserError, match="question '1_00000-000': found no reference of the dialogue state"):
        evaluate(released("sgd"), ids=[e.id for e in examples], users=[e.user_id for e in examples],
                 predictions=answers, targets=[e.target for e in examples])  # fmt: skip


def test_differences_are_over_frames(tmp_path: Path, write, tables) -> None:
    """Turns of two frames count twice, and turns that set no slot do not count for average accuracy."""
    free = '{"A": {"x": ["any", "1"], "y": ["any", "2"]}}'
    both = json.dumps([json.loads(free), {"B": {"z": ["any", "3"]}}])
    references = [f"[{free}]", both, '[{"A": {"x": ["any"]}}]'] * 8
    right = [written(first_values(read_reference(text))) for text in references]
    wrong = ['{"A": {"x": "1"}}', '{"A": {"x": "1", "y": "2"}}', '{"A": {"x": "9"}}'] * 8
    rest = {"benchmark": "sgd", "targets": right, "alternatives": [[text] for text in references]}
    runs = [write(tmp_path / name, name, said, **rest) for name, said in (("a", right), ("b", wrong))]
    results = json.loads((tmp_path / "b" / "results.json").read_text())["metrics"]
    assert results["jga"] == pytest.approx(1 / 4)  # of four frames in three turns
    assert results["aga"] == pytest.approx((0.5 + 1 + 0) / 3)
    header, row = tables(report(runs))[1]
    told = dict(zip(header, row))
    assert told["Δ jga (above 0 is better)"].strip("*").startswith("-0.75")
    assert told["Δ aga (above 0 is better)"].strip("*").startswith("-0.50")


def test_every_metric_of_a_task_of_dialogues_is_there() -> None:
    assert tuple(dialogue.METRICS) == STATE_METRICS


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.long
def test_golden_numbers(real_data: Path) -> None:
    """Of trackers without a model, by the official rules on 1,024 dialogues of SGD's test split."""
    if not (real_data / "sgd").is_dir():
        pytest.skip(f"no dialogues in {real_data}")
    examples = examples_of(real_data / "sgd")
    references = [example.alternatives[0] for example in examples]
    gold = [first_values(read_reference(text)) for text in references]
    before = [{} if not e.profile else gold[i - 1] for i, e in enumerate(examples)]
    cut = [{s: {n: v[:-1] or v for n, v in f.items()} for s, f in state.items()} for state in gold]
    wanted = {
        "empty": ([{}] * len(gold), {"jga": 0.084856, "aga": 0.0}),
        "before": (before, {"jga": 0.477382, "aga": 0.681292, "jga_exact": 0.468670, "aga_exact": 0.674974,
                            "jga_indel": 0.477801, "aga_indel": 0.681619}),
        "cut": (cut, {"jga": 0.426136, "aga": 0.771413}),
        "gold": (gold, {"jga": 1.0, "aga": 1.0}),
    }  # fmt: skip
    for states, numbers in wanted.values():
        texts = list(map(written, states))
        found = {name: value(name, texts, references) for name in numbers}
        assert found == pytest.approx(numbers, abs=1e-6)


def test_means_without_frames_are_no_fault() -> None:
    found = dialogue.mean_over_frames(np.array([[[0.0, 0.0], [1.0, 2.0]]]))
    assert found.tolist() == [[0.0, 0.5]]
    assert dialogue.joint(["{}"], [json.dumps([])]).tolist() == [[0.0, 0.0]]
