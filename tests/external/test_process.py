"""Memory systems in processes: what they are told, what they answer, and what happens when they die."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pbr_jax.base.types import Document, UserError
from pbr_jax.external.process import Memory, Process

TOY = Path(__file__).with_name("toy.py")
TEXT = "Ann: we drink tea\nBob: i prefer coffee"
DOCUMENTS = [
    Document("s1", "ann", TEXT, time=0.0),
    Document("s2", "ann", "Ann: my cat is called Tom", time=86_400.0),
]


def kept(folder: Path) -> Counter[tuple[str, str, str]]:
    lines = (folder / "home" / "memory.jsonl").read_text().splitlines()
    return Counter((one["user"], one["id"], one["text"]) for one in map(json.loads, lines))


def test_what_is_added_is_found_with_its_sources_and_deleted(tmp_path: Path):
    with Process(TOY, tmp_path) as memory:
        memory.add("ann", DOCUMENTS)
        memory.add("bob", [Document("s1", "bob", "Bob: my cat is called Eve")])
        found = memory.search("ann", "what is my cat called", 1)
        assert found == [Memory("Ann: my cat is called Tom", ("s2",), 4.0)]
        assert memory.files() == [tmp_path / "home" / "memory.jsonl"]
        memory.delete("ann", ["s2"])
        assert {one.sources for one in memory.search("ann", "cat", 9)} == {("s1",)}
        memory.delete("ann")
        assert memory.search("ann", "cat", 9) == []
        assert len(memory.search("bob", "cat", 9)) == 1


@pytest.mark.parametrize("when", ["before", "during", "after"])
@pytest.mark.parametrize("at", ["s1", "s2"])
def test_a_system_that_dies_is_resumed_without_a_second_write(tmp_path: Path, when: str, at: str):
    with Process(TOY, tmp_path / "whole") as memory:
        memory.add("ann", DOCUMENTS)
    with Process(TOY, tmp_path / "died", settings={"die": when, "at": at}) as memory:
        memory.add("ann", DOCUMENTS)
        assert memory.counts["restarts"] == (at == "s2" or when != "after")
    assert kept(tmp_path / "died") == kept(tmp_path / "whole")


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["s1", "s2"]), min_size=1, max_size=4), st.data())
def test_the_same_addition_is_made_once_by_however_many_processes(
    tmp_path_factory: pytest.TempPathFactory, ids: list[str], data: st.DataObject
):
    folder = tmp_path_factory.mktemp("memory")
    by_id = {document.id: document for document in DOCUMENTS}
    for id in ids:
        with Process(TOY, folder) as memory:
            memory.add("ann", [by_id[id]])
        receipts = folder / "receipts.jsonl"
        if data.draw(st.booleans()):  # killed while it wrote a receipt
            receipts.write_text(receipts.read_text() + '{"abc')
    assert kept(folder) == Counter(("ann", id, turn) for id in {*ids} for turn in by_id[id].text.splitlines())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"error": "search"}, "search failed with ValueError: out of memories"),
        ({"answer": "Error: no response from LLM."}, "search gave str, want a list"),
        ({"answer": ["Error: no response from LLM."]}, "want objects with a text"),
        ({"answer": [{"text": "Error: no response from LLM."}]}, "sources None"),
        ({"answer": [{"text": "tea", "sources": []}]}, r"sources \[\]"),
        ({"answer": [{"text": "tea", "sources": ["s1"], "score": "high"}]}, "score 'high'"),
        ({"answer": [{"text": " ", "sources": ["s1"]}]}, "want objects with a text"),
    ],
)
def test_no_answer_of_a_failed_call_is_taken_for_a_memory(tmp_path: Path, given: dict[str, Any], said: str):
    with Process(TOY, tmp_path, settings=given) as memory:
        memory.add("ann", DOCUMENTS)
        with pytest.raises(UserError, match=said):
            memory.search("ann", "tea", 3)


def test_what_a_system_prints_is_no_reply(tmp_path: Path):
    with Process(TOY, tmp_path, settings={"noise": "search"}) as memory:
        memory.add("ann", DOCUMENTS)
        assert memory.search("ann", "coffee", 1)[0].sources == ("s1",)
    assert "noise of a child" in (tmp_path / "log.txt").read_text()


def test_a_call_is_bounded_in_time_and_the_process_is_gone(tmp_path: Path):
    with Process(TOY, tmp_path, settings={"hang": "search"}, timeout=2.0, restarts=0) as memory:
        memory.add("ann", DOCUMENTS)
        with pytest.raises(UserError, match="did not answer within 2 s"):
            memory.search("ann", "tea", 1)
        assert memory._running is None


def test_what_is_no_adapter_and_no_python_is_one_clear_error(tmp_path: Path):
    with pytest.raises(UserError, match="no such adapter"):
        Process(tmp_path / "none.py", tmp_path).add("ann", DOCUMENTS)
    with pytest.raises(UserError, match="cannot be started"):
        Process(TOY, tmp_path, python=str(tmp_path / "python")).add("ann", DOCUMENTS)
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(UserError, match="open failed with AttributeError"):
        Process(tmp_path / "empty.py", tmp_path).add("ann", DOCUMENTS)
