"""Questions of finished runs in full: what was asked, shown, answered and written, whatever was decoded."""

import json
import re
from pathlib import Path

import pytest

from pbr_jax import run
from pbr_jax.base.types import UserError
from pbr_jax.cli.main import main
from pbr_jax.config import Config, override
from pbr_jax.data import synthetic
from pbr_jax.experiment.questions import examples


@pytest.fixture
def config(tiny_models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Scored, nothing decoded."""
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "cache"))
    synthetic.generate(tmp_path / "world", users=4, cohorts=1)
    fields = {"benchmark.name": "synthetic", "benchmark.root": str(tmp_path / "world"), "limit": 3}
    fields |= {"retrieve.method": "recency", "retrieve.k": 2, "generate.method": "none"}
    return override(Config(), {**fields, **tiny_models, "eval.likelihood": "on"})


@pytest.mark.long
def test_a_scored_run_is_decoded_for_its_examples_alone(config: Config, tmp_path: Path):
    results = run(config, tmp_path / "recency")
    bare = override(config, {"retrieve.method": "none", "system": "zero_shot"})
    run(bare, tmp_path / "bare")
    text = examples([tmp_path / "bare", tmp_path / "recency"], 2)
    assert text.count("## Example") == 2
    assert text.startswith("Runs that only score answers decode these")
    assert text.count("Question: Repeat what this person always says. article: What will you bring") == 2
    for line in results.records()[:2]:
        assert f"question {line['id']} of user {line['user_id']}" in text
        assert f"What the user wrote: {line['target']}" in text
        assert not line["prediction"]
    assert results.records()[2]["target"] not in text
    assert text.count("Answer of zero_shot: ") == 2
    assert "Shown by zero_shot" not in text
    shown = text.partition("Shown by ")[2]
    assert "1. question: What will you bring to" in shown
    assert " | answer: " in shown


@pytest.mark.long
def test_examples_are_printed_after_a_run_that_asks_for_them(config, tmp_path: Path, capfd, tiny_models):
    fields = {"benchmark.name": "synthetic", "benchmark.root": str(tmp_path / "world"), "limit": 2}
    fields |= {"generate.method": "none", "eval.likelihood": "on", "eval.examples": 1, **tiny_models}
    words = [f"--{name}={value}" for name, value in fields.items()]
    assert main(["run", "recency", *words, "--out", str(tmp_path / "r")]) == 0
    assert "## Example 1 of 1" in capfd.readouterr().out
    assert main(["examples", str(tmp_path / "r"), "--count", "2"]) == 0
    assert "## Example 2 of 2" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("show", "expected"),
    [("passage", "Three b."), ("around", "Two a. >>> Three b. <<<"), ("document", "One a. Two a. Three b.")],
)
def test_documents_are_shown_as_the_prompts_show_them(
    show: str, expected: str, tmp_path: Path, tiny_models: dict[str, str]
):
    """Of a document of three passages, of which the last one is found."""
    root = tmp_path / "own"
    root.mkdir()
    (root / "task.toml").write_text('kind = "generation"\n')
    document = {"id": "d", "user": "ann", "text": "One a. Two a. Three b."}
    asked = {"id": "q", "user": "ann", "input": "three b", "target": "b"}
    (root / "documents.jsonl").write_text(json.dumps(document) + "\n")
    (root / "dev.jsonl").write_text(json.dumps(asked) + "\n")
    fields = {
        "benchmark.name": "own",
        "benchmark.root": str(root),
        "retrieve.method": "bm25",
        "retrieve.k": 1,
    }
    fields |= {"corpus.chunk": "sentences", "corpus.words": 2, "corpus.stride": 2, "prompt.show": show}
    fields |= {"generate.method": "ipa", "generate.max_new_tokens": 1, **tiny_models}
    found = run(override(Config(), fields), tmp_path / "out")
    shown = json.loads((found.path / "texts.jsonl").read_text())["prompt"][-1]
    text = examples([found.path], 1)
    assert expected in shown["content"]
    assert re.search(rf"^1\. .*{re.escape(expected)}$", text, flags=re.MULTILINE)


@pytest.mark.long
def test_what_cannot_be_shown_is_named(config: Config, tmp_path: Path):
    run(config, tmp_path / "some")
    synthetic.generate(tmp_path / "other", users=4, cohorts=1, seed=1)
    run(override(config, {"benchmark.root": str(tmp_path / "other"), "limit": 1}), tmp_path / "one")
    with pytest.raises(UserError, match="want at least 1"):
        examples([tmp_path / "some"], 0)
    with pytest.raises(UserError, match="was asked other questions"):
        examples([tmp_path / "some", tmp_path / "one"], 3)
    with pytest.raises(UserError, match="is no finished run"):
        examples([tmp_path / "world"], 1)
