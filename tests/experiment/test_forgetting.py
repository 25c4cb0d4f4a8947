"""Who is forgotten is in no byte of the cache and of run folders; a run made anew never knew the user."""

import contextlib
import json
import math
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import pbr_jax
from pbr_jax.base.types import UserError
from pbr_jax.cli.main import main
from pbr_jax.config import Config, choose, load, names, override
from pbr_jax.corpus import vectors
from pbr_jax.eval import run_files
from pbr_jax.experiment import audit, forgetting, opening
from pbr_jax.experiment.run_folder import RunFolder
from pbr_jax.remarks.judge import Script

CONFIGS = Path(__file__).parents[2] / "configs"
TOPICS = ("tea", "cats", "football", "violins")  # words that the tiny encoder knows
GONE = ("b3", "train/a5", "a5")  # the last two are one, who is called so where both splits are in a store
TRAINING = {"epochs": 1, "batch_size": 4, "devices": 1, "selection": 0.2}
SMALL: dict[str, Any] = {
    "prompt.max_tokens": 200, "generate.max_new_tokens": 4, "llm.batch_size": 8, "eval.resamples": 20,
    "neighbours.m": 3, "retrieve.k": 2, "select.k": 2, "encoder.max_length": 32, 
    **{f"{part}.training.{name}": value for part in ("user_encoder", "retrieve", "select")
       for name, value in TRAINING.items()},
}  # fmt: skip
QUIET: dict[str, Any] = {"generate.method": "none", "eval.likelihood": "off"}
STREAM: dict[str, Any] = {"stream.size": 3, "encoder.normalize": "yes", "retrieve.labels.kind": "self"}
STREAM |= {f"retrieve.update.{name}": value for name, value in TRAINING.items() if name != "selection"}
STREAM |= {"retrieve.update.batch_size": 2}
SYSTEMS: dict[str, tuple[str, dict[str, Any]]] = {
    "bm25": ("bm25", {}),
    "lancedb": ("dense", {"retrieve.index": "lancedb", **QUIET}),
    "cfrag": ("cfrag", {}),
    "purple": ("purple", {"select.num_layers": 1, "select.num_heads": 2, "select.rollouts": 2,
                          "select.query_tokens": 16, "select.record_tokens": 12, "retrieve.k": 4}),
    "pbr": ("pbr", {"expand.max_new_tokens": 4, "expand.history_tokens": 64}),
    "clusterrag": ("clusterrag", {}),
    "luf": ("luf", {**STREAM, "collaboration": "text"}),
    "reader": ("bm25", {"collaboration": "signals", "generator.method": "lora", "generator.rank": 2,
                        **{f"generator.training.{name}": value for name, value in TRAINING.items()}}),
    "profiles": ("bm25", {"prompt.profile": "features", "collaboration": "text",
                          "prompt.profile_tokens": 8}),
}  # fmt: skip

pytestmark = pytest.mark.usefixtures("fresh_cache")


def histories(prefix: str, users: int) -> dict[str, list[str]]:
    return {
        f"{prefix}{i}": [
            f"CANARY{prefix}{i}x{j}x i love {TOPICS[(i + j) % 4]} day {j}" for j in range(2 + i % 3)
        ]
        for i in range(users)
    }


Write = Callable[..., Path]
Copied = Callable[[str], Path]


def world(write: Write, *, without: bool = False) -> Path:
    """Two splits of users; `without` those who will be forgotten."""

    def kept(users: dict[str, list[str]]) -> dict[str, list[str]]:
        return {user: own for user, own in users.items() if not without or user not in GONE}

    write(kept(histories("a", 8)), "train")
    return write(kept(histories("b", 6)))


def config(system: str, models: dict[str, str], root: Path, **more: Any) -> Config:
    """The packaged config with small sizes, as far as its methods have them."""
    name, fields = SYSTEMS[system]
    fields = {**fields, **more}
    packaged = load(CONFIGS / f"{name}.py").config
    methods = {
        field: value
        for field, value in fields.items()
        if field.endswith(".method") and "generator" not in field
    }
    base = choose(override(packaged, {"collaboration": "text"}), methods)
    place = {"benchmark.name": "lamp_7", "benchmark.root": str(root), **models}
    small = {**place, "select.model": models["encoder.model"], **SMALL}
    small = {field: value for field, value in small.items() if field in {*names(base)}}
    return override(base, {"collaboration": packaged.collaboration, **small, **fields})


def holding(folder: Path, words: Iterable[bytes]) -> list[str]:
    """The files below a folder that hold any of these words, sources left out."""
    files = [path for path in folder.rglob("*") if path.is_file() and "tweets" not in path.parts]
    return [str(path) for path in files if any(word in path.read_bytes() for word in words)]


def words_of(users: Sequence[str]) -> list[bytes]:
    """What every text of users holds, and by what their vectors are known."""
    names = [user.rpartition("/")[2] for user in users]
    texts = [text for name in names for text in {**histories("a", 8), **histories("b", 6)}[name]]
    return [*(f"CANARY{name}x".encode() for name in names), *map(vectors.digest, texts)]


LONG = {"cfrag", "lancedb", "purple", "pbr", "clusterrag", "luf", "reader", "profiles"}


@pytest.mark.parametrize(
    "system", [pytest.param(name, marks=[pytest.mark.long] * (name in LONG)) for name in SYSTEMS]
)
def test_no_byte_of_a_user_is_left_and_a_run_made_anew_never_knew_them(
    system: str, tiny_models: dict[str, str], write_tweets: Write, tmp_path: Path, monkeypatch: Any
):
    if system == "lancedb":
        pytest.importorskip("lancedb")
        monkeypatch.setattr("pbr_jax.index.engines.lancedb.Engine.direct", 0)
    chosen = config(system, tiny_models, world(write_tweets))
    pbr_jax.run(chosen, tmp_path / "out")
    before = answers_of(tmp_path / "out")
    assert holding(tmp_path, words_of(GONE))
    known = [user for user in GONE if is_known(user)]
    assert "b3" in known
    for user in known:
        listed = forgetting.forget(user, dry=True)
        told = forgetting.forget(user)
        assert (listed.stages, listed.trained) == (told.stages, told.trained)
        if user == "b3":
            assert holding(tmp_path, words_of(["b3"])) == []
            after = answers_of(tmp_path / "out")
            assert after.items() <= before.items()
            assert "b3" not in after
    told = forgetting.forget(known[-1], retrain=True)
    assert told.retrained == [str(tmp_path / "out")]
    assert holding(tmp_path, words_of(known)) == []
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "never"))
    world(write_tweets, without=True)
    pbr_jax.run(chosen, tmp_path / "knew")
    anew, knew = (tmp_path / name / "predictions.jsonl" for name in ("out", "knew"))
    assert anew.read_bytes() == knew.read_bytes()
    parts = [sorted(f for f in tmp_path.glob(f"{n}/*/*/*.safetensors")) for n in ("cache", "never")]
    assert [p.parent.name for p in parts[0]] == [p.parent.name for p in parts[1]]
    assert [p.read_bytes() for p in parts[0]] == [p.read_bytes() for p in parts[1]]


def answers_of(out: Path) -> dict[str, str]:
    """The lines of a run by users."""
    lines = (out / "predictions.jsonl").read_text().splitlines()
    return {json.loads(line)["user_id"]: line for line in lines}


def is_known(user: str) -> bool:
    try:
        forgetting.forget(user, dry=True)
    except UserError:
        return False
    return True


@pytest.fixture
def finished(tiny_models: dict[str, str], write_tweets: Write, tmp_path: Path) -> Iterator[Copied]:
    """A run of dense retrieval, with documents and remarks of two users that came later. It is copied
    with its cache to a folder of a name, which has the cache from then on."""
    chosen = config("lancedb", tiny_models, world(write_tweets), **{"retrieve.index": "exact"})
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "first/cache"))
    pbr_jax.run(chosen, tmp_path / "first/out")
    system = pbr_jax.open(tmp_path / "first/out")
    judge = Script([{"remark": "tea", "verdict": "correct", "route": "personal"}])
    for user in ("b2", "b3"):
        system.add(user, [f"CANARY{user}x9x later i love violins"])
        system.observe(user, f"CANARY{user}x8x i love tea", judge=judge)
        ranked(system, user)
    (tmp_path / "first/cache/runs.jsonl").unlink()

    def copied(name: str) -> Path:
        shutil.copytree(tmp_path / "first", tmp_path / name)
        monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / name / "cache"))
        return tmp_path / name

    yield copied
    monkeypatch.undo()


def ranked(system: pbr_jax.System, user: str) -> list[tuple[str, float]]:
    (ranking,) = system.rank([pbr_jax.Example("", user, "i love tea", "i love tea", None, time=math.inf)])
    return [(candidate.document.text, candidate.score) for candidate in ranking]


DYING = """
import json, os, signal, sys
from pbr_jax.experiment import forgetting
changing = {"execute", "executemany", "rename", "replace", "unlink", "rmdir", "write", "fsync", "close"}
for line in sys.stdin:
    moment, cache, run, values = line.rstrip("\\n").split("\\t")
    if not (child := os.fork()):
        os.environ["PBR_JAX_CACHE"], calls = cache, 0
        def count(frame, event, function):
            global calls
            calls += event == "c_call" and function.__name__ in changing
            if calls == int(moment):
                os.kill(os.getpid(), signal.SIGKILL)
        sys.setprofile(count)
        forgetting.forget(**json.loads(values), runs=[run])
        sys.setprofile(None)
        print(calls, flush=True)
        os._exit(0)
    if os.waitpid(child, 0)[1] == signal.SIGKILL:
        print("killed", flush=True)
"""


@contextlib.contextmanager
def dying(**values: str) -> Iterator[Callable[[int, Path], str]]:
    """Forgets what `values` name in a process that is killed at the n-th call that may change a file. Tells
    the number of these calls where there are fewer, and else "killed"."""
    command = [sys.executable, "-c", DYING]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        asked, told = process.stdin, process.stdout
        assert asked is not None
        assert told is not None

        def forget(moment: int, folder: Path) -> str:
            line = (moment, folder / "cache", folder / "out", json.dumps(values))
            print(*line, sep="\t", file=asked, flush=True)
            return told.readline().strip()

        yield forget
        asked.close()


def test_a_kill_at_any_moment_leaves_what_the_next_call_ends(finished: Copied):
    draw = random.Random(0)
    with dying(user="b3") as forget:
        calls = int(forget(-1, finished("whole")))
        assert calls > 200
        for moment in sorted(draw.randint(1, calls) for _ in range(12)):
            folder = finished(f"killed{moment}")
            assert forget(moment, folder) == "killed"
            forgetting.forget("b3", runs=[folder / "out"])
            assert holding(folder, words_of(["b3"])) == [], moment
            assert "b2" in answers_of(folder / "out")


def test_questions_during_the_deletion_bring_nothing_back_and_others_rank_as_before(
    finished: Copied,
):
    folder = finished("asked")
    system = pbr_jax.open(folder / "out")
    before, stop, errors = ranked(system, "b2"), threading.Event(), list[Exception]()

    def ask(user: str) -> None:
        while not stop.is_set():
            try:
                ranked(system, user)
            except UserError:
                stop.wait(0.01)  # it has changed since it was opened
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=ask, args=(user,)) for user in ("b3", "b2", "b3")]
    for thread in threads:
        thread.start()
    forgetting.forget("b3", runs=[folder / "out"])
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []
    assert holding(folder, words_of(["b3"])) == []
    assert ranked(pbr_jax.open(folder / "out"), "b2") == before
    assert any("x9x" in text for text, _ in before)
    assert holding(folder, words_of(["b3"])) == []


def test_single_documents_go_and_a_name_nobody_knows_is_an_error(finished: Copied):
    folder = finished("single")
    for user, documents in (("nobody", []), ("b2", ["b3-1"])):
        with pytest.raises(UserError, match="know no"):
            forgetting.forget(user, documents=documents, runs=[folder / "out"])
    told = forgetting.forget("b3", documents=["b3-0"], runs=[folder / "out"])
    assert told.runs[0]["lines"] == 1
    assert holding(folder, [b"CANARYb3x0x"]) == []
    system = pbr_jax.open(folder / "out")
    kept = {text.split()[0] for text in system.store.texts_of("b3")}
    assert kept == {f"CANARYb3x{place}x" for place in (1, 8, 9)}
    assert holding(folder, [b"CANARYb3x0x"]) == []
    system.forget("b2", ids=["b2-0"])
    assert holding(folder / "out/corpus", [b"CANARYb2x0x"]) == []
    with pytest.raises(UserError, match="user 'b2' has no document 'b2-0'; nothing was deleted"):
        system.forget("b2", ids=["b2-0"])


@pytest.fixture
def quick(tiny_models: dict[str, str], write_tweets: Write) -> Config:
    """A config that asks no model."""
    return config("bm25", tiny_models, world(write_tweets), **QUIET)


def test_what_a_run_left_that_was_killed_while_it_wrote_goes_too(
    quick: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write, names = RunFolder.write, list[str]()

    def dying(self: RunFolder, name: str, text: Any) -> None:
        if name in names:
            return write(self, name, text)
        names.append(name)
        (self.out / f".{name}.abc.partial").write_text("".join(text))
        raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "write", dying)
    left = set[str]()
    for moment in range(5):
        with pytest.raises(KeyboardInterrupt):
            pbr_jax.run(quick, tmp_path / "out")
        shutil.copytree(tmp_path / "out", tmp_path / f"killed{moment}")
        left.update(Path(path).name for path in holding(tmp_path, words_of(["b3"])))
    assert {"texts.jsonl", ".texts.jsonl.abc.partial"} <= left
    monkeypatch.undo()
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "cache"))
    with (tmp_path / "cache/runs.jsonl").open("a") as file:
        file.writelines(json.dumps(str(path)) + "\n" for path in tmp_path.glob("killed*"))
    forgetting.forget("b3")
    assert holding(tmp_path, words_of(["b3"])) == []


def test_a_run_that_ends_after_the_deletion_keeps_nothing(
    quick: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def finish(self: RunFolder, values: Any) -> Any:
        with ThreadPoolExecutor(1) as threads:  # of another process: it would wait for this folder
            monkeypatch.setattr(forgetting, "known_runs", list)
            threads.submit(forgetting.forget, "b3").result()
        return original(self, values)

    original = RunFolder.finish
    monkeypatch.setattr(RunFolder, "finish", finish)
    with pytest.raises(UserError, match="stage data was erased from the cache meanwhile; run again"):
        pbr_jax.run(quick, tmp_path / "out")
    assert holding(tmp_path, words_of(["b3"])) == []


def test_a_damaged_run_is_named_and_does_not_keep_the_rest(quick: Config, tmp_path: Path):
    for name in ("damaged", "whole"):
        pbr_jax.run(quick, tmp_path / name)
    file = tmp_path / "damaged/predictions.jsonl"
    file.write_text(file.read_text() + "\n")
    told = forgetting.forget("b3")
    assert [run["run"] for run in told.runs] == [str(tmp_path / "whole")]
    assert [line for line in told.out_of_reach if line.startswith(f"{tmp_path / 'damaged'} stays as it is")]
    left = holding(tmp_path, words_of(["b3"]))
    assert {Path(path).parent.name for path in left} == {"damaged"}


def test_of_single_documents_exactly_the_lines_go_that_hold_a_word_of_them(quick: Config, tmp_path: Path):
    pbr_jax.run(override(quick, {"retrieve.k": 1}), tmp_path / "out")
    draw, lines = random.Random(0), answers_of(tmp_path / "out")
    texts = {line["id"]: json.dumps(line) for line in run_files.lines(tmp_path / "out", "texts.jsonl")}
    there = [(user, place) for user, own in histories("b", 6).items() for place in range(len(own))]
    for user, place in draw.sample(there, 8):
        word = f"CANARY{user}x{place}x"
        forgetting.forget(user, documents=[f"{user}-{place}"])
        lines = {user: line for user, line in lines.items() if word not in texts[user].partition("prompt")[2]}
        # The question rephrases the user's last text, which is a document and stands in the question, too.
        assert answers_of(tmp_path / "out") == lines
    assert 0 < len(lines) < 6


def test_a_row_of_a_table_is_a_question_and_a_document_and_goes_as_both(
    tiny_models: dict[str, str], tmp_path: Path
):
    rows = [f"c{i % 3},2024-01-{i + 1:02d},CANARYq{i}x tea,CANARYr{i}x cats" for i in range(12)]
    (tmp_path / "tweets").mkdir()
    (tmp_path / "tweets/table.csv").write_text("\n".join(["customer,created,question,reply", *rows]))
    columns = {"user": "customer", "time": "created", "input": "question", "output": "reply"}
    root = tmp_path / "tweets/data"
    pbr_jax.import_table(tmp_path / "tweets/table.csv", root, columns=columns)
    own = {"benchmark.name": "own", "benchmark.root": str(root), "benchmark.training": "none"}
    chosen = override(
        Config(), {**own, **tiny_models, "retrieve.method": "bm25", **QUIET, "eval.resamples": 20}
    )
    pbr_jax.run(chosen, tmp_path / "out")
    opening._open(tmp_path / "out").add("c0", ["later tea"])  # the copy has the questions, too
    words = [b"CANARYq3x", b"CANARYr3x"]
    assert len(holding(tmp_path, words)) > 2
    forgetting.forget("c0", documents=["row-4"])
    assert holding(tmp_path, words) == []
    opening._open(tmp_path / "out")
    pbr_jax.run(chosen, tmp_path / "again")
    assert holding(tmp_path, words) == []
    assert holding(tmp_path / "again", [b"CANARYq6x"])


def test_names_are_of_one_user_however_they_are_spelled_and_others_of_nobody(
    tiny_models: dict[str, str], write_tweets: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    own = {"zo\u00eb": ["CANARYe tea"], "zo\u00eb b": ["CANARYb cats"], "zo": ["CANARYz violins"]}
    chosen = config("bm25", tiny_models, write_tweets(own), **QUIET, **{"benchmark.training": "none"})
    pbr_jax.run(chosen, tmp_path / "out")
    assert forgetting.forget("\ufeffzoe\u0308 ").user == "zo\u00eb"
    assert holding(tmp_path, [b"CANARYe"]) == []
    assert all(holding(tmp_path / "out", [word]) for word in (b"CANARYb", b"CANARYz"))
    assert main(["forget", "--user", "zoey"]) == 0  # the data are not in the cache, so nobody can tell
    assert "nothing of user 'zoey' was found" in capsys.readouterr().err


class Leaky:
    """A memory that keeps everything in a file, and hides what is deleted."""

    def __init__(self, folder: Path, *, forgets: bool) -> None:
        self.file, self.texts, self.forgets = folder / "history.txt", dict[str, list[str]](), forgets

    def add(self, user: str, texts: Sequence[str]) -> None:
        self.texts[user] = [*texts]
        self.file.write_text("\n".join(text for own in self.texts.values() for text in own))

    def search(self, user: str, text: str) -> list[str]:
        return self.texts.get(user, [])

    def delete(self, user: str) -> None:
        del self.texts[user]
        if self.forgets:
            self.add("nobody", [])

    def files(self) -> list[Path]:
        return [self.file]

    def likelihood(self, user: str, text: str, said: str) -> float:
        return math.nan


@pytest.mark.parametrize("forgets", [True, False])
def test_an_audit_tells_who_forgets_from_who_hides(tmp_path: Path, forgets: bool):
    memory = Leaky(tmp_path, forgets=forgets)
    found = audit.audit(memory, 20)
    assert found.before == [str(memory.file)]
    assert found.after == ([] if forgets else [str(memory.file)])
    assert (found.shown_before, found.shown_after, found.same, found.asked) == (20, 0, 4, 4)


@pytest.mark.parametrize(
    ("system", "kind"),
    [("bm25", "run"), ("bm25", "config"), pytest.param("luf", "config", marks=pytest.mark.long)],
)
def test_an_audit_of_a_run_and_of_a_config_finds_nothing(
    system: str, kind: str, tiny_models: dict[str, str], write_tweets: Write, tmp_path: Path
):
    more = {"prompt.max_tokens": 1500, **QUIET} if system == "bm25" else {"prompt.max_tokens": 1500}
    chosen = config(system, tiny_models, world(write_tweets), **more)
    if kind == "run":
        pbr_jax.run(chosen, tmp_path / "out")
    with audit.memory_of(tmp_path / "out" if kind == "run" else chosen) as memory:
        found = audit.audit(memory, 20)
    assert found.before
    assert (found.after, found.shown_after) == ([], 0)
    assert found.shown_before == 20 if system == "bm25" else found.shown_before > 0
    assert found.same == found.asked
    assert 0 <= found.likelier <= 1


def test_the_copy_of_a_limited_run_is_carried_only_where_its_data_lack_somebody(
    tiny_models: dict[str, str], write_tweets: Write, tmp_path: Path
):
    chosen = config("bm25", tiny_models, world(write_tweets), **QUIET, limit=2)
    pbr_jax.run(chosen, tmp_path / "out")
    pbr_jax.open(tmp_path / "out").add("b1", ["later i love violins"])
    files = [*(tmp_path / "out/corpus").glob("*.sqlite")]
    again = opening._open(tmp_path / "out")  # as another process opens it
    assert [*(tmp_path / "out/corpus").glob("*.sqlite")] == files
    users = {*histories("b", 6)}
    assert users <= {*again.store.users}
    before = {user: sorted(again.store.texts_of(user)) for user in users}
    again.forget("b2", ids=["b2-0"])
    forgetting.forget("b3")
    system = opening._open(tmp_path / "out")
    assert [*(tmp_path / "out/corpus").glob("*.sqlite")] != files
    after = {user: sorted(system.store.texts_of(user)) for user in users - {"b3"}}
    assert after == {user: own for user, own in before.items() if user != "b3"} | {"b2": before["b2"][1:]}
    assert "later i love violins" in after["b1"]
    with pytest.raises(UserError, match="open it again"):
        ranked(again, "b1")
    assert holding(tmp_path, words_of(["b3"])) == []
