"""A system as a memory: who is found, what may be added, and what several threads ask at once."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from memories import HISTORIES, echoing

import pbr_jax
from pbr_jax.base.gathering import Gathered
from pbr_jax.base.types import UserError
from pbr_jax.config import Config, override
from pbr_jax.experiment import opening
from pbr_jax.system import System

pytestmark = pytest.mark.usefixtures("fresh_cache")


@pytest.fixture
def config(write_tweets: Callable[..., Path]) -> Iterator[Config]:
    with echoing(write_tweets(HISTORIES)) as found:
        yield found


def texts(found: list[Any]) -> list[str]:
    return [getattr(one, "document", one).text for one in found]


def test_a_user_searches_and_lists_the_own_documents(config: Config):
    system = pbr_jax.open(config)
    assert texts(system.search("ann", "about tea", k=1)) == ["i love tea"]
    assert set(texts(system.search("ann", "about tea"))) == set(HISTORIES["ann"])
    assert texts(system.documents("bob")) == HISTORIES["bob"]
    assert system.documents("cyd") == system.documents("nobody") == system.search("nobody", "tea") == []
    assert system.users() == ["ann", "bob", "cyd"]
    for k in (0, -1, True, 1.5, "2"):
        with pytest.raises(UserError, match=r"k is .*, want a whole number from 1 on"):
            system.search("ann", "tea", k=k)  # type: ignore[arg-type]


def test_an_unknown_user_and_one_without_history_see_no_text_of_others(config: Config):
    system = pbr_jax.open(config)
    unknown, without = system.ask("eve", "i love what"), system.ask("ann", "i love what", history=False)
    assert unknown.text == without.text  # the prompt is that of nobody
    assert not any(text in unknown.text for of in HISTORIES.values() for text in of)
    assert (unknown.documents, unknown.note) == ([], "the user is not known, and no documents are shown")
    assert (without.documents, without.note) == ([], "")
    known = system.ask("ann", "i love what")
    assert "tea and cats" in known.text
    assert known.note == ""
    system.add_shared(["the lake is closed"])
    unknown = system.ask("eve", "the lake")
    assert unknown.note == "the user is not known, and only shared documents are shown"
    assert texts(unknown.documents) == texts(system.search("eve", "the lake")) == ["the lake is closed"]
    assert "eve" not in system.users()


def test_other_forms_of_asking_give_the_same_answer(config: Config):
    system = pbr_jax.open(config)
    reply = system.ask("ann", "about tea")
    assert "".join(system.ask_stream("ann", "about tea")) == reply.text
    with pytest.raises(UserError, match="query"):
        list(system.ask_stream("ann", " "))

    async def both() -> Any:
        return list(
            await asyncio.gather(system.ask_async("ann", "about tea"), system.ask_async("bob", "violins"))
        )

    assert asyncio.run(both()) == [reply, system.ask("bob", "violins")]


def test_a_run_with_a_limit_knows_all_users_of_the_data(config: Config, tmp_path: Path):
    pbr_jax.run(override(config, {"limit": 1}), tmp_path / "out")
    pbr_jax.run(config, tmp_path / "whole")
    whole = opening._open(tmp_path / "whole")
    assert set(opening._open(tmp_path / "out").users()) == set(HISTORIES)
    system = opening._open(tmp_path / "out")
    for user in HISTORIES:
        assert system.ask(user, "about tea") == whole.ask(user, "about tea")
        assert system.documents(user) == whole.documents(user)
    system = opening._open(tmp_path / "out")
    system.add("ann", ["violins"])  # the first change: the copy has all users
    assert set(system.users()) == set(HISTORIES)
    system.forget("bob")
    for reopened in (system, opening._open(tmp_path / "out")):
        assert reopened.ask("bob", "football").documents == reopened.documents("bob") == []


ENTRIES: list[tuple[list[Any], list[tuple[str, dict[str, str]]]]] = [
    (["a text"], [("a text", {})]),
    (
        [{"question": "what now?", "answer": "tea"}],
        [("what now?\ntea", {"text": "what now?\ntea", "question": "what now?", "answer": "tea"})],
    ),
    ([{"text": "said", "mood": "glad"}], [("said", {"text": "said", "mood": "glad"})]),
    ([{"fields": {"title": "t", "body": "b"}}], [("t\nb", {"text": "t\nb", "title": "t", "body": "b"})]),
    (
        [
            {"role": "system", "content": "be short"},
            {"role": "user", "content": "what now? "},
            {"role": "assistant", "content": "tea"},
            {"role": "user", "content": "and then?"},
        ],
        [
            ("system: be short", {}),
            ("user: what now?\nassistant: tea", {}),
            ("user: and then?", {}),
        ],
    ),
]


@pytest.mark.parametrize(("entries", "wanted"), ENTRIES)
def test_texts_records_and_messages_are_added(config: Config, entries: list[Any], wanted: list[Any]):
    system = pbr_jax.open(config)
    added = system.add("eve", entries)
    assert [(document.text, dict(document.fields)) for document in added] == wanted
    assert system.documents("eve") == system.documents("eve") == added
    assert system.add("eve", entries) == added  # again: the ids are those of the content
    assert system.documents("eve") == added


def test_dates_are_those_of_the_entries_or_of_the_call(config: Config):
    system, day = pbr_jax.open(config), datetime(2024, 3, 1, tzinfo=UTC)
    for time_, moment in ((day, day.timestamp()), (day.timestamp(), day.timestamp()), (None, None)):
        assert [d.time for d in system.add("eve", [f"at {time_}"], time=time_)] == [moment]
    (document,) = system.add("eve", [{"text": "then"}], time="2024-03-01")
    assert document.time == day.timestamp()
    assert document.until is not None
    assert document.time is not None
    assert 0 < 86400 - (document.until - document.time) < 1
    (document,) = system.add("eve", [{"text": "then", "time": "2024-03-01T00:00:00Z"}], time="1999")
    assert (document.time, document.until) == (day.timestamp(), None)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({}, r"the text of documents\[0\] is ''"),
        ({"text": 5}, r"the text of documents\[0\] is 5"),
        ({"answer": None}, r"'answer' of documents\[0\] is None, want a text"),
        ({"fields": "tea"}, r"the fields of documents\[0\] is 'tea', want texts by their names"),
        ({"text": "tea", "time": "soon"}, r"the time of documents\[0\] is 'soon', want a date"),
        ({"text": "tea", "id": ""}, r"the id of documents\[0\] is ''"),
        ({"role": "user", "content": None}, r"the content of messages\[0\] is None"),
    ],
)
def test_wrong_entries_are_one_clear_error_and_nothing_is_added(config: Config, entry: Any, words: str):
    system = pbr_jax.open(config)
    with pytest.raises(UserError, match=words):
        system.add("ann", [entry])
    assert texts(system.documents("ann")) == HISTORIES["ann"]


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Lets a system wait in its first batch until others have asked; the futures of all."""

    def ask(system: System, questions: list[str]) -> list[Any]:
        entered, go, original = threading.Event(), threading.Event(), system._replies

        def slow(batch: Any) -> Any:
            entered.set()
            assert go.wait(60)
            return original(batch)

        system._gathered = Gathered(slow)
        with ThreadPoolExecutor(len(questions)) as threads:
            futures = [threads.submit(system.ask, "ann", questions[0])]
            assert entered.wait(60)
            futures += [threads.submit(system.ask, "ann", text) for text in questions[1:]]
            while len(system._gathered._waiting) < len(questions) - 1:
                time.sleep(0.001)
            go.set()
        return futures

    return ask


def test_sixteen_threads_ask_a_remote_model_at_the_same_time(write_tweets: Callable[..., Path], held: Any):
    """Fifteen, for the first one asks alone: the model answers none of them before all have come."""
    root, together = write_tweets(HISTORIES), threading.Barrier(15)
    with echoing(root) as alone, echoing(root, together, **{"llm.concurrency": 16}) as config:
        system = pbr_jax.open(config)
        pbr_jax.open(alone).ask("ann", "about 0")  # its answer is kept, and the model is not asked again
        futures = held(system, [f"about {i}" for i in range(16)])
        assert all(f"about {i}" in future.result().text for i, future in enumerate(futures))


def test_an_error_reaches_only_the_caller_whose_question_caused_it(
    config: Config, monkeypatch: Any, held: Any
):
    system, answer = pbr_jax.open(config), System._answered

    def answered(self: System, examples: Any, *rest: Any, **options: Any) -> Any:
        if len(examples) > 1 and any("worse" in example.query for example in examples):
            raise RuntimeError("of the batch")
        return answer(self, examples, *rest, **options)

    monkeypatch.setattr(System, "_answered", answered)
    monkeypatch.setattr("pbr_jax.system.parse_answer", lambda form, text: "" if "bad" in text else text)
    futures = held(system, ["first", "good", "bad", "worse", "fine"])
    for future, word in zip(futures, ("first", "good", "bad", "worse", "fine"), strict=True):
        if word == "bad":
            with pytest.raises(UserError, match="the model's answer has no text"):
                future.result()
        else:
            assert word in future.result().text


def test_calls_that_come_while_a_batch_is_computed_form_the_next_ones():
    batches, go = [], threading.Event()

    def compute(items: Any) -> list[int]:
        batches.append(list(items))
        assert go.wait(60)
        return [2 * item for item in items]

    gathered = Gathered[int, int](compute, most=4)
    with ThreadPoolExecutor(10) as threads:
        futures = [threads.submit(gathered, 0)]
        while not batches:
            time.sleep(0.001)
        futures += [threads.submit(gathered, item) for item in range(1, 10)]
        while len(gathered._waiting) < 9:
            time.sleep(0.001)
        go.set()
        assert [future.result() for future in futures] == [2 * item for item in range(10)]
    assert [len(batch) for batch in batches] == [1, 4, 4, 1]
    assert sorted(item for batch in batches for item in batch) == list(range(10))
