"""Answers that are kept: what is asked again, and what survives death, crowds and damage."""

import contextlib
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from servers import write_tiny

import pbr_jax.llm
from pbr_jax.base.types import UserError
from pbr_jax.config import LLM as LLMConfig
from pbr_jax.llm import LLM, Score
from pbr_jax.llm.answers_file import Answers, Row
from pbr_jax.llm.cache import Cached, noted, unkept
from pbr_jax.llm.engine.jax_backend import JaxLLM
from pbr_jax.llm.engine.t5_backend import T5LLM
from pbr_jax.llm.http import backend as http_backend
from pbr_jax.llm.protocol import Sampling

PROMPTS = ["one", "two", "three", [{"role": "user", "content": "one"}], "five"]


class Counting:
    """A language model of two prompts a batch that remembers which positions it computed."""

    fingerprint = "counting"

    def __init__(self, tag: str = "", dies_after: int = 10**9) -> None:
        self.tag = tag
        self.calls: list[list[int]] = []
        self.left = dies_after

    def _answers(
        self, values: list[Any], done: Mapping[int, Any] | None = None, on_batch: Any = None
    ) -> list[Any]:
        todo = [place for place in range(len(values)) if place not in (done or {})]
        self.calls.append(todo)
        for start in range(0, len(todo), 2):
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
            some = todo[start : start + 2]
            on_batch(some, [values[place] for place in some])
        return [(done or {}).get(place, value) for place, value in enumerate(values)]

    def generate(self, prompts: Sequence[Any], sampling: Sampling, **progress: Any) -> list[str]:
        texts = [f"{self.tag}{prompt}/{sampling.max_new_tokens}" for prompt in prompts]
        if sampling.temperature:
            texts = [f"{text}/{place}" for place, text in enumerate(texts)]
        return self._answers(texts, **progress)

    def score(self, prompts: Sequence[Any], targets: Sequence[str], **progress: Any) -> list[Score]:
        pairs = zip(prompts, targets, strict=True)
        scores = [Score(-0.1 * len(f"{p}{t}") * bool(t), len(t)) for p, t in pairs]
        return self._answers(scores, **progress)

    def count(self, text: str) -> int:
        return len(text)

    def truncate(self, text: str, tokens: int) -> str:
        return text[:tokens]

    def render(self, prompt: Any) -> str:
        return str(prompt)

    def num_tokens(self, prompt: Any) -> int:
        return len(str(prompt))


class Silent(Counting):
    """Reports nothing until it returns, as for empty targets."""

    def _answers(
        self, values: list[Any], done: Mapping[int, Any] | None = None, on_batch: Any = None
    ) -> list[Any]:
        return super()._answers(values, done, lambda positions, answers: None)


def rows(file: Path) -> list[tuple[str, str, str]]:
    with contextlib.closing(sqlite3.connect(file)) as connection:
        return connection.execute("SELECT key, kind, value FROM answers ORDER BY key").fetchall()


# -- LLMExpand ------------------------------------------------------------------------------------------


def test_it_is_a_language_model_and_passes_questions_about_text_on(file: Path):
    llm = Cached(Counting(), file)
    assert isinstance(llm, LLM)
    assert (llm.fingerprint, llm.count("abc"), llm.truncate("abc", 2)) == ("counting", 3, "ab")
    assert (llm.render("abc"), llm.num_tokens("abc")) == ("abc", 3)
    assert not file.exists()


@pytest.mark.parametrize("backend", [Counting, Silent])
def test_the_second_call_asks_nothing_and_returns_the_same(backend: type[Counting], file: Path):
    inner = backend()
    plain = [f"{prompt}/7" for prompt in PROMPTS]
    assert Cached(inner, file).generate(PROMPTS, Sampling(7)) == plain
    assert Cached(inner, file).generate(PROMPTS, Sampling(7)) == plain
    assert inner.calls == [[0, 1, 2, 3, 4]]
    targets = ["a", "", "c", "d", "e"]
    first = Cached(inner, file).score(PROMPTS, targets)
    assert Cached(inner, file).score(PROMPTS, targets) == first
    assert all(type(score) is Score for score in first)
    assert len(inner.calls) == 2


def test_only_what_is_missing_is_asked_wherever_it_stands(file: Path):
    inner = Counting()
    llm = Cached(inner, file)
    llm.generate(["two", "five"], Sampling(7))
    assert llm.generate(PROMPTS, Sampling(7)) == [f"{prompt}/7" for prompt in PROMPTS]
    assert inner.calls == [[0, 1], [0, 2, 3]]


def test_the_caller_is_told_of_every_answer_once_and_of_none_that_was_done(file: Path):
    inner = Counting()
    Cached(inner, file).generate(["two"], Sampling(7))
    told: dict[int, str] = {}

    def on_batch(positions: Sequence[int], texts: Sequence[str]) -> None:
        assert not set(positions) & set(told)
        told.update(zip(positions, texts, strict=True))

    done = {4: "given"}
    found = Cached(inner, file).generate(PROMPTS, Sampling(7), done=done, on_batch=on_batch)
    assert inner.calls[1:] == [[0, 2, 3]]
    assert found[4] == "given"
    assert told == {place: found[place] for place in range(4)}
    assert next(iter(told)) == 1  # the one that was there comes first
    assert len(rows(file)) == 4  # what the caller brings is not taken on trust


def test_an_answer_is_on_disk_before_the_caller_hears_of_it_and_outlives_the_call(file: Path):
    inner = Counting(dies_after=2)
    stored = []
    with pytest.raises(KeyboardInterrupt):
        Cached(inner, file).generate(
            PROMPTS, Sampling(7), on_batch=lambda positions, texts: stored.append(len(rows(file)))
        )
    assert stored == [2, 4]
    inner.left = 1
    assert Cached(inner, file).generate(PROMPTS, Sampling(7))[4] == "five/7"
    assert inner.calls == [[0, 1, 2, 3, 4], [4]]


def test_a_key_covers_all_that_an_answer_depends_on(file: Path):
    greedy: dict[str, Any] = {"prompts": ["one"], "max_new_tokens": 7}
    sampled = {**greedy, "temperature": 1.0}
    calls = [
        greedy, {**greedy, "prompts": ["One"]}, {**greedy, "prompts": [[{"role": "user", "content": "one"}]]},
        {**greedy, "prompts": [[{"role": "system", "content": "one"}]]},
        {**greedy, "max_new_tokens": 8}, {**greedy, "num_beams": 2}, {**greedy, "num_beams": 3}, sampled,
        {**sampled, "temperature": 0.5}, {**sampled, "top_p": 0.5}, {**sampled, "seed": 1},
    ]  # fmt: skip

    def generate(llm: Counting, prompts: Sequence[Any], **options: Any) -> None:
        Cached(llm, file).generate(prompts, Sampling(**options))

    for count, options in enumerate(calls, 1):
        generate(Counting(), **options)
        assert len(rows(file)) == count
    generate(Counting(), **greedy, seed=1, top_p=0.5)  # nothing is drawn: they do not matter
    assert len(rows(file)) == len(calls)
    other = Counting()
    other.fingerprint = "other"
    generate(other, **greedy)
    for prompt, target in [("one", "a"), ("one", "b"), ("two", "a"), ("on", "ea")]:
        Cached(Counting(), file).score([prompt], [target])
    assert len(rows(file)) == len(calls) + 5


def test_equal_prompts_are_stored_once_and_their_samples_each(file: Path):
    inner = Counting()
    llm = Cached(inner, file)
    assert llm.generate(["a", "b", "a"], Sampling(1)) == ["a/1", "b/1", "a/1"]
    assert len(rows(file)) == 2
    samples = llm.generate(["a", "b", "a"], Sampling(1, temperature=1.0))
    assert len(set(samples)) == 3
    assert len(rows(file)) == 5
    # The second draw of "a" is found as the second, in whatever company; a third draw is new.
    assert llm.generate(["a", "a"], Sampling(1, temperature=1.0)) == [samples[0], samples[2]]
    llm.generate(["b", "a", "a", "a"], Sampling(1, temperature=1.0))
    assert inner.calls[2:] == [[3]]


def test_thousands_are_found_at_once(file: Path):
    inner = Counting()
    prompts = [f"prompt {i}" for i in range(2500)]
    first = Cached(Silent(), file).generate(prompts, Sampling(1))
    assert Cached(inner, file).generate(prompts[::-1], Sampling(1)) == first[::-1]
    assert inner.calls == []


def test_prompts_and_targets_are_not_kept(file: Path):
    class Discreet(Counting):
        def generate(self, prompts: Sequence[Any], sampling: Sampling, **progress: Any) -> list[str]:
            return ["answer"] * len(prompts)

    llm = Cached(Discreet(), file)
    llm.generate(["SECRET text", [{"role": "user", "content": "SECRET message"}]], Sampling(1))
    llm.score(["SECRET prompt"], ["SECRET target"])
    written = b"".join(path.read_bytes() for path in file.parent.iterdir())
    assert b"answer" in written
    assert b"SECRET" not in written


def test_where_another_was_first_its_answer_stands(file: Path):
    class Late(Counting):
        def generate(self, prompts: Sequence[Any], sampling: Sampling, **progress: Any) -> list[str]:
            Cached(Counting("other "), file).generate(prompts[:1], Sampling(1))
            return super().generate(prompts, sampling, **progress)

    first = Cached(Late("mine "), file).generate(["a", "b"], Sampling(1))
    assert first == ["other a/1", "mine b/1"]
    assert Cached(Counting("third "), file).generate(["a", "b"], Sampling(1)) == first


def test_offline_says_how_many_are_missing_and_never_asks(file: Path):
    inner = Counting()
    Cached(inner, file).generate(PROMPTS[:2], Sampling(7))
    offline = Cached(inner, file, offline=True)
    assert offline.generate(PROMPTS[:2], Sampling(7)) == ["one/7", "two/7"]
    with pytest.raises(UserError, match=r"^3 of 5 answers .*run without --llm\.offline.*cache import FILE$"):
        offline.generate(PROMPTS, Sampling(7))
    with pytest.raises(UserError, match=r"^1 of 1 answers"):
        offline.score(["one"], ["a"])
    assert len(inner.calls) == 1


# -- Death and crowds --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    write_tiny(path)
    return path


def python(script: str, *arguments: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


GENERATE = """
import sys, time
from pathlib import Path
from pbr_jax.llm.cache import Cached, noted, unkept
from pbr_jax.llm.engine.jax_backend import JaxLLM
from pbr_jax.llm.protocol import Sampling
def on_batch(positions, texts):
    print(len(positions), flush=True)
    time.sleep(60)
llm = Cached(JaxLLM(Path(sys.argv[1]), batch_size=2), Path(sys.argv[2]))
prompts = [f"prompt number {i}" for i in range(9)]
llm.generate(prompts, Sampling(12, float(sys.argv[3])), on_batch=on_batch)
"""


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.long
def test_a_generation_that_is_killed_loses_no_answer_and_ends_as_one_that_was_not(
    tiny: Path, file: Path, temperature: float
):
    killed = python(GENERATE, tiny, file, temperature)
    assert killed.stdout is not None
    kept = int(killed.stdout.readline())
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    killed.stdout.close()
    assert kept > 0
    assert len(rows(file)) == kept
    prompts = [f"prompt number {i}" for i in range(9)]
    sampling = Sampling(12, temperature)
    asked: list[int] = []
    llm = JaxLLM(tiny, batch_size=2)
    found = Cached(llm, file).generate(
        prompts, sampling, on_batch=lambda positions, texts: asked.append(len(positions))
    )
    assert asked[0] == kept  # told first
    assert sum(asked) == len(prompts)
    assert found == llm.generate(prompts, sampling)
    assert len(set(found)) > 5


def test_threads_share_one_object(file: Path):
    llm, barrier = Cached(Counting(), file), threading.Barrier(8)

    def ask(thread: int) -> list[str]:
        barrier.wait()
        return llm.generate([f"{i}" for i in range(10)] + [f"own {thread}"], Sampling(1))

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, range(8)))
    assert found == [[*(f"{i}/1" for i in range(10)), f"own {thread}/1"] for thread in range(8)]
    assert len(rows(file)) == 10 + 8


# -- Damage ------------------------------------------------------------------------------------------


def noise(file: Path) -> None:
    file.write_bytes(random.Random(0).randbytes(9000))


def torn(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:5000])


def holed(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[4096:] = bytes(len(content) - 4096)
    file.write_bytes(content)


def foreign(file: Path) -> None:
    file.unlink()
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.executescript("CREATE TABLE answers(key, kind, value);")


def newer(file: Path) -> None:
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.executescript("PRAGMA user_version=3;")


FAULTS = {
    noise: "is damaged or not a cache.*move it away",
    torn: "is damaged",
    holed: "is damaged",
    foreign: "is a database, but not a cache of answers; move it away",
    newer: "has version 3 of the cache, this program reads version 2; export it",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_damaged_or_foreign_file_is_named_and_left_as_it_is(fault: Any, file: Path, tmp_path: Path):
    llm = Cached(Silent(), file)
    prompts = [f"prompt {i}" for i in range(300)]
    llm.generate(prompts, Sampling(1))
    fault(file)
    before = file.read_bytes()
    for call in (
        lambda: llm.generate(prompts, Sampling(1)),
        lambda: Answers(file).export(tmp_path / "export.jsonl"),
    ):
        with pytest.raises(UserError, match=FAULTS[fault]) as caught:
            call()
        assert str(file) in str(caught.value)
        assert "\n" not in str(caught.value)
    assert file.read_bytes() == before
    assert not (tmp_path / "export.jsonl").exists()


def test_a_file_that_was_killed_before_its_schema_is_used(file: Path):
    file.parent.mkdir()
    file.touch()
    assert Cached(Counting(), file).generate(["a"], Sampling(1)) == ["a/1"]
    assert len(rows(file)) == 1


@contextlib.contextmanager
def nobody() -> Iterator[None]:
    """Without the superuser's right to write everywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("filled", [False, True])
def test_a_read_only_folder_is_one_clear_line(filled: bool):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "llm.sqlite"
        if filled:
            Cached(Counting(), file).generate(["a"], Sampling(1))
            file.chmod(0o444)
        folder.chmod(0o555)
        with nobody(), pytest.raises(UserError, match=f"^cannot read or write {file}: .*PBR_JAX_CACHE"):
            Cached(Counting(), file).generate(["a", "b"], Sampling(1))
        folder.chmod(0o755)


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"^cannot read or write .*file/cache/llm.sqlite: .*PBR_JAX_CACHE"):
        Cached(Counting(), tmp_path / "file" / "cache" / "llm.sqlite").generate(["a"], Sampling(1))


# -- Which backend -----------------------------------------------------------------------------------


def test_load_wraps_the_backend_that_fits_the_model(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """T5 by its config.json, HTTP by name, everything else in this process."""
    folder = tmp_path / "t5"
    shutil.copytree(tiny, folder)
    (folder / "config.json").write_text('{"model_type": "t5"}')
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(http_backend, "HTTPLLM", lambda config: Counting("http "))
    monkeypatch.setattr(T5LLM, "load", lambda config: Counting("t5 "))
    monkeypatch.setattr(JaxLLM, "load", lambda config: Counting("jax "))

    def first(**fields: Any) -> str:
        return pbr_jax.llm.load(LLMConfig(**fields)).generate([str(fields)], Sampling(1))[0].split()[0]

    assert first(model=str(folder)) == "t5"
    assert first(model=str(tiny)) == "jax"
    assert first(model="served", backend="http", url="http://127.0.0.1:1/v1") == "http"
    assert (tmp_path / "cache" / "llm.sqlite").is_file()
    with pytest.raises(UserError, match="1 of 1 answers"):
        first(model=str(tiny), offline=True)


def test_load_follows_the_cache_folder_and_keeps_the_weights(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    found = []
    for folder in ("a", "a", "b"):
        monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / folder))
        found.append(pbr_jax.llm.load(LLMConfig(model=str(tiny))))
    assert [llm._answers.file.parent.name for llm in found] == ["a", "a", "b"]
    assert len({id(llm._llm) for llm in found}) == 1


def test_other_weights_in_the_same_place_are_another_model(tiny: Path, tmp_path: Path):
    from safetensors.numpy import load_file, save_file

    place = tmp_path / "model"
    shutil.copytree(tiny, place)
    before = pbr_jax.llm.load(LLMConfig(model=str(place)))
    score = before.score(["the"], ["cat"])
    tensors = load_file(place / "model.safetensors")
    save_file({name: 2 * value for name, value in tensors.items()}, place / "model.safetensors")
    after = pbr_jax.llm.load(LLMConfig(model=str(place)))
    assert after.fingerprint != before.fingerprint
    assert after.score(["the"], ["cat"]) != score
    assert before.score(["the"], ["cat"]) == score  # what is in memory keeps its name


def test_an_answer_from_the_cache_reads_no_weights(tiny: Path, tmp_path: Path, file: Path):
    wanted = Cached(JaxLLM(tiny), file).generate(["the cat"], Sampling(4))
    fresh = JaxLLM(tiny)
    assert Cached(fresh, file).generate(["the cat"], Sampling(4)) == wanted
    assert "_weights" not in vars(fresh)


def test_a_stored_answer_of_another_kind_is_told_and_asked_for_again(
    tiny: Path, file: Path, capfd: pytest.CaptureFixture[str]
):
    """Its checksum is right: somebody wrote it."""
    llm = Cached(JaxLLM(tiny), file)
    score = llm.score(["the cat"], ["sat"])
    (old,) = rows(file)
    with contextlib.closing(sqlite3.connect(file)) as connection:
        other = Row.of(old[0], "text", "sat")[1:]
        connection.execute("UPDATE answers SET kind = ?, value = ?, checksum = ?", other)
        connection.commit()
    assert llm.score(["the cat"], ["sat"]) == score
    assert "1 answers" in capfd.readouterr().err
    assert rows(file) == [old]


def test_fields_of_a_sampling_may_be_given_by_name(file: Path):
    llm = Cached(Counting(), file)
    assert llm.generate(["one"], max_new_tokens=7) == llm.generate(["one"], Sampling(7)) == ["one/7"]
    assert llm.generate(["one"], Sampling(7), max_new_tokens=8) == ["one/8"]
    with pytest.raises(UserError, match="max_new_tokens is 0"):
        llm.generate(["one"], max_new_tokens=0)


def test_answers_are_noted_before_they_are_made_then_erased_or_never_kept(tmp_path: Path):
    """A kill between an answer and the note of its key would leave an answer that nobody can erase."""
    model, keys = Counting("SECRET "), list[str]()
    llm, file = Cached(model, tmp_path / "llm.sqlite"), tmp_path / "llm.sqlite"

    def note(new: Sequence[str]) -> None:
        assert model.calls == []
        keys.extend(new)

    other = Cached(Counting(), file)
    other.generate(["open"], max_new_tokens=2)
    with noted(note):
        llm.generate(["one" * 3000, "two"], max_new_tokens=2)
    assert len(Answers(file).find(keys)) == 2
    assert Answers(file).erase([*keys, "0" * 64]) == 2
    assert Answers(file).find(keys) == {}
    for path in tmp_path.iterdir():
        assert b"SECRET" not in path.read_bytes()
    assert other.generate(["open"], max_new_tokens=2) == ["open/2"]
    with unkept():
        ask: Any = {"on_batch": lambda *_: None, "max_new_tokens": 2}
        assert llm.generate(["two"], **ask) == llm.generate(["two"], **ask)
    assert len(model.calls) == 3
    assert Answers(file).find(keys) == {}
    with unkept(), pytest.raises(UserError, match=r"never kept, and llm\.offline is set"):
        Cached(model, file, offline=True).generate(["two"], **ask)
