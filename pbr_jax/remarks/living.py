"""Changes to the documents of a `System`: adding and deleting users' documents, and users' remarks."""

import abc
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from pbr_jax.base.types import Document, Example, UserError
from pbr_jax.corpus import vectors
from pbr_jax.corpus.arguments import check_documents, check_filled
from pbr_jax.corpus.store import Store
from pbr_jax.llm import cache, reads
from pbr_jax.pipeline import Neighbour, Ranking
from pbr_jax.remarks.changes import MADE, erase_late
from pbr_jax.remarks.judge import Agent, Judge
from pbr_jax.remarks.stores import Observed, Stores


@runtime_checkable
class Corpus(Protocol):
    """Builds the parts of a system over a store that can be changed."""

    @property
    def log(self) -> Path:
        """The file of the log of remarks."""
        ...

    @property
    def data(self) -> str:
        """What the documents are that were released."""
        ...

    def __call__(self, *, grows: bool) -> Mapping[str, Any]:
        """The parts; `grows`: documents may be added. UserError where they cannot be changed so."""
        ...


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
    def rank(
        self, examples: Iterable[Example], users: Sequence[Sequence[Neighbour]] | None = None
    ) -> list[Ranking]:
        """See `System`."""

    def add(self, user: str, documents: Iterable[Document | str]) -> list[Document]:
        """Adds documents to the history of a known or new user, and returns them.

        The next question can use them. Trained models do not change. A text becomes a document whose id is
        the hash of the text. A document with an id that the user already has replaces the older one. The
        run's own store does not change: the first change copies it to `corpus/` in the run's folder.

        Raises UserError for an empty user, an entry without text, another user's document, or a method that
        does not support new documents.
        """
        if user == "":
            raise UserError('user is "", want a user\'s name; to show documents to all users use add_shared')
        check_filled(user, "user")
        return self._add(user, documents)

    def add_shared(self, documents: Iterable[Document | str]) -> list[Document]:
        """Adds documents for all users, like `add`. A `Document` has user_id "" and shared True."""
        return self._add("", documents)

    def _add(self, user: str, documents: Iterable[Document | str]) -> list[Document]:
        new = check_documents(documents, user)
        if taken := [document.id for document in new if document.id.startswith(MADE)]:
            raise UserError(f"document {taken[0]!r} is called as those of remarks are; give it another id")
        with self._changing(grows=True) as store:
            store.append(new)
        return new

    def forget(self, user: str) -> None:
        """Deletes a user with all documents and remarks, including shared documents made from the remarks.

        In the cache, vectors of these documents and texts about users that were written from them are
        overwritten. Other cached results and the results of runs remain.

        Raises UserError for an unknown user.
        """
        check_filled(user, "user")
        self.store.history(user)  # an unknown user is an error before anything is copied
        if self._living is not None and self.remarks.exists:
            self.remarks.erase(user=user)
            return
        with self._changing(grows=False) as store:
            texts = store.texts_of(user)
            vectors.erase(texts)
            reads.erase(texts)
            store.forget(user)
            vectors.erase(texts)  # of what others, who saw the documents until now, have encoded anew

    @contextmanager
    def _changing(self, *, grows: bool) -> Iterator[Store]:
        """The store to write to."""
        if self._living is None:
            raise UserError("this system's documents cannot be changed; open one with pbr_jax.open")
        with self._lock:
            self.check()
            self._parts = self._living(grows=grows)
            yield self.store

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
        if request is not None:
            check_filled(request, "request")
        if not dry:
            return self.remarks.observe(user, remark, request, judge)
        with self._lock:
            self.store.history(user)  # an unknown user is an error
            return self.remarks.dry(user, remark, judge)

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
        return self.store.wholes([c.row for c in ranking[: self._parts["remarks"].documents]])

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """Around what asks a language model: an erased remark takes the answers with it that may show it."""
        if self._living is None or not self.remarks.exists:
            yield
            return
        log, keys = self.remarks.log, list[str]()

        def note(new: Sequence[str]) -> None:
            if log.note_answers(new):
                keys.extend(new)

        try:
            with cache.noted(note):
                yield
        finally:
            if keys:
                erase_late(log, keys)  # of an erasure by another process meanwhile
