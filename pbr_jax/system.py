"""`System`: the methods of a config over one store of documents. It ranks, answers and scores questions.

A run proceeds as cli -> config -> plan -> cached stages -> System -> experiment, which writes results.json.
The stages of a run, feedback, rewards in training, `pbr-jax ask` and notebooks all use a `System`. So there
is one privacy check (the gate, `pipeline.rank`) and one tally of the computation.
"""

import asyncio
import itertools
import json
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cached_property
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from pbr_jax.base.gathering import Gathered
from pbr_jax.base.types import NO_ROW, Candidate, Document, Example, UserError
from pbr_jax.corpus.arguments import check_examples, check_filled
from pbr_jax.corpus.schema import FORGOTTEN
from pbr_jax.corpus.store import Store
from pbr_jax.llm import LLM, Score, naming, reads
from pbr_jax.llm.protocol import OnBatch, OnText, Prompt, brief, listening
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
from pbr_jax.text.answers import Parts, parse_answer
from pbr_jax.text.prompts import Written

_UNKNOWN = (
    "the user is not known, and no documents are shown",
    "the user is not known, and only shared documents are shown",
)


class Reply(NamedTuple):
    """The answer to one question and the documents in its prompt. `profile` is the text about the user in the
    prompt, or "" if there is none. `note` says so if the user is not known, and is "" otherwise."""

    text: str
    documents: list[Candidate]
    profile: str = ""
    note: str = ""
    prompt_tokens: int = 0


class _Question(NamedTuple):
    """A new question. `history`: whether documents are shown. `answered`: whether an answer is wanted.
    `parts` get what the model writes, while it does."""

    user: str
    text: str
    history: bool = True
    answered: bool = True
    parts: Parts | None = None


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
    ) -> None:
        self.tally = Tally() if tally is None else tally
        self._parts, self._collaboration, self._documents = parts, collaboration, documents
        self._living = living
        self._gathered = Gathered(self._replies)
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
        self, examples: Examples, others: Iterable[Iterable[str]] = itertools.repeat(())
    ) -> AbstractContextManager[None]:
        """Around what asks a language model about texts of each example's user and of others."""
        anyone = self._collaboration in (None, "text")
        if self._living is None and "store" in self._parts and self.store.living:
            others = itertools.repeat((reads.ANYONE,))  # a learner's, with texts that it made from anybody's
        shown = [{example.user_id, *own} - {""} for example, own in zip(examples, others)]
        notes = reads.of_questions(shown, texts_of_others=anyone)
        return notes if self._living is None else self.remarks.noted(notes)

    @property
    def _generate(self) -> GenerateSlot | None:
        return self._slot("generate") if "generate" in self._parts else None

    # -- new questions ---------------------------------------------------------------------------------

    def ask(
        self, user: str, query: str, *, history: bool = True, on_text: Callable[[str], object] | None = None
    ) -> Reply:
        """Answers a new question of a user. The user's whole history may be retrieved.

        For a user who is not known, only shared documents can be shown, and `Reply.note` says so. Questions
        that several threads ask at the same time are answered together.

        Args:
          history: False: no documents and no text about the user are shown.
          on_text: gets the answer in parts, from another thread. A model in this process passes them on
            while it writes, if the whole output is the answer. Otherwise the answer is one part.

        Raises UserError for an empty user or query, or an answer without text.
        """
        parts = None if on_text is None else Parts(self.answer_format, on_text)
        reply = self._gathered(self._question(user, query, history=history, parts=parts))
        if parts is not None:
            parts.end(reply.text)
        return reply

    async def ask_async(self, user: str, query: str, *, history: bool = True) -> Reply:
        """`ask` for programs that use asyncio."""
        return await asyncio.to_thread(self.ask, user, query, history=history)

    def ask_stream(self, user: str, query: str, *, history: bool = True) -> Iterator[str]:
        """Yields the answer of `ask` in parts (`on_text`) while the model writes it."""
        texts: SimpleQueue[str | None] = SimpleQueue()
        with ThreadPoolExecutor(1) as thread:
            reply = thread.submit(self.ask, user, query, history=history, on_text=texts.put)
            reply.add_done_callback(lambda _: texts.put(None))
            yield from iter(texts.get, None)
            reply.result()

    def search(self, user: str, text: str, k: int | None = None) -> list[Candidate]:
        """The documents that a user's question would find, best first; at most `k`, if that is given.

        The run's options, such as retrieve.k, limit the number too. Raises UserError as `ask` does.
        """
        if k is not None and (isinstance(k, bool) or not isinstance(k, int) or k < 1):
            raise UserError(f"k is {brief(k)}, want a whole number from 1 on, or None")
        return self._gathered(self._question(user, text, answered=False)).documents[:k]

    def documents(self, user: str) -> list[Document]:
        """All documents of a user, in the order in which they were added; [] for an unknown user."""
        check_filled(user, "user")
        self.check()
        with self._lock:
            name = self._known(user)
            with self.store.reading():
                rows = self.store.history(name) if name else []
                return self.store.wholes(np.unique(self.store.firsts[rows]))

    def users(self) -> list[str]:
        """The names of all users of the data and of those who were added."""
        with self._lock:
            self._widen()
            return [name for name in self.store.users if not name.startswith(FORGOTTEN)]

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """The vectors of texts by the run's encoder, float32 [n d]."""
        for text in texts:
            check_filled(text, "the text")
        with self._lock:
            return self._parts["claim_encoder"].encode([*texts])

    def _question(self, user: str, text: str, **options: Any) -> _Question:
        check_filled(user, "user")
        check_filled(text, "query")
        self.store.named(user)  # a name without a visible character is an error
        return _Question(user, text, **options)

    def _replies(self, questions: Sequence[_Question]) -> list[Reply | UserError]:
        """What `ask` and `search` return, for several questions together."""
        with self._lock:
            self.check()
            known = {user: self._known(user) for user in {question.user for question in questions}}
            nobody = [Neighbour("")] if self.store.has_shared else []
            # Asked now: after everything that is dated.
            examples = {
                question: Example("", known[question.user], question.text, question.text, None, time=math.inf)
                if question.history
                else Example("", "", question.text, question.text, None, time=math.inf)
                for question in questions
            }
            of_users = [q for q, example in examples.items() if example.user_id]
            of_nobody = [q for q, e in examples.items() if q.history and nobody and not e.user_id]
            rankings: dict[_Question, Ranking] = {}
            for asked, users in ((of_users, None), (of_nobody, [nobody] * len(of_nobody))):
                found = self._ranked([examples[q] for q in asked], users)
                rankings |= zip(asked, found, strict=True)
            for question, ranking in rankings.items():
                rankings[question] = self._rated(known[question.user], question.text, ranking)
            asked = [q for q in examples if q.answered]
            shown = [rankings.get(q, []) for q in asked]
            written = self._answered([examples[q] for q in asked], shown, parts=[q.parts for q in asked])
            answers = dict(zip(asked, written, strict=True))
            notes = {user: "" if name else _UNKNOWN[bool(nobody)] for user, name in known.items()}
            return [
                self._reply(rankings.get(q, []), answers.get(q), notes[q.user] if q.history else "")
                for q in questions
            ]

    def _reply(self, ranking: Ranking, answer: Answer | None, note: str) -> Reply | UserError:
        if answer is None:
            return Reply("", ranking, note=note)
        text = parse_answer(self.answer_format, answer.text)
        if text:
            shown, profile = ranking[: answer.prompt.documents], answer.prompt.profile
            return Reply(text, shown, profile, note, answer.prompt_tokens)
        what = "ends inside its thinking" if after_thinking(answer.text) is None else "has no text"
        return UserError(
            f"the model's answer {what}; raise generate.max_new_tokens in the run's config, turn the "
            "model's thinking off, or leave out stop strings, and run again"
        )

    def _known(self, user: str) -> str:
        """A user's name as it is stored; "" for one who is not known."""
        name = self.store.named(user)
        if name not in self.store.columns.codes:
            self._widen()
        return name if name in self.store.columns.codes else ""

    def _widen(self) -> None:
        """Takes in the users of the data that a run with a limit has not read, where that is possible."""
        whole = None if self._living is None or self.store.living else self._living.whole
        if whole is not None and self._parts is not whole:
            self._parts = whole
            self._bound.clear()

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
        return self._ranked(check_examples(examples), users)

    def _ranked(self, examples: Examples, users: Searched | None) -> list[Ranking]:
        if not examples:
            return []
        with self._lock:
            users = self.neighbours(examples) if users is None else users
            # Of one state, whatever is written to the store meanwhile.
            searched = [[neighbour.user_id for neighbour in of_example] for of_example in users]
            with self._noted(examples, searched), self.store.reading():
                rankings = rank(self.pipeline, examples, self._collaboration or "none", users)
                self._check_rows(examples, rankings)
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
        return self._answered(check_examples(examples), rankings, written, on_batch)

    def _answered(
        self,
        examples: Examples,
        rankings: Iterable[Ranking] | None,
        written: Sequence[Written] | None = None,
        on_batch: OnBatch | None = None,
        parts: Sequence[Parts | None] = (),
    ) -> list[Answer]:
        if not examples:
            return []
        write, on_text = _told(self._writer(written), parts)
        with self._lock, listening(on_text), naming(example.id for example in examples):
            if self._generate is None:
                raise UserError("generate.method none answers nothing; set it to ipa")
            shown = self._shown(examples, rankings)
            with self._noted(examples, _owners(shown)):
                return self._generate(examples, shown, write, on_batch=on_batch)

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

        told = [prompts[i].profile != "" for i, _ in known]
        with naming(examples[i].id for i, _ in known), reads.in_order(told):
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
            self._check_rows(examples, rankings)

    def _check_rows(self, examples: Examples, rankings: Sequence[Ranking]) -> None:
        """Raises RuntimeError if a candidate's row in the store holds another document, or if a source of a
        candidate with a text of its own is no document that the question may see of the text's owner."""
        for example, ranking in zip(examples, rankings, strict=True):
            self._check_sources(example, [c for c in ranking if c.row == NO_ROW])
        candidates = [candidate for ranking in rankings for candidate in ranking]
        rows = self.store.rows
        given = sorted({c.row for c in candidates if 0 <= c.row < rows})
        there = dict(zip(given, self.store.documents(given), strict=True))
        for candidate in candidates:
            document, at = candidate.document, there.get(candidate.row)
            if at != document and candidate.row != NO_ROW:
                raise RuntimeError(
                    f"document {document.id} of user {document.user_id} is given as row {candidate.row}, "
                    "where another stands; a candidate's row must be its own, and nothing was written"
                )

    def _check_sources(self, example: Example, own: Sequence[Candidate]) -> None:
        for user in {candidate.document.user_id for candidate in own}:
            seen = {document.whole for document in self.store.documents(self.store.visible(example, user))}
            for candidate in own:
                if candidate.document.user_id != user or (candidate.sources and seen >= {*candidate.sources}):
                    continue
                foreign = sorted({*candidate.sources} - seen)
                raise RuntimeError(
                    f"example {example.id}: the text {candidate.document.id} of user {user} has the sources "
                    f"{foreign or 'none'}, want documents of this user that the question may see; nothing "
                    "was written"
                )


def _told(write: PromptWriter, parts: Sequence[Parts | None]) -> tuple[PromptWriter, OnText | None]:
    """Writes prompts, one for each of `parts`, and passes their answers on to these."""
    if not any(parts):
        return write, None
    of_prompts: dict[str, list[Parts]] = {}

    def noted(examples: Examples, rankings: Sequence[Ranking]) -> list[Written]:
        prompts = write(examples, rankings)
        for prompt, one in zip(prompts, parts, strict=True):
            if one is not None:
                of_prompts.setdefault(json.dumps(prompt.messages), []).append(one)
        return prompts

    def on_text(prompt: Prompt, text: str) -> None:
        for one in of_prompts.get(json.dumps(prompt), ()):
            one.grow(text)

    return noted, on_text


def _owners(rankings: Iterable[Ranking]) -> Iterator[list[str]]:
    """The users whose documents stand in each ranking."""
    return ([candidate.document.user_id for candidate in ranking] for ranking in rankings)
