"""Methods that docs/tutorials/new_method.md and docs/howto/learners.md show run outside of the package."""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from doc_blocks import write_files

import pbr_jax
from pbr_jax.base.types import UserError
from pbr_jax.cache import sources
from pbr_jax.cli.main import main
from pbr_jax.config import Config, load, override
from pbr_jax.sweeps import sweep as sweeps

DOCS = Path(__file__).parents[2] / "docs"
PAGES = (DOCS / "tutorials" / "new_method.md", DOCS / "howto" / "learners.md")
SMALL = {"generate.max_new_tokens": 2, "prompt.max_tokens": 300, "eval.resamples": 20}
SMALL |= {"eval.likelihood": "off"}

pytestmark = pytest.mark.usefixtures("fresh_cache")


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """The files that the pages show, by their names."""
    monkeypatch.chdir(tmp_path)
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    return {name: path.resolve() for name, path in write_files(text).items()}


@pytest.fixture
def flags(tiny_models, write_tweets) -> list[str]:
    lengths = {"ann": [1, 5, 3], "bob": [2, 9], "cyd": [4]}
    tweets = {
        u: [" ".join(["tea", f"day{j}", *["cats"] * n]) for j, n in enumerate(own)]
        for u, own in lengths.items()
    }
    place = {"benchmark.name": "lamp_7", "benchmark.root": str(write_tweets(tweets)), **SMALL}
    place |= {"encoder.model": tiny_models["encoder.model"], "llm.model": tiny_models["llm.model"]}
    return [word for name, value in place.items() for word in (f"--{name}", str(value))]


def first(out: Path) -> list[str]:
    lines = (out / "predictions.jsonl").read_text().splitlines()
    return [json.loads(line)["documents"][0]["id"] for line in lines]


def test_the_toy_is_short(shown: dict[str, Path]):
    assert len(shown["longest.py"].read_text().splitlines()) < 30


@pytest.mark.long
def test_the_toy_through_run_report_ask_sweep_and_python(
    shown: dict[str, Path], flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = shown["longest.py"]
    assert main(["run", str(file), *flags, "--out", str(tmp_path / "long")]) == 0
    assert first(tmp_path / "long") == ["ann-1", "bob-1", "cyd-0"]
    assert main(["run", str(file), *flags, "--select.shortest", "--out", str(tmp_path / "short")]) == 0
    assert first(tmp_path / "short") == ["ann-0", "bob-0", "cyd-0"]
    capsys.readouterr()
    assert main(["report", str(tmp_path / "long"), str(tmp_path / "short")]) == 0
    assert "select.shortest=True" in capsys.readouterr().out
    assert main(["ask", "--run", str(tmp_path / "short"), "--user", "ann", "tea"]) == 0
    told = [line.split()[1] for line in capsys.readouterr().err.splitlines() if "ann-" in line]
    assert told[0] == "ann-0"
    with file.open("a") as source:
        source.write(
            '\n\ndef sweep():\n    yield from [{}, {"select.shortest": True}, {"select.method": "top_k"}]\n'
        )
    assert main(["sweep", str(file), *flags, "--out", str(tmp_path / "sweep")]) == 0
    assert len(list((tmp_path / "sweep").glob("*/results.json"))) == 3
    config = override(load(file).config, dict(zip([f[2:] for f in flags[::2]], _typed(flags[1::2]))))
    assert pbr_jax.run(config, tmp_path / "python").records()[0]["documents"][0]["id"] == "ann-1"


def _typed(values: list[str]) -> list[object]:
    return [int(value) if value.isdigit() else value for value in values]


@pytest.mark.long
def test_an_edit_of_its_code_gives_new_numbers(
    shown: dict[str, Path], flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file, out = shown["longest.py"], tmp_path / "out"
    source = file.read_text()
    assert main(["run", str(file), *flags, "--out", str(out)]) == 0
    before = first(out)
    made = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert [event["stage"] for event in made if event["event"] == "made"] == [
        "data",
        "embed",
        "rank",
        "generate",
    ]
    file.write_text(source.replace("reverse=not self.shortest", "reverse=self.shortest"))
    capsys.readouterr()
    assert main(["run", str(file), *flags, "--out", str(out)]) == 2
    assert "the code of select.longest" in capsys.readouterr().err
    assert first(out) == before
    assert main(["ask", "--run", str(out), "--user", "ann", "tea"]) == 2
    assert "whose code has changed since" in capsys.readouterr().err.splitlines()[-1]
    assert main(["run", str(file), *flags, "--out", str(tmp_path / "new")]) == 0
    assert first(tmp_path / "new") == ["ann-0", "bob-0", "cyd-0"] != before
    assert main(["run", str(file), *flags, "--out", str(out), "--overwrite"]) == 0
    assert first(out) == first(tmp_path / "new")


def test_a_method_with_a_stage_of_its_own(
    shown: dict[str, Path], flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "out"
    assert main(["run", str(shown["rare.py"]), *flags, "--dry"]) == 0
    assert "word_counts  would be made" in capsys.readouterr().out
    assert main(["run", str(shown["rare.py"]), *flags, "--out", str(out)]) == 0
    results = json.loads((out / "results.json").read_text())
    assert results["counts"]["rare_documents"] == 6
    assert "word_counts" in results["seconds"]
    assert main(["run", str(shown["rare.py"]), *flags, "--dry"]) == 0
    assert "word_counts  found" in capsys.readouterr().out
    shutil.rmtree(out)
    again = main(["run", str(shown["rare.py"]), *flags, "--collaboration", "none", "--out", str(out)])
    assert again == 2
    assert "select.method rare learns from other users' histories" in capsys.readouterr().err


def test_a_reweighted_retriever_in_a_sweep_with_built_in_ones(shown: dict[str, Path], tmp_path: Path):
    """The ranking is that of BM25's scores times the decay of the time before the question."""
    file = load(shown["decayed.py"])
    config = override(file.config, {"limit": 6, "eval.likelihood": "off", "retrieve.k": 2})
    decayed, bm25, dense = (trial.config for trial in sweeps.trials(file, config))
    assert [c.retrieve.method for c in (decayed, bm25, dense)] == ["decayed_bm25", "bm25", "dense"]
    assert {c.retrieve.k for c in (decayed, bm25, dense)} == {2}

    whole = pbr_jax.run(override(bm25, {"retrieve.k": 1000}), tmp_path / "whole")
    store = pbr_jax.open(whole.path).store
    times = {(d.user_id, d.id): d.time or 0.0 for d in store.documents(range(store.rows))}
    wanted = []
    for example, record in zip(store.examples(), whole.records(), strict=True):
        assert example.time is not None
        scores = {d["id"]: d["score"] for d in record["documents"]}
        for id in scores:
            scores[id] *= np.exp((times[example.user_id, id] - example.time) / (86_400 * 30))
        wanted.append(sorted(scores, key=scores.__getitem__, reverse=True)[:2])

    def found(config: Config, name: str) -> list[list[str]]:
        records = pbr_jax.run(config, tmp_path / name).records()
        return [[document["id"] for document in record["documents"]] for record in records]

    assert found(override(decayed, {"retrieve.days": 30}), "fast") == wanted
    assert found(override(decayed, {"retrieve.days": 1e30}), "slow") == found(bm25, "bm25") != wanted
    with pytest.raises(UserError, match=r"retrieve.days is 0.0, want at least 1"):
        override(config, {"retrieve.days": 0})


def test_a_retriever(shown: dict[str, Path], flags: list[str], tmp_path: Path):
    out = tmp_path / "out"
    assert main(["run", str(shown["earliest.py"]), *flags, "--out", str(out)]) == 0
    assert first(out) == ["ann-0", "bob-0", "cyd-0"]


MISPLACED = """
from dataclasses import dataclass, replace
from typing import Literal

from pbr_jax.config import Config
from pbr_jax.methods.retrieve import Recency
from pbr_jax.options import Select


@dataclass(frozen=True, kw_only=True)
class Renumbered(Select):
    method: Literal["renumbered"] = "renumbered"

    def slot(self, tally):
        return lambda examples, queries, rankings: [
            [replace(candidate, row=ROW) for row, candidate in enumerate(ranking)] for ranking in rankings
        ]


def get_config():
    return Config(system="renumbered", retrieve=Recency(k=4), select=Renumbered())
"""


@pytest.mark.parametrize("row", ["row", "-1", "10**6", "candidate.row ^ 1"])
def test_a_candidate_with_another_documents_row_stops_the_run(row: str, flags: list[str], tmp_path: Path):
    """What is kept of a ranking are its rows: they would bring another user's text into a prompt."""
    file = tmp_path / "renumbered.py"
    file.write_text(MISPLACED.replace("ROW", row))
    with pytest.raises(RuntimeError, match=r"is given as row .*nothing was written"):
        main(["run", str(file), *flags, "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out" / "predictions.jsonl").exists()


@pytest.fixture
def helper(tmp_path: Path, shown: dict[str, Path]) -> Iterator[Callable[[str], Path]]:
    """Writes a config into a folder, with the class of longest.py in a module beside it."""
    source = shown["longest.py"].read_text()
    cls, config = source.split("def get_config")

    def write(folder: str) -> Path:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "own_classes.py").write_text(cls)
        file = tmp_path / folder / "config.py"
        file.write_text(
            "from pbr_jax.config import Config\nfrom own_classes import Longest\n\ndef get_config" + config
        )
        return file

    yield write
    sys.modules.pop("own_classes", None)


def test_a_class_in_a_module_beside_the_config(
    helper: Callable[[str], Path],
    flags: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(sources, "_BEGAN", 2**63)  # the process began after the edit
    file, out = helper("a"), tmp_path / "out"
    assert main(["run", str(file), *flags, "--out", str(out)]) == 0
    sys.modules.pop("own_classes")  # as in a new process
    assert main(["ask", "--run", str(out), "--user", "ann", "tea"]) == 0
    beside = file.parent / "own_classes.py"
    beside.write_text(beside.read_text().replace("reverse=not", "reverse="))
    capsys.readouterr()
    assert main(["ask", "--run", str(out), "--user", "ann", "tea"]) == 2
    assert "own_classes.py, whose code has changed since, or that of a module" in capsys.readouterr().err
    assert main(["run", str(file), *flags, "--out", str(out)]) == 2
    assert "the code of select.longest" in capsys.readouterr().err


def test_modules_of_one_name_beside_two_configs_are_told_apart(helper: Callable[[str], Path]):
    first, second = helper("a"), helper("b")
    assert load(first).config.select.method == "longest"
    assert load(first).config.select.method == "longest"
    with pytest.raises(UserError, match="this process has another module own_classes"):
        load(second)


def test_a_wrong_method_is_told_when_the_config_is_made(shown: dict[str, Path]):
    config = load(shown["longest.py"]).config
    with pytest.raises(UserError, match=r"select.method is 'longer', want one of longest"):
        type(config.select)(method="longer")
    with pytest.raises(
        UserError, match=r"select.method is 'longer', want one of top_k, .*, or a class of your own"
    ):
        override(config, {"select.method": "longer"})


@pytest.mark.long
def test_a_method_that_learns_from_a_stream(
    shown: dict[str, Path], flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "out"
    assert main(["run", str(shown["recentred.py"]), *flags, "--stream.size", "2", "--out", str(out)]) == 0
    results = json.loads((out / "results.json").read_text())
    assert [(b["start"], b["end"]) for b in results["blocks"]] == [(0, 2), (2, 3)]
    assert [set(b["seconds"]) for b in results["blocks"]] == [{"answer", "learn"}] * 2
    (stage,) = (tmp_path / "cache" / "stream").glob("*/states")
    assert sorted(path.name for path in stage.iterdir()) == ["00001"]
    files = sorted(stage.parent.glob("blocks/*/retrieve.*"))
    observed = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert len(observed) == 3
    mean = np.load(stage / "00001" / "retrieve" / "mean.npy")
    np.testing.assert_allclose(mean, np.mean(observed[:2], axis=0), rtol=1e-6)
    assert main(["report", str(out)]) == 0
    assert "of each block of the stream" in capsys.readouterr().out
    assert main(["ask", "--run", str(out), "--user", "ann", "tea"]) == 0  # with the last state
    (last,) = (tmp_path / "cache" / "stream_last").glob("*/retrieve/mean.npy")
    np.testing.assert_allclose(np.load(last), np.mean(observed, axis=0), rtol=1e-6)
