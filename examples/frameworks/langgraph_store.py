"""A system as a store of LangGraph: a namespace is a user, an item a document.

The namespace `("ann",)` is the user "ann", and `("team", "ann")` the user "team/ann". Filters and lists of
namespaces are LangGraph's own, of its store in memory. Needs the package `langgraph`, from 0.2.60 on.
"""

import asyncio
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from langgraph.store.base import (  # type: ignore[import-not-found]
    BaseStore,
    GetOp,
    Item,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
)
from langgraph.store.memory import InMemoryStore  # type: ignore[import-not-found]

from pbr_jax.base.types import Document
from pbr_jax.system import System

_VALUE, _CREATED = "value", "created"  # fields of a document that the store made


class _Kept(NamedTuple):
    """An item; the names are those of LangGraph's."""

    namespace: tuple[str, ...]
    key: str
    value: dict[str, Any]
    created_at: datetime
    updated_at: datetime


class _Items:
    """Items in the documents of a system."""

    def __init__(self, system: System) -> None:
        self._system = system

    def of(self, namespace: tuple[str, ...]) -> list[_Kept]:
        """The items of a namespace."""
        return [
            _Kept(
                namespace,
                one.id,
                json.loads(one.fields[_VALUE]) if _VALUE in one.fields else {"text": one.text},
                _moment(float(one.fields[_CREATED]) if _CREATED in one.fields else one.time),
                _moment(one.time),
            )
            for one in self._system.documents(_user(namespace))
        ]

    def under(self, prefix: tuple[str, ...]) -> dict[Any, _Kept]:
        """The items of all namespaces that begin so, by namespace and key."""
        spaces = map(_namespace, self._system.users())
        items = (one for space in spaces if space[: len(prefix)] == prefix for one in self.of(space))
        return {(one.namespace, one.key): one for one in items}

    def scores(self, query: str, places: Iterable[Any]) -> dict[Any, float]:
        """The scores of those of these items that a question finds, best first."""
        wanted = set(places)
        found = {
            (space, one.document.id): one.score
            for space in {space for space, _ in wanted}
            for one in self._system.search(_user(space), query)
            if one.document.user_id
        }
        best = sorted(wanted & {*found}, key=lambda place: (-found[place], place))
        return {place: found[place] for place in best}

    def put(self, namespace: tuple[str, ...], key: str, value: Mapping[str, Any] | None) -> None:
        """Keeps an item, or deletes it (None)."""
        user, there = _user(namespace), [one for one in self.of(namespace) if one.key == key]
        if value is None:
            if there:
                self._system.forget(user, ids=[key])
            return
        now = time.time()
        created = there[0].created_at.timestamp() if there else now
        fields = {_VALUE: json.dumps(value), _CREATED: str(created)}
        text = "\n".join(_texts(value)) or fields[_VALUE]
        self._system.add(user, [Document(key, user, text, {"text": text, **fields}, time=now)])


class Store(BaseStore):
    """LangGraph's store over a `System`: `Store(pbr_jax.open("runs/dense"))`.

    `search` with a query returns what `System.search` finds, so the run's options limit the number. The
    options `index` and `ttl` of `put` are not supported.
    """

    def __init__(self, system: System) -> None:
        self._items = _Items(system)

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """The results of operations. All read the state before the batch."""
        listed = list(ops)
        results = [None if isinstance(op, PutOp) else self._read(op) for op in listed]
        last = {(op.namespace, op.key): op.value for op in listed if isinstance(op, PutOp)}
        for (namespace, key), value in last.items():
            self._items.put(namespace, key, value)
        return results

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """`batch` for programs that use asyncio."""
        return await asyncio.to_thread(self.batch, list(ops))

    def _read(self, op: Any) -> Result:
        if isinstance(op, GetOp):
            found = (one for one in self._items.of(op.namespace) if one.key == op.key)
            return next((Item(**one._asdict()) for one in found), None)
        known = self._items.under(op.namespace_prefix if isinstance(op, SearchOp) else ())
        memory = InMemoryStore()  # filters, and lists namespaces
        for (namespace, key), item in known.items():
            memory.put(namespace, key, item.value)
        if not isinstance(op, SearchOp):
            return memory.batch([op])[0]
        asked = op if op.query is None else op._replace(limit=len(known), offset=0, query=None)
        places: Any = [(one.namespace, one.key) for one in memory.batch([asked])[0]]
        scores: Any = dict.fromkeys(places)
        if op.query is not None:
            scores = self._items.scores(op.query, places)
            places = [*scores][op.offset : op.offset + op.limit]
        return [SearchItem(**known[place]._asdict(), score=scores[place]) for place in places]


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
