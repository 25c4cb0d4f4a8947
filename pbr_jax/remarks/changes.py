"""What the log's events change in the living corpus, and how what a remark said is erased.

The corpus follows every event once, in order, whatever was killed between the two. Of an erased text first
goes what is found by the text (vectors, cached answers), then the text in the log and the corpus.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from sqlite3 import Connection

from pbr_jax.base.types import Document, UserError
from pbr_jax.corpus import vectors
from pbr_jax.corpus.schema import GONE
from pbr_jax.corpus.store import Store
from pbr_jax.corpus.writer import Writer
from pbr_jax.llm import reads
from pbr_jax.llm.answers_file import Answers, location
from pbr_jax.remarks.log import Event, Log, Remark

MADE = "remark:"  # begins the id of a document that a remark made; the remark's number follows


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
        case "hide":
            assert id is not None
            writer.hide(owner, id)
        case "erase" if id is None:
            if (code := writer.code(owner)) != GONE:
                writer.forget(code)
        case "erase":
            assert id is not None
            writer.erase(owner, id)
        case _:
            raise UserError(
                f"event {event.version} of the log of remarks is {event.op!r}, which only older versions of "
                "pbr-jax take back; move the log away, and submit its remarks again"
            )


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


def erase_document(store: Store, log: Log, id: str) -> int:
    """Erases a remark and the document that it made, with the remarks that made the same claim; how many."""
    remarks = log.remarks(f"('{MADE}' || id=? OR '{MADE}' || claim=?) AND text IS NOT NULL", id, id)
    if not remarks:
        raise UserError(
            f"found document {id!r}, want {MADE} and the number of a remark that is not erased; what the "
            "data released cannot be erased, a remark can hide it"
        )
    events = [event for event in log.events() if event.document == id and event.text is not None]
    texts = _passages(store, events)
    _erase_what_was_made(log, texts, events)
    with log.changing() as sql:
        _blank(log, sql, events, remarks)
        for event in events:
            assert event.store is not None
            log.append(sql, "erase", author="", store=event.store, document=id, reason="erased")
    finish_erasing(store, log)
    erase_made(texts)  # what others, who saw the document until now, have made since
    return len(remarks)


def erase_user(store: Store, log: Log, user: str) -> int:
    """Forgets a user: documents, remarks, and what others see that the user's remarks made; how many remarks
    there were."""
    remarks = log.remarks("user=?", user)
    if not (remarks or log.ratings(user)):
        store.history(user)  # an unknown user is an error
    own = [event for event in log.events() if user in (event.author, event.store)]
    made = [event for event in own if event.text is not None]
    texts = [*(store.texts_of(user) if user in store.users else []), *_passages(store, made)]
    _erase_what_was_made(log, texts, made, user)
    with log.changing() as sql:
        _blank(log, sql, own, remarks)
        for event in made:
            if event.store == "":
                log.append(sql, "erase", author="", store="", document=event.document, reason="erased")
        log.append(sql, "erase", author="", store=user, document=None, reason="erased")
        sql.execute("UPDATE remarks SET user=NULL, request=hex(randomblob(16)) WHERE user=?", (user,))
        sql.execute("UPDATE events SET author=NULL WHERE author=?", (user,))
        sql.execute("DELETE FROM votes WHERE author=?", (user,))
        sql.execute("DELETE FROM ratings WHERE user=?", (user,))
    finish_erasing(store, log)
    erase_made(texts, user)  # as above
    return len(remarks)


def forget(store: Store, documents: Mapping[str, Collection[str]]) -> None:
    """Deletes these documents of users, or all of users where none are named, from a store without remarks,
    and what was made of them."""
    known = [user for user in documents if user in store.columns.codes]
    texts = [text for user in known for text in store.texts_of(user, documents[user] or None)]
    erase_made(texts, *documents)
    with store.changing() as writer:
        for user in known:
            if ids := documents[user]:
                writer.erase(user, *ids)
            else:
                writer.forget(writer.code(user))
    erase_made(texts, *documents)  # what others, who saw the documents until now, have made since


def finish_erasing(store: Store, log: Log) -> None:
    """Brings the corpus to the log's version; then drops from the log the names of forgotten users and all
    bytes of what is erased."""
    catch_up(store, log)
    with log.changing() as sql:
        gone = sql.execute(
            "SELECT version, store FROM events WHERE op='erase' AND document IS NULL AND store IS NOT NULL"
        )
        for pair in gone.fetchall():
            sql.execute(
                "UPDATE events SET store=NULL, document=NULL, previous=NULL, reason=NULL "
                "WHERE version <= ? AND store=?",
                pair,
            )
    log.purge()


def _passages(store: Store, events: Iterable[Event]) -> list[str]:
    """The texts of what events have made, as they are encoded."""
    return [part for event in events for part in store.cut(event.text or "")]


def erase_made(texts: Sequence[str], *users: str) -> None:
    """Erases the vectors of texts, and cached answers whose prompts may show them, or any text of users."""
    vectors.erase(texts)
    reads.erase(texts, users)


def _erase_what_was_made(log: Log, texts: Sequence[str], events: Iterable[Event], *users: str) -> None:
    """The same, with cached answers since the texts' events."""
    erase_made(texts, *users)
    since = min((event.version for event in events), default=None)
    with log.changing() as sql:
        keys = sql.execute("SELECT key FROM answers WHERE version >= ?", (since,)).fetchall()
        Answers(location()).erase(key for (key,) in keys)
        sql.execute("DELETE FROM answers WHERE version >= ?", (since,))


def erase_late(log: Log, keys: Sequence[str]) -> None:
    """Erases those cached answers whose notes an erasure has dropped while they were made."""
    with log.connected() as sql:
        noted = {key for (key,) in sql.execute("SELECT key FROM answers")}
    if late := [key for key in keys if key not in noted]:
        Answers(location()).erase(late)


def _blank(log: Log, sql: Connection, events: Iterable[Event], remarks: Iterable[Remark]) -> None:
    """Takes texts out of the log; a remark that was under way ends."""
    for event in events:
        sql.execute("UPDATE events SET text=NULL WHERE version=?", (event.version,))
    for remark in remarks:
        state = "applied" if remark.state == "applied" else "refused"
        log.set(sql, remark.id, text=None, summary=None, evidence=None, state=state)
        sql.execute("DELETE FROM votes WHERE claim=?", (remark.id,))
        # Who else made the claim makes it anew.
        sql.execute("UPDATE remarks SET claim=NULL WHERE claim=? AND state='judged'", (remark.id,))
    log.flag(sql, "erased", 1)
