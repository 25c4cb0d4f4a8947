"""`System`: the methods of a config over one store of documents. It ranks, answers and scores questions.

A run proceeds as cli -> config -> plan -> cached stages -> System -> experiment, which writes results.json.
The stages of a run, feedback, rewards in training, `pbr-jax ask` and notebooks all use a `System`. So there
is one privacy check (the gate, `pipeline.rank`) and one tally of the computation.
"""

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from pbr_jax.base.types import Candidate, Example, UserError
from pbr_jax.corpus.arguments import check_examples, check_filled
from pbr_jax.corpus.store import Store
from pbr_jax.llm import LLM, Score, naming
from pbr_jax.llm.protocol import OnBatch
from pbr_jax.models.thinking import after_thinking
from pbr_jax.pipeline import (
    Answer,
    Examples,
    GenerateSlot,
    Neighbour,
    OnScored,
    Pipeline,
    PromptWriter,
    Ranking,
    Scoring,
    Searched,
    Tally,
    rank,
    refuse_foreign,
)
from pbr_jax.remarks.living import Corpus, Living
from pbr_jax.tasks import AnswerFormat
from pbr_jax.text.answers import parse_answer
from pbr_jax.text.prompts import Written


class Reply(NamedTuple):
    """The answer to one question and the documents in its prompt. `profile` is the text about the user in the
    prompt, or "" if there is none."""

    text: str
    documents: list[Candidate]
    profile: str = ""


class UserVectors(NamedTuple):
    """Vectors by which a method compares the users who have documents: `ids` and `vectors`, float32 [u d].
    `clusters` has a number from 0 for each user, or -1 for no cluster. None: users are not clustered."""

    ids: list[str]
    vectors: np.ndarray
    clusters: np.ndarray | None = None


class System(Living):
    """The methods of all slots over one store of documents. `pbr_jax.open` returns one.

    The slots that rank are built together when they are first used, and so is the one that answers. A system
    that only scores needs no retriever.

    Args:
      parts: the values of a run's nodes by name, each read when first needed: `store`
        (`corpus.store.Store`); `expand`, `neighbours`, `retrieve`, `select` and `generate` (each builds its
        slot from a `Tally`); `write` (`PromptWriter`); `llm`; `answer_format`; and, if users are compared,
        `users` and `cohorts`. Parts that no call needs may be missing.
      collaboration: as in the config. None: the rankings that are passed in have already been checked.
      documents: the number of top-ranked documents that are offered to a prompt. None: all.
      tally: counts and times of the slots are added to it.
      living: builds the parts over a store that can be changed (`add`, `forget`, `observe`). The parts then
        include the `judge` of remarks, `claim_encoder` and the options `remarks`. None: the store is fixed.
      limit: the number of examples to which the store was limited, for error messages. None: all.

    `check` is called before each question. For a system from `pbr_jax.open`, it raises UserError if files
    have changed.
    """

    def __init__(
        self,
        parts: Mapping[str, Any],
        *,
        collaboration: str | None = None,
        documents: int | None = None,
        tally: Tally | None = None,
        living: Corpus | None = None,
        limit: int | None = None,
    ) -> None:
        self.tally = Tally() if tally is None else tally
        self._parts, self._collaboration, self._documents = parts, collaboration, documents
        self._living, self._limit = living, limit
        self._bound: dict[str, tuple[str, Any]] = {}  # slots by name, each with the content of the store
        self.check: Callable[[], None] = lambda: None
        self._lock = threading.RLock()  # slots are bound once, and used by one thread at a time

    @property
    def store(self) -> Store:
        """The documents and examples."""
        return self._parts["store"]

    @property
    def pipeline(self) -> Pipeline:
        """The first four slots."""
        return Pipeline(*map(self._slot, Pipeline._fields))

    def _slot(self, name: str) -> Any:
        """A slot. It is built anew after a change of the store."""
        content = self._content()
        if name not in self._bound or self._bound[name][0] != content:
            self._bound[name] = content, self._parts[name](self.tally)
        return self._bound[name][1]

    def _content(self) -> str:
        return self.store.content if "store" in self._parts and self.store.living else ""

    def replaced(self, parts: Mapping[str, Any]) -> "System":
        """A system in which these parts are replaced. It shares the other slots and the tally."""
        system = System(
            {**self._parts, **parts},
            collaboration=self._collaboration,
            documents=self._documents,
            tally=self.tally,
            limit=self._limit,
        )
        slots = (name for name in (*Pipeline._fields, "generate") if name in self._parts)
        content = system._content()
        system._bound = {name: (content, self._slot(name)) for name in slots if name not in parts}
        return system

    @property
    def write(self) -> PromptWriter:
        """The function that writes prompts (slot 5). It changes when documents do."""
        return self._parts["write"]

    @cached_property
    def llm(self) -> LLM:
        """The language model that scores targets."""
        return self._parts["llm"]

    @property
    def answer_format(self) -> AnswerFormat:
        """The format by which answers are parsed."""
        return self._parts["answer_format"]

    def _noted(
        self, examples: Examples, others: Iterable[Iterable[str]] = ()
    ) -> AbstractContextManager[None]:
        """Around what asks a language model about texts of the examples' users and of others."""
        if self._living is None:
            return nullcontext()
        users = {example.user_id for example in examples}.union(*others) - {""}
        return self.remarks.noted(users)

    @property
    def _generate(self) -> GenerateSlot | None:
        return self._slot("generate") if "generate" in self._parts else None

    def ask(self, user: str, query: str) -> Reply:
        """Answers a new question of a user of the store. The user's whole history may be retrieved.

        Raises UserError for an unknown user, an empty query or an answer without text.
        """
        check_filled(user, "user")
        check_filled(query, "query")
        user = self.store.named(user)
        self._check_user(user)  # before any model is loaded
        # Asked now: after everything that is dated.
        example = Example(id="", user_id=user, query=query, input=query, target=None, time=math.inf)
        (ranking,) = self.rank([example])
        (answer,) = self.answer([example], [ranking])
        text = parse_answer(self.answer_format, answer.text)
        if not text:
            what = "ends inside its thinking" if after_thinking(answer.text) is None else "has no text"
            raise UserError(
                f"the model's answer {what}; raise generate.max_new_tokens in the run's config, turn the "
                "model's thinking off, or leave out stop strings, and run again"
            )
        return Reply(text, ranking[: answer.prompt.documents], answer.prompt.profile)

    def _check_user(self, user: str) -> None:
        """Raises UserError for an unknown user."""
        try:
            self.store.history(user)
        except UserError as error:
            if self._limit is None:
                raise
            message = str(error).replace("of this data", f"of this run (limit {self._limit})")
            raise UserError(f"{message}; without a limit a run knows all users of the data") from None

    def neighbours(self, examples: Iterable[Example]) -> list[list[Neighbour]]:
        """The users whose histories are searched for each example. `Neighbour("")` means shared documents."""
        if not (examples := check_examples(examples)):
            return []
        with self._lock:
            users = self.pipeline.neighbours(examples)
        shared = [Neighbour("")] if self.store.has_shared else []
        return [[*of_example, *shared] for of_example in users]

    def user_vectors(self) -> UserVectors:
        """The user vectors of the method in the slot `neighbours`, computed at its latest point in time.

        Raises UserError if the method does not compare users.
        """
        self.check()
        if "users" not in self._parts:
            raise UserError(
                "the run compares no users; set neighbours.method to contrastive, mean or cohorts, and "
                "neighbours.m above 1"
            )
        users, moment, labels = self._parts["users"], math.inf, None
        with self._lock:
            if "cohorts" in self._parts:
                moment, labels = self._parts["cohorts"].at(moment)
            vectors = users.at(moment)
        there = np.flatnonzero(vectors.any(axis=1))
        ids = [users.store.users[code] for code in there]
        return UserVectors(ids, vectors[there], None if labels is None else labels[there])

    def rank(self, examples: Iterable[Example], users: Searched | None = None) -> list[Ranking]:
        """Ranks documents for each example, best first.

        Args:
          examples: questions of any split, or new ones.
          users: the result of `neighbours` for these examples, if it is known.

        Raises:
          RuntimeError: a method returned another user's document although `collaboration` is not "text", or
            a document with a wrong row number.
          UserError: a user is unknown, or a score is not finite.
        """
        self.check()
        if not (examples := check_examples(examples)):
            return []
        with self._lock:
            users = self.neighbours(examples) if users is None else users
            # Of one state, whatever is written to the store meanwhile.
            searched = ([neighbour.user_id for neighbour in of_example] for of_example in users)
            with self._noted(examples, searched), self.store.reading():
                rankings = rank(self.pipeline, examples, self._collaboration or "none", users)
                self._check_rows(rankings)
        for example, ranking in zip(examples, rankings, strict=True):
            scores = [float(candidate.score) for candidate in ranking]
            if not np.isfinite(scores).all():
                raise UserError(
                    f"question {example.id}: a method gave the scores {scores}, want finite numbers"
                )
        return rankings

    def answer(
        self,
        examples: Iterable[Example],
        rankings: Iterable[Ranking] | None = None,
        *,
        written: Sequence[Written] | None = None,
        on_batch: OnBatch | None = None,
    ) -> list[Answer]:
        """Generates the raw answer to each example.

        If a run had generate.method none, its opened system uses the method ipa.

        Args:
          rankings: the documents of each example, best first. None: those that `rank` returns.
          written: the prompts of the examples, if they are known.
          on_batch: called with the positions and texts of answers as they are finished.

        Raises:
          UserError: the system has no `generate`, or a prompt is too long.
        """
        self.check()
        if not (examples := check_examples(examples)):
            return []
        with self._lock, naming(example.id for example in examples):
            if self._generate is None:
                raise UserError("generate.method none answers nothing; set it to ipa")
            shown = self._shown(examples, rankings)
            with self._noted(examples, _owners(shown)):
                return self._generate(examples, shown, self._writer(written), on_batch=on_batch)

    def score(
        self,
        examples: Iterable[Example],
        rankings: Iterable[Ranking] | None = None,
        *,
        written: Sequence[Written] | None = None,
        on_batch: OnScored | None = None,
    ) -> list[tuple[Written, Score | None]]:
        """Computes each example's prompt and log p(target | prompt) in nats, or None without a target.

        A method that does not answer by continuing a single prompt computes its own likelihood
        (`pipeline.Scoring`). Arguments and errors are as in `answer`, except that `on_batch` is called with
        the number of newly scored targets.
        """
        self.check()
        if not (examples := check_examples(examples)):
            return []
        with self._lock, self.tally.timed("score"):
            shown, write = self._shown(examples, rankings), self._writer(written)
            with self._noted(examples, _owners(shown)):
                prompts, scores = self._scored(examples, shown, write, on_batch)
        pairs = zip(examples, prompts, scores, strict=True)
        return [(prompt, None if e.target is None else score) for e, prompt, score in pairs]

    def _scored(
        self,
        examples: Examples,
        shown: Sequence[Ranking],
        write: PromptWriter,
        on_batch: OnScored | None,
    ) -> tuple[Sequence[Written], Sequence[Score | None]]:
        """The prompts, and the likelihoods of the targets after them."""
        if not isinstance(self._generate, Scoring):
            prompts = write(examples, shown)
            return prompts, self._scores(examples, prompts, on_batch)
        with naming(example.id for example in examples):
            found = self._generate.score(examples, shown, write, on_batch=on_batch)
        return [prompt for prompt, _ in found], [score for _, score in found]

    def _scores(
        self, examples: Examples, prompts: Sequence[Written], on_batch: OnScored | None
    ) -> list[Score | None]:
        known = [(i, example.target) for i, example in enumerate(examples) if example.target is not None]

        def tell(positions: Sequence[int], _: Sequence[Score]) -> None:
            if on_batch is not None:
                on_batch(len(positions))

        with naming(examples[i].id for i, _ in known):
            found = self.llm.score(
                [prompts[i].messages for i, _ in known], [target for _, target in known], on_batch=tell
            )
        self.tally.counts.update(score_calls=len(found), score_tokens=sum(score.tokens for score in found))
        scores: list[Score | None] = [None] * len(examples)
        for (i, _), score in zip(known, found, strict=True):
            scores[i] = score
        return scores

    def _shown(self, examples: Examples, rankings: Iterable[Ranking] | None) -> list[Ranking]:
        """The rankings, cut to the documents that are offered to the prompts."""
        rankings = self.rank(examples) if rankings is None else list(rankings)
        if len(rankings) != len(examples):
            raise UserError(f"found {len(rankings)} rankings for {len(examples)} examples, want one for each")
        self._check_open(examples, rankings)
        return [ranking[: self._documents] for ranking in rankings]

    def _writer(self, written: Sequence[Written] | None) -> PromptWriter:
        def write(examples: Examples, rankings: Sequence[Ranking]) -> list[Written]:
            self._check_open(examples, rankings)
            return self.write(examples, rankings) if written is None else list(written)

        return write

    def _check_open(self, examples: Examples, rankings: Sequence[Ranking]) -> None:
        """The gate before prompts. Some of them show what stands in a candidate's row."""
        if self._collaboration is not None:
            refuse_foreign(examples, rankings, self._collaboration)
            self._check_rows(rankings)

    def _check_rows(self, rankings: Sequence[Ranking]) -> None:
        """Raises RuntimeError if a candidate's row in the store holds another document."""
        candidates = [candidate for ranking in rankings for candidate in ranking]
        rows = self.store.rows
        given = sorted({c.row for c in candidates if 0 <= c.row < rows})
        there = dict(zip(given, self.store.documents(given), strict=True))
        for candidate in candidates:
            document, at = candidate.document, there.get(candidate.row)
            if at != document:
                raise RuntimeError(
                    f"document {document.id} of user {document.user_id} is given as row {candidate.row}, "
                    "where another stands; a candidate's row must be its own, and nothing was written"
                )


def _owners(rankings: Iterable[Ranking]) -> Iterator[list[str]]:
    """The users whose documents stand in each ranking."""
    return ([candidate.document.user_id for candidate in ranking] for ranking in rankings)
