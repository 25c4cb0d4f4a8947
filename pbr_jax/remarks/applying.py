"""The living corpus follows the log: every event once, in order, whatever was killed between the two."""

from collections.abc import Iterable

from pbr_jax.base.types import Document, UserError
from pbr_jax.corpus.schema import GONE
from pbr_jax.corpus.store import Store
from pbr_jax.corpus.writer import Writer
from pbr_jax.remarks.log import Event, Log


def catch_up(store: Store, log: Log) -> None:
    """Brings a store to the log's version; that is kept in the store, in the transaction of the changes.

    Raises UserError where the store has followed versions that the log lacks.
    """
    there, last = store.remarks, log.version
    if there > last:
        raise UserError(
            f"{log.path} ends at version {last}, and the corpus beside it follows version {there}; put back "
            "the log that belongs to it"
        )
    if there < last:
        events = log.events(there)
        with store.changing() as writer:
            for event in events:
                if event.version > writer.values["remarks"]:  # else another process was first
                    _apply(writer, event)
                    writer.values["remarks"] = event.version


def _apply(writer: Writer, event: Event) -> None:
    owner, id = event.store, event.document
    if owner is None:  # of a user who was forgotten since
        return
    match event.op:
        case "add" | "modify":
            assert id is not None
            if event.text is not None:  # not erased since
                writer.append([Document(id, owner, event.text, shared=not owner)])
            if event.previous is not None:
                writer.hide(owner, event.previous)
        case "hide" | "restore":
            assert id is not None
            (writer.hide if event.op == "hide" else writer.restore)(owner, id)
        case "erase" if id is None:
            if (code := writer.code(owner)) != GONE:
                writer.forget(code)
        case "erase":
            assert id is not None
            writer.erase(owner, id)


def refuse_taken(store: Store, owner: str, id: str) -> None:
    """Raises UserError where the data have a document of the id that a remark would make: it would go."""
    if store.holds(owner, id):
        raise UserError(
            f"the data have a document {id!r}, as the remark's own would be called; give it another id there "
            "and run anew, into another folder"
        )


def shown(events: Iterable[Event]) -> dict[tuple[str, str], bool]:
    """Which documents (store, id) that events speak of stand in the corpus after them; not erased ones."""
    there: dict[tuple[str, str], bool] = {}
    for event in events:
        if event.store is None:
            continue
        if event.document is None:
            there = {place: seen for place, seen in there.items() if place[0] != event.store}
            continue
        place = event.store, event.document
        if event.op == "erase":
            there.pop(place, None)
            continue
        there[place] = event.op != "hide"
        if event.previous is not None:
            there[event.store, event.previous] = False
    return there
