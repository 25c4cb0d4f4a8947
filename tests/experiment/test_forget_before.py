"""Documents that are dated before a day are in no byte of the cache and of run folders; the others stay."""

import json
import random
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import pytest
from test_forgetting import TOPICS, config, dying, holding

import pbr_jax
from pbr_jax.base.types import UserError
from pbr_jax.cache import artefacts
from pbr_jax.corpus import vectors
from pbr_jax.data.dates import parse_time
from pbr_jax.experiment import forgetting, unused

pytestmark = pytest.mark.usefixtures("fresh_cache")


class Written(NamedTuple):
    """A document that was written: its user, text and date ("": none)."""

    user: str
    text: str
    date: str


def write(root: Path, users: int, each: int, seed: int = 0) -> list[Written]:
    """A split of LaMP-4 with random dates from 2018 to 2023, and some documents without."""
    draw, written, questions, golds = random.Random(seed), list[Written](), [], []
    for user in (f"u{i}" for i in range(users)):
        profile = []
        for j in range(each):
            date = f"{draw.randint(2018, 2023)}-{draw.randint(1, 12):02}-{draw.randint(1, 28):02}"
            date = "" if draw.random() < 0.2 else date
            text = f"CANARY{user}x{j}x i love {draw.choice(TOPICS)} day {j}"
            written.append(Written(user, f"{text} {text}", date))  # as LaMP-4 reads it
            profile.append(
                {"id": f"{user}-{j}", "text": text, "title": text} | ({"date": date} if date else {})
            )
        questions.append({"id": user, "user_id": user, "input": "i love tea", "date": "2024-01-01",
                          "profile": profile})  # fmt: skip
        golds.append({"id": user, "output": "i love"})
    folder = root / "tweets"
    folder.mkdir()
    (folder / "dev_questions.json").write_text(json.dumps(questions))
    (folder / "dev_outputs.json").write_text(json.dumps({"task": "LaMP_4", "golds": golds}))
    return written


def words_of(written: Iterable[Written]) -> list[bytes]:
    return [word for one in written for word in (one.text.split()[0].encode(), vectors.digest(one.text))]


def split(written: Iterable[Written], before: str) -> tuple[list[Written], list[Written]]:
    """Those that are dated before a date, and the others."""
    old = [one for one in written if one.date and one.date < before]
    return old, [one for one in written if one not in old]


def added(out: Path) -> Iterator[Written]:
    """Documents that come after a run, as they are added to its system, which then answers."""
    system = pbr_jax.open(out)
    for number, date in enumerate(("2019-05-05", "2022-05-05", "")):
        for user in ("u1", "u2"):
            new = Written(user, f"CANARY{user}later{number}x i love cats", date)
            system.add(user, [new.text], time=parse_time(date) if date else None)
            yield new
    for user in ("u0", "u1", "u2"):
        system.ask(user, "i love cats")


def there(folder: Path, written: Iterable[Written]) -> set[Written]:
    """Those that some file holds."""
    return {one for one in written if holding(folder, words_of([one])[:1])}


@pytest.mark.parametrize("system", ["bm25", pytest.param("lancedb", marks=pytest.mark.long)])
def test_what_is_dated_before_is_nowhere_and_the_rest_is_found(
    system: str, tiny_models: dict[str, str], tmp_path: Path
):
    written = write(tmp_path, 5, 6)
    place = {"benchmark.name": "lamp_4", "benchmark.split": "dev"}
    more = {"retrieve.index": "exact", "generate.method": "ipa"} if system == "lancedb" else {}
    chosen = config(system, tiny_models, tmp_path / "tweets", **place, **more)
    out = tmp_path / "out"
    pbr_jax.run(chosen, out)
    written += added(out)
    old, rest = split(written, "2021-01-01")
    assert there(tmp_path, written) == {*written}
    listed = forgetting.forget(before="2021-01-01", dry=True)
    assert there(tmp_path, written) == {*written}
    told = forgetting.forget(before="2021-01-01")
    assert (told.older, told.owners) == (len(old), len({one.user for one in old}))
    assert told.undated == sum(one.date == "" for one in written)
    assert (listed.stages, listed.older, listed.undated) == (told.stages, told.older, told.undated)
    assert holding(tmp_path, words_of(old)) == []
    opened = pbr_jax.open(out)  # reads the data anew, without them
    texts = {text for user in opened.store.users for text in opened.store.texts_of(user)}
    assert texts == {one.text for one in rest}
    assert holding(tmp_path, words_of(old)) == []
    later, rest = split(rest, "2022-06-01")
    for path in (tmp_path / "cache/data").glob("*/"):
        shutil.rmtree(path)  # the next day nobody has run anything, and the data are not there
    told = forgetting.forget(before="2022-06-01", user="u1")
    assert told.older == sum(one.user == "u1" for one in later)
    assert holding(tmp_path, words_of(one for one in later if one.user == "u1")) == []
    told = forgetting.forget(before="2022-06-01", retrain=True)
    assert told.older == sum(one.user != "u1" for one in later)
    assert holding(tmp_path, words_of(later)) == []
    assert forgetting.forget(before="2022-06-01").older == 0
    texts = {text for user in opened.store.users for text in pbr_jax.open(out).store.texts_of(user)}
    assert texts == {one.text for one in rest}


def test_vectors_and_answers_go_by_date_after_their_run_and_data_went(
    tiny_models: dict[str, str], tmp_path: Path
):
    written = write(tmp_path, 4, 5)
    place = {"benchmark.name": "lamp_4", "benchmark.split": "dev", "retrieve.index": "exact"}
    pbr_jax.run(config("lancedb", tiny_models, tmp_path / "tweets", **place), tmp_path / "out")
    shutil.rmtree(tmp_path / "out")
    artefacts._reading.clear()  # as if this process had ended
    unused.collect(0)
    assert not [*(tmp_path / "cache/data").glob("*/")]
    old, rest = split(written, "2021-01-01")
    digests = {one: vectors.digest(one.text) for one in written}
    assert {one for one in written if holding(tmp_path, [digests[one]])} == {*written}
    forgetting.forget(before="2021-01-01")
    assert {one for one in written if holding(tmp_path, [digests[one]])} == {*rest}
    assert old


@pytest.mark.long
def test_a_kill_at_any_moment_leaves_what_the_next_day_ends(
    tiny_models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "first/cache"))
    written = write(tmp_path, 4, 5)
    place = {"benchmark.name": "lamp_4", "benchmark.split": "dev", "retrieve.index": "exact"}
    pbr_jax.run(config("lancedb", tiny_models, tmp_path / "tweets", **place), tmp_path / "first/out")
    written += added(tmp_path / "first/out")
    (tmp_path / "first/cache/runs.jsonl").unlink()
    old, _ = split(written, "2021-01-01")
    later, rest = split(written, "2021-02-01")
    draw, calls = random.Random(0), 0
    with dying(before="2021-01-01") as forget:
        for trial in range(10):
            folder = tmp_path / f"trial{trial}"
            shutil.copytree(tmp_path / "first", folder)
            told = forget(draw.randint(1, calls) if trial else -1, folder)
            calls = calls or int(told)
            assert calls > 200
            assert told == "killed" or not trial
            monkeypatch.setenv("PBR_JAX_CACHE", str(folder / "cache"))
            forgetting.forget(before="2021-02-01" if trial % 2 else "2021-01-01", runs=[folder / "out"])
            assert holding(folder, words_of(later if trial % 2 else old)) == [], trial
            opened = pbr_jax.open(folder / "out")
            texts = {text for user in opened.store.users for text in opened.store.texts_of(user)}
            assert {one.text for one in rest} <= texts


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "want a user's name, or a date"),
        ({"before": "soon"}, "want a date such as 2026-11-29"),
        ({"user": "u1", "before": "2021", "documents": ["u1-0"]}, "no ids of documents"),
    ],
)
def test_what_is_no_date_is_an_error(values: dict[str, Any], message: str):
    with pytest.raises(UserError, match=message):
        forgetting.forget(**values)


@pytest.mark.long
def test_old_documents_of_ten_thousand_users_go_in_one_pass(tiny_models: dict[str, str], tmp_path: Path):
    written = write(tmp_path, 10_000, 2)
    place = {"benchmark.name": "lamp_4", "benchmark.split": "dev", "generate.method": "none", "limit": 3}
    pbr_jax.run(config("bm25", tiny_models, tmp_path / "tweets", **place), tmp_path / "out")
    pbr_jax.open(tmp_path / "out").add("u1", ["later"])  # a copy of all users' documents
    old, _ = split(written, "2021-01-01")
    start = process_time()
    told = forgetting.forget(before="2021-01-01")
    spent = process_time() - start
    assert (told.older, told.owners) == (len(old), len({one.user for one in old}))
    assert holding(tmp_path, [one.text.split()[0].encode() for one in old[:50]]) == []
    print(f"{spent:.1f} CPU seconds for {told.older} documents of {told.owners} users")
    assert spent < 60
