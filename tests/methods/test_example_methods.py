"""Methods in examples/methods, each on tiny data."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pbr_jax.base.types import Candidate, Document, Example, Feedback, UserError
from pbr_jax.cli.main import main
from pbr_jax.config import Config, load, override
from pbr_jax.corpus.store import Store, build
from pbr_jax.experiment.plan import Plan
from pbr_jax.methods.select.by_score import Batch
from pbr_jax.stages.rankings import Questions
from pbr_jax.stages.scores import standardised
from pbr_jax.stages.trained import load_saved

EXAMPLES = Path(__file__).parents[2] / "examples" / "methods"
DAY = 86_400.0


def example(name: str) -> Any:
    """The module of an example, whose config has its method in `select`."""
    return sys.modules[type(load(EXAMPLES / f"{name}.py").config.select).__module__]


class Given:
    """Stands for rankings and feedback that are on disk."""

    def __init__(self, values: list[Any]) -> None:
        self.read = lambda *_: values


@pytest.mark.long
def test_a_planted_half_life_is_learned_from_the_feedback(tmp_path: Path):
    """Each question's feedback is what the scores of a known prior would make of its candidates."""
    module, draw = example("learned_recency"), np.random.default_rng(8)
    examples, rankings, lessons = [], [], []
    for q in range(120):
        relevance, age = draw.normal(size=9), draw.uniform(0, 80, 9)
        own = tuple(Document(f"d{i}", f"u{q}", f"text {i}", time=(1000 - a) * DAY) for i, a in enumerate(age))
        examples.append(Example(f"q{q}", f"u{q}", "x", "x", "t", own, time=1000 * DAY))
        rows = np.arange(9 * q, 9 * q + 9)
        rankings.append([Candidate(d, s, r) for d, s, r in zip(own, relevance, rows.tolist())])
        worth = standardised(relevance) + 4 * 2 ** (-age / 20)
        lessons.append(Feedback(rows, worth.astype(np.float32)))
    build(tmp_path / "store.sqlite", examples)
    store = Store(tmp_path / "store.sqlite")
    options = override(Config(select=module.LearnedRecency()), {"select.training.epochs": 40}).select
    values = {"ranked": Given(rankings), "lessons": Given(lessons)}
    module.train(tmp_path, options, Questions(), 0, 0.0, store=store, **values)
    params = load_saved(tmp_path)
    scale, weight, log_half_life = np.asarray(params["prior"])
    assert (np.exp(log_half_life), weight / scale) == pytest.approx((20, 4), rel=0.2)
    ranked = module.LearnedRecency().reordered(examples[0], rankings[0], store=store, params=params)
    worth = dict(zip(lessons[0].rows.tolist(), lessons[0].values, strict=True))
    assert [c.row for c in ranked][:3] == sorted(worth, key=lambda row: -worth[row])[:3]


@pytest.mark.long
def test_a_trained_method_runs_and_is_refused_without_leave(
    tiny_models, write_tweets, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    tweets = {f"u{i}": [f"tea {j} cats {i}" for j in range(4)] for i in range(4)}
    write_tweets({f"t{user}": own for user, own in tweets.items()}, "train")
    place = {"benchmark.name": "lamp_7", "benchmark.root": write_tweets(tweets), "retrieve.k": 3}
    small = {"generate.method": "none", "eval.likelihood": "off", "select.training.epochs": 1}
    fields = {**place, **small, **tiny_models, "select.training.batch_size": 8}
    words = [str(EXAMPLES / "learned_recency.py"), *(f"--{name}={value}" for name, value in fields.items())]
    assert main(["run", *words, "--out", str(tmp_path / "out")]) == 0
    assert "learned_recency" in json.loads((tmp_path / "out" / "results.json").read_text())["seconds"]
    assert main(["run", *words, "--collaboration=none", "--out", str(tmp_path / "none")]) == 2
    assert "recency learns from other users' histories" in capsys.readouterr().err


@pytest.mark.parametrize("shuffled", [False, True])
def test_the_policy_learns_what_is_worth_showing_and_its_control_does_not(shuffled: bool, tmp_path: Path):
    """The longer of a question's candidates are worth more; or values are dealt by lot."""
    module, draw = example("learned_policy"), np.random.default_rng(3)
    rankings, lessons, examples = [], [], []
    for q in range(64):
        lengths = draw.permutation(6)
        texts = ["x" * (1 + 5 * int(length)) for length in lengths]
        rows = np.arange(6 * q, 6 * q + 6)
        owned = [Document(f"d{row}", f"u{q}", text) for row, text in zip(rows, texts)]
        rankings.append([Candidate(d, float(6 - i), int(r)) for i, (d, r) in enumerate(zip(owned, rows))])
        worth = draw.permutation(lengths) if shuffled else lengths
        lessons.append(Feedback(rows, worth.astype(np.float32)))
        examples.append(Example(f"q{q}", f"u{q}", "x", "x", "t"))
    given = {"ranked": Given(rankings), "lessons": Given(lessons), "store": None}
    options: Any = override(Config(select=module.LearnedPolicy(k=2)), {"select.training.epochs": 5}).select
    module.train(tmp_path, options, Given(examples), 0, **given)
    params = load_saved(tmp_path)
    scores = options.scores(Batch(examples, [], rankings), None, params=params)
    chosen = [ranking[int(s.argmax())] for ranking, s in zip(rankings, scores, strict=True)]
    best = np.mean([len(candidate.document.text) == 26 for candidate in chosen])
    assert (best > 0.9) == (not shuffled)


def test_a_method_that_gives_itself_to_the_feedback_is_one_line(write_tweets, tiny_models, tmp_path: Path):
    source = (EXAMPLES / "learned_policy.py").read_text()
    file = tmp_path / "own.py"
    file.write_text(source.replace("select=TopK(),  # not this method: it would need itself", "select=self,"))
    tweets = {f"u{i}": [f"tea {j}" for j in range(4)] for i in range(3)}
    write_tweets({f"t{user}": own for user, own in tweets.items()}, "train")
    place = {"benchmark.name": "lamp_7", "benchmark.root": str(write_tweets(tweets)), **tiny_models}
    with pytest.raises(UserError, match="needs itself, as where a method passes itself as select"):
        Plan(override(load(file).config, place))


def test_an_option_that_moved_says_where_to():
    with pytest.raises(UserError, match=r"instead of learned take .* examples/methods/learned_recency\.py"):
        override(Config(), {"select.method": "recency_prior", "select.half_life": "learned"})
