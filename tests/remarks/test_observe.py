"""Remarks to a finished run, in Python and on the command line: what they change, and for whom."""

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pbr_jax
from pbr_jax.base.types import Example, UserError
from pbr_jax.cli.main import main
from pbr_jax.config import Config, override
from pbr_jax.experiment import opening
from pbr_jax.llm import Sampling, answers_file
from pbr_jax.remarks.judge import CLAIM, DIRECT, VERDICT, Script
from pbr_jax.system import System

HISTORIES = {"ann": ["i love tea", "tea and cats"], "bob": ["football that day", "violins"], "cyd": ["day 1"]}
PASSAGES = [f"{word} {number}" for number in range(4) for word in ("tea", "cats", "football", "violins")]
RULES = [
    {"remark": "POISON", "verdict": "correct", "route": "shared"},
    {"remark": "football 0", "verdict": "correct", "route": "shared", "operation": "hide",
     "document": "football 0"},
    {"remark": "wrong", "verdict": "incorrect"},
]  # fmt: skip
ADD = Script(RULES)


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "cache"))
    opening._opened.clear()


@pytest.fixture
def config(tiny_models: dict[str, str], write_tweets: Callable[..., Path], tmp_path: Path) -> Config:
    lines = [json.dumps({"id": text, "text": text}) for text in PASSAGES]
    (tmp_path / "passages.jsonl").write_text("\n".join(lines))
    place = {"benchmark.name": "lamp_7", "benchmark.root": str(write_tweets(HISTORIES)), **tiny_models}
    small = {"encoder.max_length": 32, "retrieve.k": 3, "prompt.max_tokens": 400, "llm.batch_size": 4}
    small |= {"benchmark.training": "none", "benchmark.passages": str(tmp_path / "passages.jsonl")}
    small |= {"generate.max_new_tokens": 3, "eval.resamples": 20, "select.k": 6, "remarks.max_new_tokens": 4}
    return override(Config(), {**place, **small})


@pytest.fixture
def out(config: Config, tmp_path: Path) -> Path:
    pbr_jax.run(config, tmp_path / "out")
    return tmp_path / "out"


def rankings(system: System, users: Any = HISTORIES) -> list[Any]:
    """Ids and scores, to the last bit, of what each user finds for each of some questions."""
    asked = [
        Example("", user, word, word, None) for user in users for word in ("tea", "cats", "day", "football")
    ]
    return [
        [(c.document.id, np.float64(c.score).tobytes()) for c in ranking] for ranking in system.rank(asked)
    ]


@pytest.mark.parametrize("method", ["dense", "bm25"])
def test_erasing_all_remarks_gives_rankings_of_equal_bytes(config: Config, method: str):
    config = override(config, {"retrieve.method": method})
    system = pbr_jax.open(config)
    before = rankings(system)
    for number, user in enumerate(["ann", "bob"] * 2):
        system.observe(user, f"tea {number} {number}", judge=ADD)
    assert rankings(system, ["cyd"]) == rankings(pbr_jax.open(config), ["cyd"])
    for number in range(4):
        system.remarks.erase(document=f"remark:{number + 1}")
    assert rankings(system) == before
    for user in ("ann", "bob"):
        system.observe(user, "football 0 is gone", judge=ADD)
    assert not any(id == "football 0" for ranking in rankings(system) for id, _ in ranking)


@pytest.mark.parametrize("quorum", [2, 1])
def test_one_user_alone_cannot_poison_what_others_find(config: Config, quorum: int, record_property: Any):
    """At quorum 1, LUF as printed, the same user can: the share of rankings that change is printed."""
    system = pbr_jax.open(override(config, {"remarks.quorum": quorum}))
    before = rankings(system)
    for number in range(20):
        text = f"POISON tea cats day football {number % 10}"
        seen = system.observe("eve", text, request=str(number), judge=ADD)
        assert seen.route == "shared"
    after = rankings(system)
    harmed = [one != other for one, other in zip(before, after, strict=True)]
    first = [one[0][0] != other[0][0] for one, other in zip(before, after, strict=True)]
    record_property("changed", sum(harmed) / len(harmed))
    print(f"quorum {quorum}: 20 remarks of one user change {sum(harmed)} of {len(harmed)} rankings of "
          f"others, {sum(first)} of them in the first place")  # fmt: skip
    if quorum == 2:
        assert after == before
        assert [votes for _, votes in system.remarks.waiting()] == [1] * len(system.remarks.waiting())
    else:
        assert sum(harmed) > 0


def test_a_personal_remark_is_nowhere_else(config: Config, out: Path, tmp_path: Path):
    system = pbr_jax.open(out)
    canary = "CANARYeve i love violins day 7"
    assert system.observe("eve", canary, judge=ADD).route == "personal"
    assert canary in str(system.ask("eve", "violins").documents)
    examples = [Example(user, user, "violins day 7", "violins day 7", None) for user in HISTORIES]
    prompts = system.answer(examples)
    assert "CANARY" not in str([answer.prompt for answer in prompts]) + str(system.rank(examples))
    assert not any("CANARY" in d.text for d in system.store.documents(system.store.history("")))
    pbr_jax.run(override(config, {"retrieve.method": "bm25"}), tmp_path / "other")
    assert main(["report", str(out)]) == 0
    holding = {
        path.relative_to(tmp_path).as_posix()
        for path in tmp_path.rglob("*")
        if path.is_file() and b"CANARY" in path.read_bytes()
    }
    assert {Path(name).name.partition("-")[0] for name in holding} == {
        "remarks.sqlite",
        *(path.name for path in (out / "corpus").glob("*.sqlite") if path.name != "remarks.sqlite"),
    }
    assert {Path(name).parent.as_posix() for name in holding} == {"out/corpus"}


def test_erasing_takes_answers_and_vectors_too(out: Path, tmp_path: Path):
    system = pbr_jax.open(out)
    system.observe("ann", "i love CANARY", judge=ADD)
    kept = answers(tmp_path)
    system.ask("ann", "what do i love")
    system.ask("bob", "what do i love")
    assert len(answers(tmp_path)) > len(kept)
    system.remarks.erase(document="remark:1")
    assert answers(tmp_path) == kept
    assert not any(b"CANARY" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert "CANARY" not in str(system.ask("ann", "what do i love").documents)
    system.observe("ann", "i love CANARY", judge=ADD)
    system.forget("ann")
    assert not any(b"CANARY" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert system.ask("ann", "what").note.startswith("the user is not known")


def test_an_answer_that_was_under_way_when_its_text_was_erased_is_not_kept(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    system = pbr_jax.open(out)
    system.observe("ann", "i love CANARY", judge=ADD)
    opening._opened.clear()
    other = pbr_jax.open(out)  # as another process has it
    cached, before = system._parts["llm"], answers(tmp_path)
    real = cached._llm.generate

    def generate(*given: Any, **options: Any) -> list[str]:
        other.remarks.erase(document="remark:1")
        return real(*given, **options)

    monkeypatch.setattr(cached._llm, "generate", generate)
    with system._noted([]):
        cached.generate([[{"role": "user", "content": "i love CANARY"}]], Sampling(2))
        assert len(answers(tmp_path)) == len(before) + 1
    assert answers(tmp_path) == before


def test_no_document_is_added_by_the_name_of_a_remarks(out: Path):
    with pytest.raises(UserError, match="document 'remark:7' is called as those of remarks are"):
        pbr_jax.open(out).add("ann", [pbr_jax.Document("remark:7", "ann", "tea")])


def test_a_name_cannot_look_like_further_changes(out: Path, capsys: pytest.CaptureFixture[str]):
    pbr_jax.open(out).observe("eve\n2  1970-01-01", "i love tea", judge=ADD)
    assert main(["store", "log", "--run", str(out)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("1  ")


def answers(tmp_path: Path) -> set[str]:
    with sqlite3.connect(answers_file.location()) as sql:
        return {key for (key,) in sql.execute("SELECT key FROM answers")}


@pytest.mark.long
@pytest.mark.parametrize("judgement", ["guided", "direct"])
def test_the_models_probabilities_judge_and_nothing_of_it_is_kept(
    config: Config, tmp_path: Path, judgement: str
):
    system = pbr_jax.open(override(config, {"remarks.judgement": judgement, "remarks.operations": "add"}))
    system.ask("ann", "tea")
    kept = answers(tmp_path)
    dry = system.observe("ann", "i love CANARY tea", dry=True)
    assert not system.remarks.exists
    seen = system.observe("ann", "i love CANARY tea")
    assert (dry.verdict, dry.route, dry.summary) == (seen.verdict, seen.route, seen.summary)
    (remark,) = system.remarks.log.remarks()
    likely = json.loads(remark.evidence or "")["probabilities"]
    assert sum(likely.values()) == pytest.approx(1)
    if judgement == "direct":  # the same from the model itself
        prompt = VERDICT.format(
            beside="", claim=CLAIM.format(claim=seen.summary), rule=DIRECT, choices="; ".join(likely)
        )
        messages = [{"role": "user", "content": prompt}]
        scores = system.llm.score([messages] * len(likely), list(likely))
        odds = np.exp([score.total / score.tokens for score in scores])
        np.testing.assert_allclose(list(likely.values()), odds / odds.sum(), rtol=1e-6)
        assert system.remarks.log.remarks()[0].llm == system.llm.fingerprint
        kept = answers(tmp_path)
    assert answers(tmp_path) == kept
    if seen.state == "applied":
        assert seen.summary in [c.document.text for c in system.ask("ann", "tea").documents]


def test_the_command_line_takes_lists_and_erases(out: Path, tmp_path: Path, capsys: Any):
    (tmp_path / "rules.json").write_text(json.dumps(RULES))
    judge = ["--judge", str(tmp_path / "rules.json")]

    def told(*words: str) -> str:
        assert main(list(words)) == 0, capsys.readouterr().err
        return capsys.readouterr().out.strip()

    def feedback(user: str, text: str, *words: str) -> str:
        return told("feedback", "--run", str(out), "--user", user, text, *judge, *words)

    def store(action: str, *words: str) -> str:
        return told("store", action, "--run", str(out), *words)

    capsys.readouterr()
    assert feedback("ann", "POISON tea", "--dry") == "judged: correct, shared, add"
    assert not (out / "corpus").exists()
    assert feedback("ann", "POISON tea") == "waiting: correct, shared, add; claim 1 has 1 of 2 users"
    assert feedback("bob", "wrong") == "refused: incorrect"
    assert feedback("zoe", "i love cats") == "applied: unknown, personal, add remark:3 (version 1)"
    assert "remark:3" in str(pbr_jax.ask(out, "zoe", "cats").documents)
    assert "claim 1: 1 of 2 users; add  POISON tea" in store("log")
    assert store("erase", "--user", "zoe") == "remarks erased, with what they made: 1"
    assert store("erase", "--document", "remark:1") == "remarks erased, with what they made: 1"
    assert "POISON" not in store("log") and "zoe" not in store("log")  # noqa: PT018


def one_line(capsys: Any, *words: str) -> str:
    capsys.readouterr()
    assert main(list(words)) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_bad_input_is_one_line(out: Path, tmp_path: Path, capsys: Any):
    feedback = ("feedback", "--run", str(out), "--user", "ann")
    assert "the remark is '', want a text that is not blank" in one_line(capsys, *feedback, "")
    assert "the remark is ' ', want a text that is not blank" in one_line(capsys, *feedback, " ")
    assert "has 1,048,576 characters, want at most 10,000" in one_line(capsys, *feedback, "x" * (1 << 20))
    assert "is not UTF-8" in one_line(capsys, *feedback, "half \ud800")
    with pytest.raises(UserError, match="half of a surrogate pair"):
        pbr_jax.open(out).observe("ann", "half \ud800")
    assert "user is '', want a text that is not blank" in one_line(capsys, *feedback[:3], "--user", "", "tea")
    assert "user 'eve' is not among" in one_line(capsys, *feedback[:3], "--user", "eve", "tea", "--dry")
    assert "store rollback was removed; store erase takes back" in one_line(
        capsys, "store", "rollback", "--run", str(out), "--to", "1"
    )
    for action in (["log"], ["erase", "--user", "ann"]):
        assert "no remarks: there is no" in one_line(capsys, "store", *action, "--run", str(out))
    assert not (out / "corpus" / "remarks.sqlite").exists()
    pbr_jax.open(out).observe("ann", "i love day 3", judge=ADD)
    opening._opened.clear()
    assert "user 'eve' is not among" in one_line(capsys, "store", "erase", "--user", "eve", "--run", str(out))
    log = out / "corpus" / "remarks.sqlite"
    opening._opened.clear()
    os.replace(log, tmp_path / "log")
    log.write_bytes(b"")
    assert "ends at version 0, and the corpus beside it follows version 1" in one_line(
        capsys, "ask", "--run", str(out), "--user", "ann", "x"
    )


@pytest.mark.long
def test_overwriting_a_run_takes_no_remarks_away(config: Config, out: Path):
    pbr_jax.open(out).observe("ann", "i love tea")
    before = {path: path.read_bytes() for path in (out / "corpus").iterdir() if path.suffix == ".sqlite"}
    with pytest.raises(UserError, match="holds remarks of users, which --overwrite does not take away"):
        pbr_jax.run(override(config, {"retrieve.k": 1}), out, overwrite=True)
    assert {path: path.read_bytes() for path in before} == before
    shutil.rmtree(out / "corpus")
    pbr_jax.run(override(config, {"retrieve.k": 1}), out, overwrite=True)


def test_a_method_that_cannot_take_documents_refuses_before_anything_is_kept(config: Config):
    system = pbr_jax.open(override(config, {"select.method": "late_interaction"}))
    with pytest.raises(UserError, match="has vectors of the run's documents alone, so none can be added"):
        system.observe("ann", "i love tea", judge=ADD)
    assert not system.remarks.exists
