"""Changes to the documents of a `System`: adding and deleting users' documents, and users' remarks.

A remark is logged, judged, and changes the living corpus, which follows the log. What it did can be erased.
"""

import abc
import hashlib
import json
import math
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from sqlite3 import Connection
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from pbr_jax.base import terminal
from pbr_jax.base.locks import locked
from pbr_jax.base.types import NO_ROW, Document, Example, UserError
from pbr_jax.corpus.arguments import Entry, check_documents, check_filled
from pbr_jax.corpus.entries import Time
from pbr_jax.corpus.store import Store
from pbr_jax.llm import cache
from pbr_jax.options import Remarks
from pbr_jax.pipeline import Neighbour, Ranking, Searched
from pbr_jax.remarks.changes import (
    MADE,
    catch_up,
    erase_document,
    erase_late,
    erase_user,
    finish_erasing,
    forget,
    refuse_taken,
    shown,
)
from pbr_jax.remarks.judge import Agent, Judge, Judgement, claim_of
from pbr_jax.remarks.log import Event, Log, Rating, Remark, State
from pbr_jax.remarks.ratings import latest, reordered

_UNFINISHED = "(state IN ('received', 'summarised') OR (state='judged' AND claim IS NULL))"


class Observed(NamedTuple):
    """What became of a remark.

    `state` is `judged` where a shared claim waits for further users: it has `votes` of the `quorum`. The
    document is the one that was added, or hidden; `version` that of the stores with it.
    """

    request: str
    state: State
    summary: str
    verdict: str | None
    route: str | None
    operation: str | None
    document: str | None
    version: int | None
    claim: int | None
    votes: int
    quorum: int


class Stores:
    """The log of a run's remarks, and the living corpus that follows it.

    Args:
      path: of the log; `data`: what the run's own documents are.
      changing: the living corpus, opened to be written to; `grows`: documents may be added.
      find: the documents for a text of a user: the user's own and shared ones.
      encode: texts to vectors [n d], for the texts of claims.
      judge: makes the judge where none is given.
    """

    def __init__(
        self,
        path: Path,
        data: str,
        options: Remarks,
        *,
        changing: Callable[..., AbstractContextManager[Store]],
        find: Callable[[str, str], Sequence[Document]],
        encode: Callable[[Sequence[str]], np.ndarray],
        judge: Callable[[], Judge],
    ) -> None:
        self.path, self._data, self.options = path, data, options
        self._changing, self._find, self._encode, self._judge = changing, find, encode, judge

    @property
    def exists(self) -> bool:
        """Whether there has been a remark."""
        return self.path.is_file()

    @cached_property
    def log(self) -> Log:
        """The log, which is made where there is none."""
        return Log(self.path, self._data)

    @contextmanager
    def noted(self, notes: AbstractContextManager[None]) -> Iterator[None]:
        """The same as `notes` (`reads.of_questions`); an erased remark takes the answers with it, too, that
        may show its text."""
        if not self.exists:
            with notes:
                yield
            return
        keys: list[str] = []

        def note(new: Sequence[str]) -> None:
            if self.log.note_answers(new):
                keys.extend(new)

        try:
            with notes, cache.noted(note):
                yield
        finally:
            if keys:
                erase_late(self.log, keys)  # of an erasure by another process meanwhile

    def catch_up(self) -> None:
        """Brings the corpus to the log's version, and ends an erasure that was killed; asks no model."""
        with self._alone(grows=False):
            pass

    @contextmanager
    def _alone(self, *, grows: bool) -> Iterator[Store]:
        """The corpus at the log's version, for one process at a time."""
        with self._changing(grows=grows) as store, locked(self.path.with_name(f"{self.path.name}.lock")):
            if store.remarks != self.log.version or self.log.has_erased:
                finish_erasing(store, self.log)
            yield store

    # -- remarks ---------------------------------------------------------------------------------------

    def observe(
        self, user: str, text: str, request: str | None = None, judge: Judge | None = None
    ) -> Observed:
        """Takes a remark of a user, who may be new, and says what became of it; see `System.observe`."""
        self._check(text)
        judge = judge or self._judge()  # one that cannot judge is an error before anything is kept
        with self._changing(grows=True):
            remark = self.log.receive(request or uuid.uuid4().hex, user, text)
        with self._alone(grows=True) as store:
            for left in self.log.remarks(f"{_UNFINISHED} AND id != ?", remark.id):
                try:
                    self._finish(left, store, judge)
                except UserError:  # whose text may repeat another user's
                    terminal.err(f"remark {left.id} stays {left.state}; the next one tries it again")
            return self._observed(self._finish(remark, store, judge))

    def dry(self, user: str, text: str, judge: Judge | None = None) -> Observed:
        """What would become of a remark, if it were the only one; nothing is kept."""
        self._check(text)
        judge = judge or self._judge()
        with cache.unkept():
            remark = Remark(0, "", 0.0, user, text, "refused", claim_of(judge, text))
            if remark.summary:
                judgement = self._judged(remark, judge)[0]
                remark = remark._replace(**_judged_fields(judgement))
        return _observed(remark, None, 0, self.options.quorum)

    def _check(self, text: str) -> None:
        most = self.options.max_characters
        if len(text) > most:
            raise UserError(
                f"the remark has {len(text):,} characters, want at most {most:,} (remarks.max_characters); "
                "shorten it, or add the text as a document with System.add"
            )

    def _finish(self, remark: Remark, store: Store, judge: Judge) -> Remark:
        """Takes a remark through the states that it has not passed."""
        remark = self.log.remark(remark.id)  # another process may have had it meanwhile
        if remark.state in ("received", "summarised"):
            by: dict[str, Any] = {"llm": judge.name, "prompt_hash": judge.prompt_hash}
            with cache.unkept():
                if remark.state == "received":
                    assert remark.text is not None
                    summary = claim_of(judge, remark.text)
                    state: State = "summarised" if summary else "refused"
                    remark = self.log.advance(remark, state, summary=summary, **by)
                if remark.state == "summarised":
                    assert remark.user is not None
                    if remark.user not in store.columns.codes:
                        with store.changing() as writer:
                            writer.admit(remark.user)
                    judgement, target = self._judged(remark, judge)
                    fields = _judged_fields(judgement)
                    evidence = json.dumps(judgement.evidence)
                    remark = self.log.advance(remark, **fields, target=target, evidence=evidence, **by)
        if remark.state == "judged":
            refuse_taken(store, "" if remark.route == "shared" else remark.user or "", _made(remark))
            remark = self._settle(remark)
            catch_up(store, self.log)
        return remark

    def _judged(self, remark: Remark, judge: Judge) -> tuple[Judgement, str | None]:
        """The judgement, and the id of the document that it changes.

        What neither source knows is personal, and nobody changes a document of another store.
        """
        assert remark.user is not None
        documents = self._find(remark.user, remark.summary or "")
        found = judge.judge(remark, documents)
        if found.verdict != "correct":
            found = found._replace(route="personal")
        target = None if found.target is None else documents[found.target]
        if target is None or target.shared != (found.route == "shared"):
            found, target = found._replace(operation="add", target=None), None
        return found, None if target is None or found.operation == "add" else target.id

    # -- from a judgement to the stores ----------------------------------------------------------------

    def _settle(self, remark: Remark) -> Remark:
        """Applies a judged remark, or counts it as a vote where it is not the last that a claim needs."""
        assert remark.user is not None
        claim = None if remark.route == "personal" else self._claim(remark)
        with self.log.changing() as sql:
            if claim is None:
                version = self._change(sql, remark, store=remark.user)
                self.log.set(sql, remark.id, state="applied", claim=remark.id, version=version)
            else:
                sql.execute("INSERT OR IGNORE INTO votes VALUES (?,?)", (claim.id, remark.user))
                self.log.set(sql, remark.id, claim=claim.id)
                if claim.version is not None:  # it stands already
                    self.log.set(sql, remark.id, state="applied", version=claim.version)
                elif self._votes(sql, claim.id) >= self.options.quorum:
                    version = self._change(sql, claim, store="")
                    sql.execute(
                        "UPDATE remarks SET state='applied', version=? WHERE claim=? AND state='judged'",
                        (version, claim.id),
                    )
        return self.log.remark(remark.id)

    def _change(self, sql: Connection, remark: Remark, *, store: str) -> int:
        """Logs what a remark changes, and returns the version."""
        assert remark.user is not None
        hides = remark.operation == "hide"
        return self.log.append(
            sql,
            "hide" if hides else "modify" if remark.target else "add",
            author=remark.user,
            store=store,
            document=remark.target if hides else _made(remark),
            previous=None if hides else remark.target,
            text=None if hides else remark.summary,
            reason=f"remark {remark.id}: {remark.verdict}",
        )

    def _claim(self, remark: Remark) -> Remark:
        """The remark that first made this claim, where that is open or stands; else this one.

        An open claim has the same operation and target. What stands is the same claim however it is made,
        unless the remark is about the document that it made.
        """
        if remark.claim is not None:  # it has its vote
            return self.log.remark(remark.claim)
        firsts = self.log.remarks("id=claim AND route='shared' AND summary IS NOT NULL")
        there = shown(self.log.events())
        wanted = remark.operation, remark.target
        others = [
            first
            for first in firsts
            if (first.version is None and (first.operation, first.target) == wanted)
            or (first.version is not None and _stands(first, there) and remark.target != _made(first))
        ]
        if others:
            encoded = self._encode([remark.summary or "", *(other.summary or "" for other in others)])
            encoded = encoded / np.maximum(np.linalg.norm(encoded, axis=1, keepdims=True), 1e-12)
            cosines = encoded[1:] @ encoded[0]
            if cosines.max() >= self.options.claim_cosine:
                return others[int(cosines.argmax())]
        return remark

    def _votes(self, sql: Connection, claim: int | None) -> int:
        return sql.execute("SELECT COUNT(*) FROM votes WHERE claim=?", (claim,)).fetchone()[0]

    def _observed(self, remark: Remark) -> Observed:
        with self.log.connected() as sql:
            votes = self._votes(sql, remark.claim)
            query = "SELECT document FROM events WHERE version=?"
            document = sql.execute(query, (remark.version,)).fetchone()
        return _observed(remark, document[0] if document else None, votes, self.options.quorum)

    # -- what a person does to the stores --------------------------------------------------------------

    def history(self) -> list[Event]:
        """All changes of the stores, in order."""
        return self._existing().events()

    def waiting(self) -> list[tuple[Remark, int]]:
        """The shared claims that wait for further users, with their votes."""
        with self._existing().connected() as sql:
            claims = self.log.remarks("state='judged' AND route='shared' AND id=claim")
            return [(claim, self._votes(sql, claim.id)) for claim in claims]

    def erase(self, document: str | None = None, user: str | None = None) -> int:
        """Erases a remark with the document that it made, or all that is of a user, who is forgotten.

        Gone are the documents, their vectors, the remarks themselves, and cached answers whose prompts may
        have held them; how many remarks there were. UserError for unknown ones.
        """
        self._existing()
        with self._alone(grows=False) as store:
            if document is not None:
                return erase_document(store, self.log, document)
            check_filled(user, "user")
            return erase_user(store, self.log, store.named(user or ""))

    def _existing(self) -> Log:
        if not self.exists:
            raise UserError(f"no remarks: there is no {self.path}; pbr-jax feedback takes some")
        return self.log


def _judged_fields(judgement: Judgement) -> dict[str, Any]:
    """What a judgement makes of a remark."""
    state = "refused" if judgement.verdict == "incorrect" else "judged"
    fields = {name: getattr(judgement, name) for name in ("verdict", "route", "operation")}
    return {"state": state, **fields}


def _observed(remark: Remark, document: str | None, votes: int, quorum: int) -> Observed:
    own = {name: getattr(remark, name) for name in Observed._fields if name in Remark._fields}
    own["summary"] = remark.summary or ""
    return Observed(**own, document=document, votes=votes, quorum=quorum)


def _made(remark: Remark) -> str:
    """The id of the document that a remark makes."""
    return f"{MADE}{remark.id}"


def _stands(claim: Remark, there: dict[tuple[str, str], bool]) -> bool:
    """Whether what a shared claim did is still so."""
    if claim.operation == "hide":
        return there.get(("", claim.target or "")) is False
    return there.get(("", _made(claim))) is True


@runtime_checkable
class Corpus(Protocol):
    """Builds the parts of a system over a store that can be changed.

    `log` is the file of the log of remarks, and `data` says which documents were released. A call returns the
    parts; `grows`: documents may be added. UserError where they cannot be changed so.
    """

    @property
    def log(self) -> Path: ...

    @property
    def data(self) -> str: ...

    @property
    def whole(self) -> Mapping[str, Any] | None:
        """The parts over the documents of all users of the data; None: there are no others, or no parts over
        them."""
        ...

    def __call__(self, *, grows: bool) -> Mapping[str, Any]: ...


class Living(abc.ABC):
    """The part of `System` that changes documents."""

    _parts: Mapping[str, Any]
    _living: Corpus | None
    _lock: AbstractContextManager[Any]
    check: Callable[[], None]

    @property
    @abc.abstractmethod
    def store(self) -> Store:
        """See `System`."""

    @abc.abstractmethod
    def _known(self, user: str) -> str:
        """See `System`."""

    @abc.abstractmethod
    def rank(self, examples: Iterable[Example], users: Searched | None = None) -> list[Ranking]:
        """See `System`."""

    def add(self, user: str, documents: Iterable[Entry], *, time: Time = None) -> list[Document]:
        """Adds documents to the history of a known or new user, and returns them.

        The next question can use them. Trained models do not change. A document with an id that the user
        already has replaces the older one. The run's own store does not change: the first change copies it to
        `corpus/` in the run's folder.

        Args:
          documents: texts, `Document`s, records (`{"question": ..., "answer": ..., "time": ...}`) or the
            messages of a chat (`{"role": ..., "content": ...}`), of which each exchange becomes a document.
            The id of what has none is the hash of its content.
          time: the date of those without one, as seconds since 1970, a text or a `datetime`.

        Raises UserError for an empty user, an entry without text, another user's document, or a method that
        does not support new documents.
        """
        if user == "":
            raise UserError('user is "", want a user\'s name; to show documents to all users use add_shared')
        check_filled(user, "user")
        name = self.store.named(user)
        found = check_documents(documents, user, time)
        return self._add([replace(document, user_id=name) for document in found])

    def add_shared(self, documents: Iterable[Entry], *, time: Time = None) -> list[Document]:
        """Adds documents for all users, like `add`. A `Document` has user_id "" and shared True."""
        return self._add(check_documents(documents, "", time))

    def _add(self, new: list[Document]) -> list[Document]:
        if taken := [document.id for document in new if document.id.startswith(MADE)]:
            raise UserError(f"document {taken[0]!r} is called as those of remarks are; give it another id")
        with self._changing(grows=True) as store:
            store.append(new)
        return new

    def forget(self, user: str, ids: Iterable[str] | None = None) -> None:
        """Deletes a user with all documents and remarks, including shared documents made from the remarks; or
        the user's documents with these ids alone.

        Gone are their texts in this system's own copy of the documents, their vectors and ratings, and cached
        answers whose prompts may show a text of the user. What else was made of the data that the run was
        made from stays, in the cache and in run folders: `pbr_jax.forget` and `pbr-jax forget` reach it.

        Raises UserError for an unknown user or document.
        """
        check_filled(user, "user")
        user = self._known(user) or self.store.named(user)
        if ids is None and self._living is not None and self.remarks.exists:
            self.remarks.erase(user=user)
            return
        self.store.history(user)  # an unknown user is an error before anything is copied
        named = None if ids is None else [*dict.fromkeys(ids)]
        if missing := [id for id in named or () if not self.store.texts_of(user, [id])]:
            raise UserError(f"user {user!r} has no document {missing[0]!r}; nothing was deleted")
        for id in [id for id in named or () if id.startswith(MADE)]:
            self.remarks.erase(document=id)
        rest = None if named is None else [id for id in named if not id.startswith(MADE)]
        if rest != []:
            with self._changing(grows=False) as store:
                forget(store, {user: rest or ()})
        if named and self.remarks.exists:
            self.remarks.log.forget_ratings((user, id) for id in named)

    @contextmanager
    def _changing(self, *, grows: bool) -> Iterator[Store]:
        """The store to write to."""
        if self._living is None:
            raise UserError("this system's documents cannot be changed; open one with pbr_jax.open")
        with self._lock:
            self.check()
            self._parts = self._living(grows=grows)
            yield self.store

    def start_copy(self) -> None:
        """Copies the documents now, not at the first change, so that no other process has to be the first."""
        with self._changing(grows=False):
            pass

    # -- remarks ---------------------------------------------------------------------------------------

    def observe(
        self,
        user: str,
        remark: str,
        *,
        request: str | None = None,
        judge: Judge | None = None,
        dry: bool = False,
    ) -> Observed:
        """Processes a user's remark: summarises and judges it, and changes documents (LUF, section 2.3).

        The remark is saved before a model is called, and the next call completes an interrupted one. The next
        question sees the changes. A personal remark changes only documents of its user. A shared one takes
        effect when `remarks.quorum` users have made the same claim. An unknown user is added.

        Args:
          request: an id of this submission. Repeated submissions with the same id count once.
          judge: replaces the config's language model (`pbr_jax.remarks.judge`).
          dry: returns the result without saving anything. The user must be known.

        Raises UserError for an empty user or remark, a remark that is too long, a language model that cannot
        score, or a method that does not support new documents.
        """
        check_filled(user, "user")
        check_filled(remark, "the remark")
        user = self.store.named(user)
        if request is not None:
            check_filled(request, "request")
        if not dry:
            return self.remarks.observe(user, remark, request, judge)
        with self._lock:
            self.store.history(user)  # an unknown user is an error
            return self.remarks.dry(user, remark, judge)

    def rate(self, user: str, question: str, documents: Iterable[str], value: int) -> int:
        """Keeps whether documents were good (1) or bad (-1) evidence for a question; 0 takes it back.

        The order of documents for the user's later questions follows (`pbr_jax.remarks.ratings`).

        Args:
          documents: the ids of documents of the user, or shared ones.

        Returns the number of ratings. Raises UserError for an unknown document.
        """
        check_filled(user, "user")
        check_filled(question, "question")
        if value not in (-1, 0, 1):
            raise UserError(f"value is {value!r:.40}, want 1, -1, or 0 to take a rating back")
        with self._changing(grows=False) as store:
            name, ids = store.named(user), [*dict.fromkeys(documents)]
            for id in ids:
                if not any(store.holds(owner, id) for owner in (name, "")):
                    raise UserError(f"document {id!r} is neither the user's nor shared; rate one that is")
            self.remarks.log.rate(name, [Rating(question, id, value) for id in ids])
        return len(ids)

    def ratings(self, user: str) -> list[Rating]:
        """The user's ratings."""
        if self._living is None or not self.remarks.exists:
            return []
        return self.remarks.log.ratings(self.store.named(user))

    def _rated(self, user: str, question: str, ranking: Ranking) -> Ranking:
        """A ranking, reordered by the user's ratings."""
        known = self.ratings(user) if user and len(ranking) > 1 else []
        if not known:
            return ranking
        questions = latest(known)
        return reordered(
            ranking, known, questions, self._parts["claim_encoder"].encode([question, *questions])
        )

    @cached_property
    def remarks(self) -> Stores:
        """The log of remarks, and functions to list and erase their changes."""
        if self._living is None:
            raise UserError("this system takes no remarks; open one with pbr_jax.open")
        return Stores(
            self._living.log,
            self._living.data,
            self._parts["remarks"],
            changing=self._changing,
            find=self._known_about,
            encode=lambda texts: self._parts["claim_encoder"].encode(list(texts)),
            judge=lambda: Agent(self._parts["judge"], self._parts["remarks"]),
        )

    def _known_about(self, user: str, text: str) -> list[Document]:
        """The first documents for a text among the user's own and the shared ones, whatever others share."""
        users = [Neighbour(user), *([Neighbour("")] if self.store.has_shared else [])]
        id = hashlib.sha256(text.encode()).hexdigest()
        example = Example(id=f"remark {id}", user_id=user, query=text, input=text, target=None, time=math.inf)
        (ranking,) = self.rank([example], [users])
        rows = [c.row for c in ranking]
        if NO_ROW in rows:  # texts of a memory system: the documents of which they are made
            seen = self.store.visible(example, user).tolist()
            of = dict(zip((one.whole for one in self.store.documents(seen)), seen, strict=True))
            rows = [*dict.fromkeys(of[source] for c in ranking for source in c.sources)]
        return self.store.wholes(rows[: self._parts["remarks"].documents])
