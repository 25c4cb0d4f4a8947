"""Run folders: whose they are, and that nothing of anybody else's is lost in them."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pbr_jax.base.provenance import provenance
from pbr_jax.cache.artefacts import digest
from pbr_jax.cli.main import main
from pbr_jax.experiment.run_folder import RunFolder, differences, known_runs

pytestmark = pytest.mark.usefixtures("fresh_cache")


@pytest.fixture
def words(write_tweets) -> list[str]:
    """A run that takes a moment; its --out is to be added."""
    root = write_tweets({"ann": ["one tea", "two cats"], "bob": ["three"]})
    place = ["--benchmark.name", "lamp_7", "--benchmark.root", str(root)]
    return ["run", "bm25", *place, "--generate.method", "none", "--eval.resamples", "20", "--out"]


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


FOREIGN = {
    "a model's folder": {"config.json": '{"model_type": "bert"}', "model.safetensors": "weights"},
    "a data folder": {"dev_questions.json": "[]", "config.json": "mine", "predictions.jsonl": "mine"},
    "a run of an older version": {"config.json": "{}", "results.json": "{}", "predictions.jsonl": ""},
    "another program's run.json": {"run.json": '{"name": "something else"}'},
    "a damaged run.json": {"run.json": '{"identity":'},
}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("overwrite", [False, True])
def test_files_that_no_run_wrote_stay_as_they_are(
    words: list[str], tmp_path: Path, kind: str, overwrite: bool, capfd: pytest.CaptureFixture[str]
):
    out = tmp_path / "mine"
    out.mkdir()
    for name, text in FOREIGN[kind].items():
        (out / name).write_text(text)
    before = content(out)
    assert main([*words, str(out), *["--overwrite"] * overwrite]) == 2
    told = capfd.readouterr().err.splitlines()[-1]
    assert "which no run wrote" in told
    assert "choose a new --out" in told
    assert content(out) == before


def test_overwrite_puts_a_run_beside_files_of_other_names(words: list[str], tmp_path: Path):
    out = tmp_path / "mine"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    assert main([*words, str(out)]) == 2
    assert content(out) == {"notes.txt": b"mine"}
    assert main([*words, str(out), "--overwrite"]) == 0
    assert (out / "notes.txt").read_text() == "mine"
    assert main([*words, str(out)]) == 0  # it is the run's folder now


@pytest.mark.parametrize("name", ["log.jsonl", "predictions.jsonl", "run.json", "results.json"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_link_leads_nowhere(
    words: list[str], tmp_path: Path, name: str, overwrite: bool, capfd: pytest.CaptureFixture[str]
):
    """Neither in a new folder nor in a run's own."""
    victim = tmp_path / "victim"
    victim.write_text("somebody's\n")
    out = tmp_path / "out"
    for _ in range(2):
        shutil.rmtree(out, ignore_errors=True)
        if _:
            assert main([*words, str(out)]) == 0
            (out / name).unlink()
        out.mkdir(exist_ok=True)
        (out / name).symlink_to(victim)
        assert main([*words, str(out), *["--overwrite"] * overwrite]) == 2
        assert "is no plain file" in capfd.readouterr().err.splitlines()[-1]
        assert victim.read_text() == "somebody's\n"


def test_another_run_is_named_by_what_differs_and_replaced_only_when_told(
    words: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    out = tmp_path / "out"
    assert main([*words, str(out)]) == 0
    (out / "notes.txt").write_text("mine")
    before = content(out)
    other = [*words, str(out), "--retrieve.k", "1", "--retrieve.b", "0.5"]
    assert main(other) == 2
    told = capfd.readouterr().err.splitlines()[-1]
    assert "retrieve.k (4, now 1), retrieve.b (0.75, now 0.5)" in told
    assert "--overwrite" in told
    assert content(out) == before
    assert main([*other, "--overwrite"]) == 0
    assert (out / "notes.txt").read_text() == "mine"
    assert json.loads((out / "config.json").read_text())["retrieve"]["k"] == 1
    made = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert [event["event"] for event in made] == ["found", "made"]  # of this run alone


def test_other_weights_under_the_same_path_are_another_run(
    tiny_models, words: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    model = tmp_path / "model"
    shutil.copytree(tiny_models["encoder.model"], model)
    dense = [*words[:1], "dense", *words[2:-1], "--encoder.model", str(model), "--out"]
    assert main([*dense, str(tmp_path / "out")]) == 0
    before = content(tmp_path / "out")
    weights = model / "model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-40:] = os.urandom(40)
    raw[-37::4] = bytes(10)  # small exponents: finite numbers
    raw[-1] = 0x3D
    weights.write_bytes(bytes(raw))
    assert main([*dense, str(tmp_path / "out")]) == 2
    assert "differs in the content of encoder" in capfd.readouterr().err.splitlines()[-1]
    assert content(tmp_path / "out") == before
    assert main([*dense, str(tmp_path / "new")]) == 0


def test_data_that_lies_elsewhere_is_the_same_run(words: list[str], tmp_path: Path):
    assert main([*words, str(tmp_path / "out")]) == 0
    before = content(tmp_path / "out")
    root = Path(words[words.index("--benchmark.root") + 1])
    root.rename(tmp_path / "moved")
    moved = [str(tmp_path / "moved") if word == str(root) else word for word in words]
    assert main([*moved, str(tmp_path / "out")]) == 0
    assert content(tmp_path / "out") == before


def test_a_run_that_failed_holds_its_folder_for_nobody(words: list[str], tmp_path: Path):
    """There is nothing in it to lose."""
    offline = ["ipa" if word == "none" else word for word in words]
    offline = [*offline[:-1], "--llm.offline", "--generate.max_new_tokens", "3", "--out"]
    assert main([*offline, str(tmp_path / "out")]) == 2
    assert (tmp_path / "out" / "run.json").exists()
    assert main([*words, str(tmp_path / "out")]) == 0


def test_an_unfinished_folder_is_finished(words: list[str], tmp_path: Path):
    out = tmp_path / "out"
    assert main([*words, str(out)]) == 0
    whole = content(out)
    for missing in ("results.json", "predictions.jsonl", "config.json", "texts.jsonl"):
        (out / missing).unlink()
        assert main([*words, str(out)]) == 0
        again = content(out)
        same = {name for name in whole if name not in ("log.jsonl", "results.json")}
        assert {name: again[name] for name in same} == {name: whole[name] for name in same}
    (out / "results.json").write_text("{")
    assert main([*words, str(out)]) == 0
    assert json.loads((out / "results.json").read_text())["counts"]["examples"] == 2
    left = out / ".predictions.jsonl.x1y2.partial"
    left.write_text("half of")
    assert main([*words, str(out)]) == 0
    assert not left.exists()


def test_differences_are_told_in_words():
    def owner(config: dict, parts: dict, identity: dict) -> dict:
        return {"config": config, "parts": parts, "identity": {"config": "c", "run": "r", **identity}}

    base = owner({"a": {"b": 1}}, {"encoder": {"options": "x", "code": "y"}}, {})
    assert differences(base, owner({"a": {"b": 2}}, {}, {})) == "a.b (1, now 2)"
    content = owner({"a": {"b": 1}}, {"encoder": {"options": "z", "code": "y"}}, {"run": "s"})
    assert differences(base, content) == "the content of encoder"
    code = owner({"a": {"b": 1}}, {"encoder": {"options": "x", "code": "z"}}, {"run": "s"})
    assert differences(base, code) == "the code of encoder"
    assert "evaluation" in differences(base, owner({"a": {"b": 1}}, {}, {"evaluation": "e"}))
    many = owner({str(i): i for i in range(12)}, {}, {})
    assert differences(many, owner({str(i): -1 for i in range(12)}, {}, {})).endswith("and 4 more")


FILES = ("predictions.jsonl", "texts.jsonl", "config.json", "results.json", "run.json")


@pytest.fixture
def refusals(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """What commands that read a run's folder say of it in one line each."""
    commands = {
        "report": ["report"],
        "ask": ["ask", "--user", "ann", "tea", "--run"],
        "picture": ["picture", "--question", "ann", "--out", str(tmp_path / "a.svg"), "--run"],
    }

    def refused(out: Path, *names: str) -> list[str]:
        told = []
        for name in names:
            capfd.readouterr()
            assert main([*commands[name], str(out)]) == 2
            lines = capfd.readouterr().err.splitlines()
            told += [line for line in lines if line.startswith("pbr-jax: error: ")]
        assert len(told) == len(names)
        return told

    return refused


@pytest.mark.parametrize("file", FILES)
def test_an_altered_file_is_refused_by_all_that_read_it_and_mended_by_the_run(
    words: list[str], tmp_path: Path, file: str, refusals: Callable[..., list[str]]
):
    out = tmp_path / "out"
    assert main([*words, str(out)]) == 0
    whole = content(out)
    text = (out / file).read_text()
    (out / file).write_text(text.replace("ann", "bob") if "ann" in text else text.replace("0", "1", 1))
    assert content(out) != whole
    for error in refusals(out, "report", "ask", "picture"):
        assert str(out / file) in error
        assert "run the same command again" in error
    # Whose folder it is decides whether files are replaced, so an altered run.json asks for --overwrite.
    assert main([*words, str(out)]) == (2 if file == "run.json" else 0)
    assert main([*words, str(out), "--overwrite"]) == 0
    mended = content(out)
    assert {name: mended[name] for name in FILES[:3]} == {name: whole[name] for name in FILES[:3]}
    assert main(["report", str(out)]) == 0


def test_what_is_no_finished_run_of_the_same_data_is_refused(
    words: list[str], tmp_path: Path, refusals: Callable[..., list[str]]
):
    """A folder of an older version, one of other data, and one that was killed before its results."""
    out = tmp_path / "out"
    assert main([*words, str(out)]) == 0
    values = json.loads((out / "results.json").read_text())
    del values["files"], values["digest"]
    (out / "results.json").write_text(json.dumps(values))
    assert all("an older version wrote it" in error for error in refusals(out, "report", "ask"))
    assert main([*words, str(out)]) == main(["report", str(out)]) == 0
    file = Path(words[words.index("--benchmark.root") + 1]) / "dev_questions.json"
    before = file.read_text()
    file.write_text(before.replace("one tea", "two teas"))
    changed = "what the run used has changed since (data"
    assert all(changed in error for error in refusals(out, "ask", "picture"))
    file.write_text(before)
    (out / "results.json").unlink()
    unfinished = "has no results.json, so it is no finished run"
    assert all(unfinished in error for error in refusals(out, "report", "ask"))


def test_the_commit_of_a_checkout_is_told():
    root = Path(__file__).parents[1]
    if not (root / ".git").exists():
        pytest.skip("no checkout")
    head = subprocess.run(
        ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    assert provenance()["commit"].removesuffix("+") == head.stdout[:12]


def test_a_stage_that_others_made_is_told_with_their_commit_and_versions(
    words: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    """Commit and versions are part of no key: another process finds the stages, and says who made them."""
    assert main([*words, str(tmp_path / "first")]) == 0
    for manifest in (tmp_path / "cache" / "rank").rglob("stage.json"):
        values = json.loads(manifest.read_text())
        (process,) = values["made_by"]
        assert process == {name: provenance()[name] for name in ("commit", "versions")}
        process["commit"], process["versions"]["jax"] = "0123456789ab", "0.9.0"
        del values["digest"]
        manifest.write_text(json.dumps({**values, "digest": digest(values)}))
    assert main([*words, str(tmp_path / "second")]) == 0
    found = json.loads((tmp_path / "second" / "results.json").read_text())["fingerprint"]
    assert found["commit"] == provenance()["commit"]
    assert list(found["stages"]) == ["rank"]
    assert found["stages"]["rank"][0]["versions"] == {**provenance()["versions"], "jax": "0.9.0"}
    assert "computed rank at commit 0123456789ab with jax 0.9.0; the rest at" in capfd.readouterr().out
    first = json.loads((tmp_path / "first" / "results.json").read_text())
    assert first["fingerprint"]["stages"] == {}


def test_a_run_waits_for_another_that_writes_to_its_folder(words: list[str], tmp_path: Path):
    """Two systems, one folder: the second finds what the first wrote, and leaves it."""
    out = tmp_path / "out"
    command = [sys.executable, "-m", "pbr_jax", *words, str(out)]
    environment = {**os.environ, "PBR_JAX_CACHE": str(tmp_path / "cache"), "JAX_PLATFORMS": "cpu"}
    with RunFolder(out, {}).alone():
        process = subprocess.Popen(
            [*command, "--seed", "1"], env=environment, stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        waiting = "waiting for another process that writes to it"
        assert any(waiting in line for line in process.stderr)  # the data are read before
        assert not out.exists()
        out.mkdir()
        (out / "run.json").write_text(
            json.dumps({"identity": {"run": "x"}, "config": {"seed": 0}, "parts": {}})
        )
        (out / "results.json").write_text("{}")
        before = content(out)
    assert process.wait(120) == 2
    assert "holds another run, which differs in" in process.stderr.read()
    process.stderr.close()
    assert content(out) == before


def test_a_torn_line_in_the_list_of_runs_costs_no_other_line(tmp_path: Path, fresh_cache: Path):
    fresh_cache.mkdir()
    first, second = tmp_path / "first", tmp_path / "sec\u00f6nd"
    for folder in (first, second):
        folder.mkdir()
        RunFolder(folder, {"identity": {}, "config": {}}).sign()
        with (fresh_cache / "runs.jsonl").open("ab") as file:
            file.write(b'"/a/folder\xc3')
    assert known_runs() == [first, second]
