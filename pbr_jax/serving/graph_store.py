"""A system as a store of LangGraph: a namespace is a user, an item a document.

The namespace `("ann",)` is the user "ann", and `("team", "ann")` the user "team/ann". Filters and lists of
namespaces are LangGraph's own, of its store in memory.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any

from pbr_jax.base.types import Document
from pbr_jax.system import System

_VALUE, _CREATED = "value", "created"  # fields of a document that the store made


@cache
def langgraph() -> Any:
    """The class of the store: `langgraph()(system)`. Needs the package `langgraph`.

    `search` with a query returns what `System.search` finds, so the run's options limit the number. The
    options `index` and `ttl` of `put` are not supported.
    """
    from langgraph.store.base import BaseStore, GetOp, Item, Op, PutOp, Result, SearchItem, SearchOp  # type: ignore[import-not-found]
    from langgraph.store.memory import InMemoryStore  # type: ignore[import-not-found]

    class Store(BaseStore):
        """Items in the documents of a `System`."""

        def __init__(self, system: System) -> None:
            self._system = system

        def batch(self, ops: Iterable[Op]) -> list[Result]:
            """The results of operations. All read the state before the batch."""
            listed = list(ops)
            results = [None if isinstance(op, PutOp) else self._read(op) for op in listed]
            for (namespace, key), value in {
                (op.namespace, op.key): op.value for op in listed if isinstance(op, PutOp)
            }.items():
                self._put(namespace, key, value)
            return results

        async def abatch(self, ops: Iterable[Op]) -> list[Result]:
            """`batch` for programs that use asyncio."""
            import asyncio

            return await asyncio.to_thread(self.batch, list(ops))

        def _read(self, op: Any) -> Result:
            if isinstance(op, GetOp):
                return next((one for one in self._items(op.namespace) if one.key == op.key), None)
            prefix = op.namespace_prefix if isinstance(op, SearchOp) else ()
            known = {
                (one.namespace, one.key): one for space in self._spaces(prefix) for one in self._items(space)
            }
            memory = InMemoryStore()
            for (namespace, key), item in known.items():
                memory.put(namespace, key, item.value)
            if not isinstance(op, SearchOp):
                return memory.batch([op])[0]
            everything = op if op.query is None else op._replace(limit=len(known), offset=0, query=None)
            (found,) = memory.batch([everything])
            places = [(one.namespace, one.key) for one in found]  # type: ignore[union-attr]
            scores: dict[Any, Any] = dict.fromkeys(places)
            if op.query is not None:
                scores = self._scores(op.query, places)
                best = sorted(scores, key=lambda place: -scores[place])
                places = best[op.offset : op.offset + op.limit]
            return [
                SearchItem(
                    namespace=place[0], key=place[1], value=known[place].value, score=scores[place],
                    created_at=known[place].created_at, updated_at=known[place].updated_at,
                )
                for place in places
            ]  # fmt: skip

        def _scores(self, query: str, places: list[Any]) -> dict[Any, float]:
            """The scores of those of these items that a question finds."""
            found = {
                (space, one.document.id): one.score
                for space in dict.fromkeys(space for space, _ in places)
                for one in self._system.search(_user(space), query)
                if one.document.user_id
            }
            return {place: found[place] for place in places if place in found}

        def _put(self, namespace: tuple[str, ...], key: str, value: Mapping[str, Any] | None) -> None:
            there = next((one for one in self._items(namespace) if one.key == key), None)
            user = _user(namespace)
            if value is None:
                if there is not None:
                    self._system.forget(user, ids=[key])
                return
            now = time.time()
            fields = {
                _VALUE: json.dumps(value),
                _CREATED: str(there.created_at.timestamp() if there else now),
            }
            text = "\n".join(_texts(value)) or fields[_VALUE]
            self._system.add(user, [Document(key, user, text, {"text": text, **fields}, time=now)])

        def _items(self, namespace: tuple[str, ...]) -> list[Item]:
            return [
                Item(
                    namespace=namespace,
                    key=one.id,
                    value=json.loads(one.fields[_VALUE]) if _VALUE in one.fields else {"text": one.text},
                    created_at=_moment(float(one.fields[_CREATED]) if _CREATED in one.fields else one.time),
                    updated_at=_moment(one.time),
                )
                for one in self._system.documents(_user(namespace))
            ]

        def _spaces(self, prefix: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
            spaces = map(_namespace, self._system.users())
            return (space for space in spaces if space[: len(prefix)] == prefix)

    return Store


def _user(namespace: tuple[str, ...]) -> str:
    return "/".join(part.replace("%", "%25").replace("/", "%2F") for part in namespace)


def _namespace(user: str) -> tuple[str, ...]:
    return tuple(part.replace("%2F", "/").replace("%25", "%") for part in user.split("/"))


def _texts(value: Any) -> Iterator[str]:
    """All texts of a value that are not blank."""
    if isinstance(value, str) and value.strip():
        yield value
    for inner in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from _texts(inner)


def _moment(seconds: float | None) -> datetime:
    return datetime.fromtimestamp(seconds or 0.0, UTC)
