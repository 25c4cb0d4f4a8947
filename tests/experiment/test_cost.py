"""What `--dry --cost` counts, against what runs then ask."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pbr_jax import config as c
from pbr_jax.base.files import cache_folder
from pbr_jax.cli.main import main
from pbr_jax.experiment.cost import Row, estimate
from pbr_jax.experiment.plan import Plan
from pbr_jax.experiment.run import run
from pbr_jax.graph.lists import stages
from pbr_jax.llm.engine.jax_backend import JaxLLM

SYNTHETIC = {
    "benchmark.name": "synthetic", "benchmark.root": "", "limit": 4, "limit_training": 10,
    "limit_history": 4, "collaboration": "signals",
}  # fmt: skip
TEXTS = ["i love tea", "cats that day", "about football", "i love violins", "tea that day about cats"]


@pytest.fixture
def config(write_tweets, tiny_models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "cache"))
    root = write_tweets({f"u{i}": [f"{TEXTS[j % 5]} {i} {j}" for j in range(i + 2)] for i in range(5)})
    values: dict[str, Any] = {
        **tiny_models, "benchmark.name": "lamp_7", "benchmark.root": str(root), "eval.likelihood": "on",
        "retrieve.method": "bm25", "generate.max_new_tokens": 3, "llm.batch_size": 4,
    }  # fmt: skip
    return c.override(c.Config(), values)


class Asked:
    """What a model is asked for in earnest, equal requests once: tokens of prompts, and of targets or the
    most of answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._scored: dict[str, tuple[int, int]] = {}
        self._written: dict[str, tuple[int, int]] = {}
        score, generate = JaxLLM.score, JaxLLM.generate

        def scored(llm: JaxLLM, prompts: Sequence[Any], targets: Sequence[str], **options: Any) -> Any:
            for i in self._new(prompts, options.get("done")):
                lengths = llm.num_tokens(prompts[i]), llm.count(targets[i])
                self._scored[json.dumps([prompts[i], targets[i]])] = lengths
            return score(llm, prompts, targets, **options)

        def written(llm: JaxLLM, prompts: Sequence[Any], sampling: Any, **options: Any) -> Any:
            for i in self._new(prompts, options.get("done")):
                self._written[json.dumps(prompts[i])] = llm.num_tokens(prompts[i]), sampling.max_new_tokens
            return generate(llm, prompts, sampling, **options)

        monkeypatch.setattr(JaxLLM, "score", scored)
        monkeypatch.setattr(JaxLLM, "generate", written)

    @property
    def scored(self) -> list[tuple[int, int]]:
        return [*self._scored.values()]

    @property
    def written(self) -> list[tuple[int, int]]:
        return [*self._written.values()]

    @staticmethod
    def _new(prompts: Sequence[Any], done: Mapping[int, Any] | None) -> list[int]:
        return [i for i in range(len(prompts)) if i not in (done or {})]

    def sums(self) -> dict[str, tuple[int, int, int]]:
        """Prompts, tokens read and tokens written, of answers and of likelihoods."""
        first, second = ([sum(column) for column in zip(*pairs)] for pairs in (self.written, self.scored))
        return {
            "generate": (len(self.written), first[0], first[1]),
            "likelihood": (len(self.scored), sum(second), 0),
        }


def sums(rows: Sequence[Row]) -> dict[str, tuple[int, int, int]]:
    return {row.stage: (row.prompts, row.read, row.written) for row in rows}


@pytest.mark.long
def test_what_is_estimated_is_what_a_run_then_asks(
    config: c.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plan = Plan(config)
    rows = estimate(plan)
    assert [row.note for row in rows] == ["", ""]
    assert all(row.flops for row in rows)
    assert not (cache_folder() / "llm.sqlite").exists()
    asked = Asked(monkeypatch)
    found = run(config, tmp_path / "out")
    assert sums(rows) == asked.sums()
    assert asked.written
    assert len(asked.scored) == len(found.records())
    assert estimate(Plan(config)) == []  # all is there


@pytest.mark.long
def test_cached_answers_are_not_counted(config: c.Config, tmp_path: Path):
    run(config, tmp_path / "out")
    shutil.rmtree(cache_folder() / "likelihood")
    (row,) = estimate(Plan(config))
    assert (row.stage, row.prompts, row.read) == ("likelihood", 0, 0)
    longer = c.override(config, {"generate.max_new_tokens": 4})
    assert {row.stage: row.prompts > 0 for row in estimate(Plan(longer))} == {
        "generate": True, "likelihood": False,
    }  # fmt: skip


@pytest.mark.long
def test_a_dense_run_reads_its_documents_and_draws_what_it_shows(
    config: c.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    dense = c.override(config, {"retrieve.method": "dense", "retrieve.k": 2})
    plan = Plan(dense)
    rows = {row.stage: row for row in estimate(plan)}
    store = plan.data.value
    texts = {text for _, text in store.texts()}
    assert rows["embed"].prompts == len(texts)
    encoder = plan.ranked.needs["retrieve"].needs["encoder"].value
    assert rows["embed"].read == sum(map(len, encoder.tokenizer.encode_batch(sorted(texts))))
    assert rows["rank: queries"].prompts == store.summary.examples
    assert "drawn by lot" in rows["generate"].note
    assert not (cache_folder() / "embed").exists()
    assert not (cache_folder() / "rank").exists()
    asked = Asked(monkeypatch)
    run(dense, tmp_path / "out")
    for stage, (prompts, read, written) in asked.sums().items():  # as many, of about the same length
        assert (rows[stage].prompts, rows[stage].written) == (prompts, written)
        assert rows[stage].read == pytest.approx(read, rel=0.2)


@pytest.mark.long
def test_feedback_is_counted_prompt_by_prompt(config: c.Config, monkeypatch: pytest.MonkeyPatch):
    """Of each candidate of each training question alone; BM25 finds the candidates."""
    tuned = c.override(
        config,
        {**SYNTHETIC, "select.method": "tuned", "select.model": config.encoder.model, "retrieve.k": 3,
         "feedback.metric": "likelihood"},
    )  # fmt: skip
    plan = Plan(tuned)
    rows = {row.stage: row for row in estimate(plan)}
    feedback = stages(plan.last)["feedback_reranker"]
    asked = Asked(monkeypatch)
    _ = feedback.value
    found = [sum(column) for column in zip(*asked.scored)]
    row = rows["feedback_reranker"]
    assert (row.prompts, row.read, row.note) == (len(asked.scored), sum(found), "")
    assert row.prompts > 5


def test_questions_and_choices_of_language_models_are_counted(config: c.Config, tmp_path: Path):
    """Expansions, and documents that a model scores one by one."""
    asking = c.override(config, {"expand.method": "rewrite", "select.method": "pointwise", "retrieve.k": 2})
    rows = [row for row in estimate(Plan(asking)) if row.stage == "rank"]
    assert len(rows) == 1
    assert rows[0].prompts > 5
    assert rows[0].written > 0
    assert "drawn by lot" in rows[0].note


def test_the_generators_training_is_named_and_not_counted(config: c.Config):
    tuned = c.override(
        config,
        {**SYNTHETIC, "generator.method": "lora", "generator.documents": ("none",)},
    )  # fmt: skip
    plan = Plan(tuned)
    rows = {row.stage: row for row in estimate(plan)}
    assert {"generator", "generate", "likelihood"} <= set(rows)
    assert (rows["generator"].prompts, rows["generator"].note) == (0, "not counted")
    assert rows["generate"].prompts > 0


def test_the_command_prints_a_table(config: c.Config, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    file = tmp_path / "mine.py"
    file.write_text(
        "import json\nfrom pbr_jax.config import from_dict\n"
        f"def get_config(): return from_dict(json.loads({json.dumps(c.to_dict(config))!r}))\n"
    )
    words = ["run", str(file), "--dry", "--cost"]
    assert main(words) == 0
    text = capfd.readouterr().out
    assert "generate  would be made" in text
    assert "What the run has yet to ask of models" in text
    assert text.count("\nall ") == 1
    assert main([*words, "--chip", "h100"]) == 2
    assert "--chip and --utilisation were removed; --dry --cost counts FLOPs" in capfd.readouterr().err
    assert main(["run", str(file), "--cost", "--out", str(tmp_path / "out")]) == 2
    assert "add --dry" in capfd.readouterr().err
    assert not (tmp_path / "out").exists()
