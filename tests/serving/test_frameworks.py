"""Clients and frameworks that others wrote, each by its own tests or against its own implementation.

They are no part of the test environment: `pip install openai 'mcp>=2' langchain-tests llama-index-core
langgraph`.
"""

import asyncio
import importlib.util
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memories import HISTORIES, Client, echoing

import pbr_jax
from pbr_jax.config import Config
from pbr_jax.serving.keys import Keys
from pbr_jax.system import System

pytestmark = [
    pytest.mark.usefixtures("fresh_cache"),
    pytest.mark.filterwarnings("default"),  # theirs are not ours
]

FRAMEWORKS = Path(__file__).parents[2] / "examples" / "frameworks"
LONG = {**HISTORIES, "dan": [f"tea number {i} of the day" for i in range(6)]}


def example(name: str) -> Any:
    """A module of `examples/frameworks`."""
    spec = importlib.util.spec_from_file_location(name, FRAMEWORKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def config(write_tweets: Callable[..., Path], tiny_models: dict[str, str]) -> Iterator[Config]:
    encoder: Any = {"encoder.model": tiny_models["encoder.model"], "retrieve.k": 9}
    with echoing(write_tweets(LONG), **encoder) as found:
        yield found


def test_openais_client(config: Config, serve: Callable[..., Client], tmp_path: Path):
    openai = pytest.importorskip("openai", reason="pip install openai")
    system, keys = pbr_jax.open(config), Keys(tmp_path / "keys.json")
    url, ann = serve(system, keys=keys, name="mine").url, keys.add("ann")
    client = openai.OpenAI(base_url=url, api_key=ann)
    asked: Any = {"model": "mine", "messages": [{"role": "user", "content": "about tea"}]}
    whole = client.chat.completions.create(**asked)
    assert whole.choices[0].message.content == system.ask("ann", "about tea").text
    assert whole.usage.total_tokens > whole.usage.completion_tokens > 0
    parts = list(client.chat.completions.create(**asked, stream=True))
    text = "".join(part.choices[0].delta.content or "" for part in parts)
    assert text == whole.choices[0].message.content
    assert [model.id for model in client.models.list()] == ["mine", "mine-without-history"]
    for form in ("float", "base64"):
        found = client.embeddings.create(model="mine", input=["tea", "cats"], encoding_format=form)
        assert len(found.data) == 2
    found = client.embeddings.create(model="mine", input="tea").data[0].embedding  # in base64
    assert found == pytest.approx(system.encode(["tea"])[0].tolist(), abs=1e-6)
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=url, api_key="pbr-wrong").models.list()
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="mine", messages=[])

    async def several() -> Any:
        async with openai.AsyncOpenAI(base_url=url, api_key=ann) as own:
            return await asyncio.gather(*(own.chat.completions.create(**asked) for _ in range(4)))

    assert {one.choices[0].message.content for one in asyncio.run(several())} == {text}


def test_mcps_client_in_memory(config: Config):
    client = pytest.importorskip("mcp.client", reason="pip install 'pbr-jax[mcp]'")
    from pbr_jax.serving.mcp import tools

    system = pbr_jax.open(config)

    async def use() -> None:
        async with client.Client(tools(system, "eve")) as own:
            listed = await own.list_tools()
            assert {tool.name for tool in listed.tools} == {"remember", "search", "forget"}
            kept = await own.call_tool("remember", {"text": "i row at night", "time": "2024-03-01"})
            (id,) = [document.id for document in system.documents("eve")]
            assert kept.content[0].text == id
            found = await own.call_tool("search", {"query": "who rows at night"})
            assert json.loads(found.content[0].text)["text"] == "i row at night"
            await own.call_tool("forget", {"ids": [id]})
            assert system.documents("eve") == []

    asyncio.run(use())


def test_langchains_own_tests(config: Config):
    tests = pytest.importorskip(
        "langchain_tests.integration_tests.retrievers", reason="pip install langchain-tests"
    )

    class Standard(tests.RetrieversIntegrationTests):  # type: ignore[misc, name-defined]
        retriever_constructor = example("langchain_retriever").Retriever
        retriever_constructor_params: Any = {"system": pbr_jax.open(config), "user": "dan"}  # noqa: RUF012
        retriever_query_example = "tea of the day"

    standard = Standard()
    retriever = standard.retriever_constructor(**standard.retriever_constructor_params)
    standard.test_k_constructor_param()
    standard.test_invoke_with_k_kwarg(retriever)
    standard.test_invoke_returns_documents(retriever)
    asyncio.run(standard.test_ainvoke_returns_documents(retriever))
    names = {name for name in dir(standard) if name.startswith("test_")}
    assert names == {
        "test_k_constructor_param",
        "test_invoke_with_k_kwarg",
        "test_invoke_returns_documents",
        "test_ainvoke_returns_documents",
        "test_no_overrides_DO_NOT_OVERRIDE",
    }
    found = retriever.invoke("number 3")
    assert found[0].page_content == "tea number 3 of the day"
    assert found[0].metadata["score"] >= found[1].metadata["score"]


def test_llama_indexs_retriever(config: Config):
    core = pytest.importorskip("llama_index.core.retrievers", reason="pip install llama-index-core")
    system = pbr_jax.open(config)
    retriever = example("llama_index_retriever").Retriever(system, "dan", k=2)
    assert isinstance(retriever, core.BaseRetriever)
    found = retriever.retrieve("number 3")
    wanted = system.search("dan", "number 3", 2)
    assert [(one.node.get_content(), one.node.node_id, one.score) for one in found] == [
        (one.document.text, one.document.id, one.score) for one in wanted
    ]
    assert [one.score for one in asyncio.run(retriever.aretrieve("number 3"))] == [one.score for one in found]


SPACES = st.sampled_from([("ann",), ("team", "ann"), ("team", "b/c"), ("team", "100%", "x")])
KEYS = st.sampled_from(["a", "b"])
VALUES = st.dictionaries(
    st.sampled_from(["text", "n", "deep"]),
    st.one_of(st.integers(-3, 3), st.sampled_from(["tea", "i love cats"]), st.just({"text": "violins"})),
    min_size=1,
)
PUTS = st.tuples(st.just("put"), SPACES, KEYS, VALUES)
DELETES = st.tuples(st.just("delete"), SPACES, KEYS, st.none())
FILTERS = st.one_of(st.none(), st.just({"text": "tea"}), st.just({"n": {"$ne": 1}}))
SEARCHES = st.tuples(
    st.just("search"), st.sampled_from([(), ("team",), ("ann",)]), FILTERS, st.integers(0, 2)
)


@pytest.fixture
def empty(config: Config) -> System:
    """A system without users."""
    system = pbr_jax.open(config)
    for user in system.users():
        system.forget(user)
    return system


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=st.lists(st.one_of(PUTS, PUTS, DELETES, SEARCHES), min_size=4, max_size=14))
def test_langgraphs_store_does_as_the_one_in_memory(empty: System, steps: list[Any]):
    memory = pytest.importorskip("langgraph.store.memory", reason="pip install langgraph")
    base = pytest.importorskip("langgraph.store.base")
    for user in empty.users():
        empty.forget(user)
    own, other = example("langgraph_store").Store(empty), memory.InMemoryStore()
    assert isinstance(own, base.BaseStore)

    def told(items: Any) -> Any:
        return sorted((one.namespace, one.key, json.dumps(one.value, sort_keys=True)) for one in items)

    for kind, space, key, value in steps:
        if kind == "search":
            found = [one.search(space, filter=key, limit=9) for one in (own, other)]
            assert told(found[0]) == told(found[1])
            assert len(own.search(space, filter=key, limit=value or 1)) == len(
                other.search(space, filter=key, limit=value or 1)
            )
        elif kind == "put":
            for one in (own, other):
                one.put(space, key, value)
        else:
            for one in (own, other):
                one.delete(space, key)
        for place in ("a", "b"):
            kept: Any = [one.get(space, place) for one in (own, other)] if kind != "search" else []
            told_of = [one and (one.value, one.key) for one in kept]
            assert told_of[:1] == told_of[1:]
    full = {one.namespace for one in other.search((), limit=99)}
    assert full <= set(own.list_namespaces()) <= set(other.list_namespaces())
    assert own.list_namespaces(prefix=("team",), max_depth=1) in ([], [("team",)])


def test_langgraphs_store_finds_by_a_question_and_within_the_namespace(empty: System):
    pytest.importorskip("langgraph.store.memory", reason="pip install langgraph")
    store = example("langgraph_store").Store(empty)
    store.put(("ann",), "a", {"text": "i love tea"})
    store.put(("ann",), "b", {"text": "violins that day"})
    store.put(("bob",), "a", {"text": "tea for bob"})
    found = store.search(("ann",), query="tea")
    assert (found[0].key, found[0].value) == ("a", {"text": "i love tea"})
    assert {one.namespace for one in found} == {("ann",)}
    assert [one.namespace for one in asyncio.run(store.asearch((), query="tea for bob", limit=1))] == [
        ("bob",)
    ]
    before = store.get(("ann",), "a")
    store.put(("ann",), "a", {"text": "i love cats"})
    after = store.get(("ann",), "a")
    assert after.created_at == before.created_at <= before.updated_at <= after.updated_at
