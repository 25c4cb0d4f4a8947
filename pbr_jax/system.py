"""`System`: the methods of a config over one store of documents, which rank, answer and score questions.

The way of a question: cli -> config -> plan -> cached stages -> System -> experiment writes results.json.
The stages of a run, feedback, rewards in training, `pbr-jax ask` and notebooks all use a `System`, so there
is one privacy check (the gate, `pipeline.rank`) and one tally of what was computed.
"""

import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from pbr_jax.arguments import check_examples, check_filled
from pbr_jax.corpus.store import Store
from pbr_jax.living import Corpus, Living
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
    Tally,
    rank,
    refuse_foreign,
)
from pbr_jax.tasks import AnswerFormat
from pbr_jax.text.answers import parse_answer
from pbr_jax.text.prompts import Written
from pbr_jax.types import Candidate, Example, UserError


class Reply(NamedTuple):
    """The answer to one question, and the documents that stood in its prompt; `profile`: the text about the
    user there, "" where there is none."""

    text: str
    documents: list[Candidate]
    profile: str = ""


class UserVectors(NamedTuple):
    """Users who have written something, as a method compares them: `ids`, `vectors` float32 [u d], and the
    cluster of each, 0, 1, ... or -1 for none; `clusters` is None where users are in no clusters."""

    ids: list[str]
    vectors: np.ndarray
    clusters: np.ndarray | None = None


class System(Living):
    """Methods in their slots, over one store.

    Every slot is bound when it is first used, so a system that only scores needs no retriever.

    Args:
      parts: the values of a run's nodes by name, read when they are first needed: `store`
        (`corpus.store.Store`); `expand`, `neighbours`, `retrieve`, `select` and `generate` (each makes its
        slot from a `Tally`); `write` (`PromptWriter`); `llm`; `answer_format`; `users` and their `cohorts`,
        where users are compared. What no call needs may be missing.
      collaboration: as in the config; None: given rankings have passed the gate before.
      documents: how many documents of a ranking are offered to a prompt; None: all.
      tally: what the slots count and time is added to it.
      living: gives the parts over a store that may be written to (`add`, `forget`, `observe`), which then
        have the `judge` of remarks, the `claim_encoder` and the options `remarks` too; None: documents stay.
      limit: how many examples the store was limited to, for messages; None: all.

    `check` is called before every question; `pbr_jax.open` has it raise UserError where files have changed.
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
        """A slot, rebuilt when the store has changed."""
        content = self._content()
        if name not in self._bound or self._bound[name][0] != content:
            self._bound[name] = content, self._parts[name](self.tally)
        return self._bound[name][1]

    def _content(self) -> str:
        return self.store.content if "store" in self._parts and self.store.living else ""

    def replaced(self, parts: Mapping[str, Any]) -> "System":
        """A system with these parts in the place of its own, which shares all other slots and the tally."""
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
        """The writer of prompts, slot 5; another one when documents have changed."""
        return self._parts["write"]

    @cached_property
    def llm(self) -> LLM:
        """The language model that scores targets."""
        return self._parts["llm"]

    @property
    def answer_format(self) -> AnswerFormat:
        """How answers are read."""
        return self._parts["answer_format"]

    @property
    def _generate(self) -> GenerateSlot | None:
        return self._slot("generate") if "generate" in self._parts else None

    def ask(self, user: str, query: str) -> Reply:
        """The answer to a new question of a user, who has a history in the store; all of it is visible.

        Raises UserError for an unknown user, a blank query, and an answer without text.
        """
        check_filled(user, "user")
        check_filled(query, "query")
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
        """The users whose histories are searched for each example, and "" for shared documents."""
        if not (examples := check_examples(examples)):
            return []
        with self._lock:
            users = self.pipeline.neighbours(examples)
        shared = [Neighbour("")] if self.store.has_shared else []
        return [[*of_example, *shared] for of_example in users]

    def user_vectors(self) -> UserVectors:
        """Users as the method of the slot `neighbours` compares them, at the latest moment that it reads.

        Raises UserError where the method compares nobody.
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

    def rank(
        self, examples: Iterable[Example], users: Sequence[Sequence[Neighbour]] | None = None
    ) -> list[Ranking]:
        """The documents for each example, best first.

        Args:
          examples: questions of any split, or new ones.
          users: what `neighbours` gives for them, where that is known.

        Raises:
          RuntimeError: a method gave another user's document and `collaboration` is not "text", or a
            document in another's row.
          UserError: an unknown user; a score that is not a finite number.
        """
        self.check()
        if not (examples := check_examples(examples)):
            return []
        with self._lock:
            users = self.neighbours(examples) if users is None else users
            # Of one state, whatever is written to the store meanwhile.
            with self._noted(), self.store.reading():
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
        """The language model's raw answer to each example.

        A run with generate.method none, once opened, answers with the method ipa.

        Args:
          rankings: the documents of each example, best first; None: as `rank` finds them.
          written: their prompts, where they are known.
          on_batch: called with positions and texts of answers as they are finished.

        Raises:
          UserError: the system was built without `generate`, or a prompt is too long.
        """
        self.check()
        if not (examples := check_examples(examples)):
            return []
        with self._lock, self._noted(), naming(example.id for example in examples):
            if self._generate is None:
                raise UserError("generate.method none answers nothing; set it to ipa")
            shown = self._shown(examples, rankings)
            return self._generate(examples, shown, self._writer(written), on_batch=on_batch)

    def score(
        self,
        examples: Iterable[Example],
        rankings: Iterable[Ranking] | None = None,
        *,
        written: Sequence[Written] | None = None,
        on_batch: OnScored | None = None,
    ) -> list[tuple[Written, Score | None]]:
        """Each example's prompt, and log p(target | prompt) in nats; None where there is no target.

        A method that answers otherwise than by continuing one prompt has its own likelihood
        (`pipeline.Scoring`). Arguments and errors as in `answer`; `on_batch` is called with how many more
        targets are scored.
        """
        self.check()
        if not (examples := check_examples(examples)):
            return []
        with self._lock, self._noted(), self.tally.timed("score"):
            shown, write = self._shown(examples, rankings), self._writer(written)
            if isinstance(self._generate, Scoring):
                with naming(example.id for example in examples):
                    found = self._generate.score(examples, shown, write, on_batch=on_batch)
                prompts, scores = [prompt for prompt, _ in found], [score for _, score in found]
            else:
                prompts = write(examples, shown)
                scores = self._scores(examples, prompts, on_batch)
        pairs = zip(examples, prompts, scores, strict=True)
        return [(prompt, None if e.target is None else score) for e, prompt, score in pairs]

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
        """The documents that are offered to the prompts."""
        rankings = self.rank(examples) if rankings is None else list(rankings)
        if len(rankings) != len(examples):
            raise UserError(f"found {len(rankings)} rankings for {len(examples)} examples, want one for each")
        if self._collaboration is not None:
            refuse_foreign(examples, rankings, self._collaboration)
        return [ranking[: self._documents] for ranking in rankings]

    def _writer(self, written: Sequence[Written] | None) -> PromptWriter:
        def write(examples: Examples, rankings: Sequence[Ranking]) -> list[Written]:
            if self._collaboration is not None:
                refuse_foreign(examples, rankings, self._collaboration)
            return self.write(examples, rankings) if written is None else list(written)

        return write

    def _check_rows(self, rankings: Sequence[Ranking]) -> None:
        """Raises RuntimeError where the document in a candidate's row, which is what is kept, is another."""
        candidates = [candidate for ranking in rankings for candidate in ranking]
        given = sorted({c.row for c in candidates if 0 <= c.row < self.store.rows})
        there = dict(zip(given, self.store.documents(given), strict=True))
        for candidate in candidates:
            document, at = candidate.document, there.get(candidate.row)
            if at != document:
                raise RuntimeError(
                    f"document {document.id} of user {document.user_id} is given as row {candidate.row}, "
                    "where another stands; a candidate's row must be its own, and nothing was written"
                )
