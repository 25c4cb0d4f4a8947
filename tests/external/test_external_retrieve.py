"""Runs over a memory system: its own texts in rankings, metrics, prompts and cards; the gate; resuming."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pbr_jax
from pbr_jax.base.files import cache_folder
from pbr_jax.base.types import NO_ROW, Candidate, Document, Example, UserError
from pbr_jax.cli.main import main
from pbr_jax.config import Config, override
from pbr_jax.experiment import forgetting
from pbr_jax.exporting import tables
from pbr_jax.external.process import Process
from pbr_jax.remarks.judge import Script
from pbr_jax.stages.rankings import Rankings
from pbr_jax.system import System

TOY = Path(__file__).with_name("toy.py")
DOCUMENTS = [
    {"id": "s1", "user": "ann", "text": "i love tea", "time": "2024-01-01"},
    {"id": "s2", "user": "ann", "text": "violins that day", "time": "2024-02-01"},
    {"id": "s3", "user": "ann", "text": "i love tea and cats", "time": "2024-03-01"},
    {"id": "s1", "user": "bob", "text": "i love football", "time": "2024-01-01"},
]
QUESTIONS = [
    {
        "id": "late",
        "user": "ann",
        "input": "love cats",
        "target": "tea",
        "time": "2024-04-01",
        "relevant": ["s3"],
    },
    {
        "id": "early",
        "user": "ann",
        "input": "love cats",
        "target": "x",
        "time": "2024-02-15",
        "relevant": ["s1"],
    },
    {
        "id": "other",
        "user": "bob",
        "input": "love tea",
        "target": "y",
        "time": "2024-04-01",
        "relevant": ["s1"],
    },
]

pytestmark = pytest.mark.usefixtures("fresh_cache")


@pytest.fixture
def fields(tiny_models: dict[str, str], tmp_path: Path) -> dict[str, Any]:
    root = tmp_path / "data"
    root.mkdir()
    for name, records in (("documents", DOCUMENTS), ("dev", QUESTIONS)):
        (root / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return {
        "benchmark.name": "own", "benchmark.root": str(root), "benchmark.training": "none", **tiny_models,
        "encoder.max_length": 32, "retrieve.method": "external", "retrieve.adapter": str(TOY),
        "retrieve.k": 2, "generate.method": "none", "eval.likelihood": "off", "eval.resamples": 20,
    }  # fmt: skip


@pytest.fixture
def config(fields: dict[str, Any]) -> Config:
    return override(Config(), fields)


def test_a_run_ranks_measures_and_shows_texts_by_their_sources(config: Config, tmp_path: Path, capsys: Any):
    results = pbr_jax.run(config, tmp_path / "out")
    told = {one["id"]: [shown["sources"] for shown in one["documents"]] for one in results.records()}
    # The early question must not see the session that fits it best, which came later.
    assert told == {"late": [["s3"], ["s1"]], "early": [["s1"], ["s2"]], "other": [["s1"]]}
    assert results.metrics == {"recall@1": 1.0}
    assert results.values["measured"]["memories"]["documents"] == 4
    assert main(["show", str(tmp_path / "out"), "--question", "late"]) == 0
    shown = capsys.readouterr().out
    assert "from s3" in shown
    assert "i love tea and cats" in shown
    assert "relevant, and not ranked" not in shown
    (tmp_path / "trec").mkdir()
    tables.write_rankings(tmp_path / "trec", tmp_path / "out", "trec")
    lines = (tmp_path / "trec" / "run.trec").read_text().splitlines()
    assert [line.split()[2] for line in lines if line.startswith("late")] == ["s3", "s1"]


@pytest.mark.long
@pytest.mark.parametrize("show", ["passage", "around", "document"])
def test_prompts_show_texts_of_their_own(config: Config, tmp_path: Path, show: str):
    more = {"corpus.chunk": "words", "prompt.show": show, "prompt.max_tokens": 400, "eval.likelihood": "on"}
    results = pbr_jax.run(override(config, more), tmp_path / "out")
    assert all(record["prompt_documents"] for record in results.records())
    texts = [json.loads(line) for line in (tmp_path / "out" / "texts.jsonl").read_text().splitlines()]
    assert "i love tea and cats" in json.dumps(texts[0]["prompt"])


def test_a_question_that_the_run_did_not_have_is_asked_now(config: Config, tmp_path: Path):
    system = pbr_jax.open(config)
    example = Example("new", "ann", "violins", "violins", None, time=math.inf)
    (ranking,) = system.rank([example])
    assert [one.sources for one in ranking] == [("s2",), ("s1",)]


def test_a_remark_on_a_memory_system_changes_what_it_is_told(config: Config, tmp_path: Path):
    pbr_jax.run(config, tmp_path / "out")
    system = pbr_jax.open(tmp_path / "out")
    rule = {"verdict": "correct", "operation": "modify", "document": "s3"}
    judge = Script([{"remark": "dogs", **rule}, {"remark": "football", **rule}])
    seen = system.observe("ann", "i love dogs not cats", judge=judge)
    assert (seen.state, seen.operation, seen.document) == ("applied", "modify", "remark:1")
    example = Example("new", "ann", "love cats dogs", "", None, time=math.inf)
    (ranking,) = system.rank([example])
    assert [one.sources for one in ranking] == [("remark:1",), ("s1",)]  # and s3 is hidden
    other = system.observe("bob", "i hate football", judge=judge)  # s3 is not of bob: nothing is replaced
    assert (other.operation, other.document) == ("add", "remark:2")


def test_a_system_that_answers_with_another_users_memory_is_stopped(config: Config, tmp_path: Path):
    leaks = [{"text": "i love tea", "sources": ["s2"]}]
    config = override(config, {"retrieve.settings": json.dumps({"answer": leaks})})
    with pytest.raises(UserError, match=r"from \['s2'\], which was not added for user bob"):
        pbr_jax.run(config, tmp_path / "out")


@pytest.mark.parametrize(
    ("owner", "sources", "words"),
    [
        ("bob", ("s1",), "belong to other users"),
        ("ann", (), "has the sources none"),
        ("ann", ("s1", "s9"), r"has the sources \['s9'\]"),
        ("ann", ("s1", "s3"), r"has the sources \['s3'\]"),  # which comes after the question
    ],
)
def test_the_gate_holds_by_the_owner_and_by_every_source(
    config: Config, owner: str, sources: tuple[str, ...], words: str
):
    system = pbr_jax.open(config)
    example = next(one for one in system.store.examples() if one.id == "early")
    own = Candidate(Document("memory", owner, "tea"), 1.0, NO_ROW, sources=sources)
    slots = {name: (lambda tally: lambda examples, *_: [[] for _ in examples])
             for name in ("expand", "neighbours", "retrieve")}  # fmt: skip
    parts = {**slots, "store": system.store, "select": lambda tally: lambda *_: [[own]]}
    with pytest.raises(RuntimeError, match=words):
        System(parts).rank([example])
    with pytest.raises(RuntimeError, match=words):
        System(parts, collaboration="none").score([example], [[own]])


def test_texts_of_their_own_are_refused_where_documents_are_needed(config: Config, tmp_path: Path):
    for changed, words in (
        ({"select.method": "mmr"}, "needs documents; take select.method top_k"),
        (
            {"retrieve.method": "fused", "retrieve.of": ("external", "bm25")},
            "finds texts that are no documents",
        ),
        ({"neighbours.method": "mean", "neighbours.m": 2, "collaboration": "text"}, "memory alone"),
        ({"retrieve.adapter": "none.py"}, "which is no file"),
        ({"retrieve.settings": "[1]"}, "want a JSON object"),
    ):
        with pytest.raises(UserError, match=words):
            pbr_jax.run(override(config, changed), tmp_path / "out")


def test_the_key_covers_adapter_environment_and_settings(config: Config, tmp_path: Path):
    from pbr_jax.experiment.plan import Plan

    adapter = tmp_path / "copy.py"
    adapter.write_text(TOY.read_text())
    same = Plan(override(config, {"retrieve.adapter": str(adapter), "retrieve.timeout": 9.0})).ranked.key
    assert same == Plan(config).ranked.key
    adapter.write_text(TOY.read_text() + "# changed\n")
    keys = {same, Plan(override(config, {"retrieve.adapter": str(adapter)})).ranked.key}
    for name, value in (("settings", '{"a": 1}'), ("model", "small"), ("k", 3)):
        keys.add(Plan(override(config, {f"retrieve.{name}": value})).ranked.key)
    assert len(keys) == 5


KILLED = """
import os, signal, sys
from pbr_jax.cli.main import main
from pbr_jax.external.process import Process
search, left = Process.search, [int(sys.argv[1])]
def dying(self, *arguments):
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    left[0] -= 1
    return search(self, *arguments)
Process.search = dying
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.long
def test_a_run_that_is_killed_goes_on_without_a_second_write(
    fields: dict[str, Any], config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    whole = pbr_jax.run(config, tmp_path / "whole")
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "second"))
    words = [f"--{name}={value}" for name, value in fields.items()]
    file = tmp_path / "config.py"
    file.write_text("from pbr_jax.config import Config\n\n\ndef get_config():\n    return Config()\n")
    command = ["run", str(file), *words, "--out", str(tmp_path / "out")]
    for left, code in ((0, -9), (1, -9), (9, 0)):
        done = subprocess.run([sys.executable, "-c", KILLED, str(left), *command], env=os.environ)
        assert done.returncode == code
    (kept,) = (tmp_path / "second" / "memories").glob("*/memories.jsonl")
    assert [json.loads(line)["id"] for line in kept.read_text().splitlines()] == ["late", "early", "other"]
    assert sorted(path.name for path in kept.parent.iterdir()) == [
        "measures.json",
        "memories.jsonl",
        "needs.json",
        "stage.json",
    ]
    assert main([*command]) == 0
    assert (tmp_path / "out" / "predictions.jsonl").read_text() == (
        whole.path / "predictions.jsonl"
    ).read_text()


def test_rankings_keep_texts_of_their_own(config: Config, tmp_path: Path):
    from pbr_jax.stages.rankings import _kept

    store = pbr_jax.open(config).store
    example = next(iter(store.examples()))
    ranking = [
        Candidate(Document("m", "ann", "tea\n\u2028", time=3.5), 2.0, NO_ROW, {"a": 1.0}, ("s1", "s2")),
        Candidate(store.documents([0])[0], 1.0, 0),
        Candidate(Document("n", "ann", "cats"), 0.5, NO_ROW, sources=("s3",)),
    ]
    Rankings.keep(tmp_path, [(example.id, _kept(ranking))])
    assert list(Rankings(tmp_path).read(store, [example])) == [ranking]


class Killed(BaseException):
    """In place of a kill."""


@pytest.mark.parametrize("documents", [[], ["s3"]])
def test_what_a_memory_system_and_its_runs_keep_is_forgotten(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, documents: list[str]
):
    """Of a run that is finished, and of one that is killed while the system remembers."""
    told = [{**one, "text": f"CANARY{one['user']}{one['id']}x {one['text']}"} for one in DOCUMENTS]
    file = Path(config.benchmark.root) / "documents.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in told))
    word = f"CANARYann{''.join(documents)}".encode()

    def holding(folder: Path, word: bytes = word) -> list[str]:
        files = [path for path in folder.rglob("*") if path.is_file()]
        return [path.name for path in files if word in path.read_bytes()]

    results = pbr_jax.run(config, tmp_path / "out")
    before = list(results.records())
    real, left = Process.search, [2]

    def dying(self: Process, *arguments: Any) -> list[Any]:
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        return real(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Process, "search", dying)
        with pytest.raises(Killed):
            pbr_jax.run(override(config, {"retrieve.k": 3}), tmp_path / "second")
    cache = cache_folder()
    assert {"memory.jsonl", "asked.jsonl", "memories.jsonl", "rankings.jsonl"} <= {*holding(cache)}
    forgotten = forgetting.forget("ann", documents=documents)
    assert holding(cache) == holding(tmp_path / "out") == holding(tmp_path / "second") == []
    stay = [one for one in before if one["id"] in ("other", *["early"] * len(documents))]  # sees no s3
    assert forgotten.runs == [{"run": str(tmp_path / "out"), "lines": len(before) - len(stay)}]
    assert list(results.records()) == stay
    pbr_jax.run(override(config, {"retrieve.k": 3}), tmp_path / "second")
    assert holding(cache) == []
    assert holding(cache, b"CANARYbobs1x")


@pytest.mark.parametrize("kept", [False, True])
def test_an_audit_finds_what_a_memory_system_keeps(
    fields: dict[str, Any], tmp_path: Path, kept: bool, capsys: pytest.CaptureFixture[str]
):
    adapter = tmp_path / "adapter.py"
    text = TOY.read_text()
    deletes = 'with open(self.file, "w", encoding="utf-8") as lines:'
    assert text.count(deletes) == 1
    adapter.write_text(
        text.replace(deletes, deletes.replace("self.file", 'self.file + ".old"')) if kept else text
    )
    given = fields | {"retrieve.adapter": str(adapter), "retrieve.k": 20}
    file = tmp_path / "config.py"
    file.write_text("from pbr_jax.config import Config\n\n\ndef get_config():\n    return Config()\n")
    words = [f"--{name}={value}" for name, value in given.items()]
    assert main(["audit", str(file), *words]) == (2 if kept else 0)
    said = capsys.readouterr().out
    assert "canaries that were shown or said: 20 before" in said
    assert ("memory.jsonl" in said) == kept
