"""Selections in which the frozen language model judges the candidates.

- `query_likelihood`: Sachan et al., "Improving Passage Retrieval with Zero-Shot Question Generation" (UPR),
  2022, https://arxiv.org/abs/2204.07496, Eq. 3.
- `pointwise`: Nogueira et al., "Document Ranking with a Pretrained Sequence-to-Sequence Model" (MonoT5),
  2020, https://arxiv.org/abs/2003.06713, with a frozen model. The answer is scored, so it is graded.
- `rankgpt`: Sun et al., "Is ChatGPT Good at Search? Investigating Large Language Models as Re-Ranking
  Agents", 2023, https://arxiv.org/abs/2304.09542, section 3.2: a window moves over the ranking from its end,
  so that what is good in one window comes into the next.
- `icr`: Chen et al., "Attention in Large Language Models Yields Efficient Zero-Shot Re-Rankers" (in-context
  re-ranking), 2024, https://arxiv.org/abs/2410.02642: the attention of the query's tokens to each token of
  each candidate, summed over all layers and heads, less that of a query that asks for nothing. Tokens of
  which far less is left than of the others of their candidate do not count.
- `multi_level`: LUF, Appendix A.2. One document is judged by the probability of yes (the structure of prompt
  A.1.1), several by the numbers that the model writes (A.1.2). The first documents of a ranking are the
  likeliest to be relevant. They are judged alone, which is most precise, and the others together.
"""

import abc
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from pbr_jax.base.types import Example, UserError
from pbr_jax.corpus.store import Store
from pbr_jax.graph import Node, builds_nodes
from pbr_jax.llm import LLM, Prompt, Sampling, naming, usage
from pbr_jax.llm.protocol import TokenLevel, Watch
from pbr_jax.methods.select.by_score import Batch, ByScore
from pbr_jax.models.thinking import after_thinking
from pbr_jax.options import LLM as Options
from pbr_jax.options import SelectLLM
from pbr_jax.pipeline import Examples, Query, Ranking, Tally
from pbr_jax.stages import language_model
from pbr_jax.stages.labels import is_relevant
from pbr_jax.stages.run import Run
from pbr_jax.tasks import Wording
from pbr_jax.text.judging import NO, NONE, YES, Writer


@dataclass(frozen=True, kw_only=True)
class Judging(ByScore):
    """The frozen language model judges the candidates: it is not the generator that was tuned to the task."""

    by_text: ClassVar[bool] = True
    scoring: ClassVar[bool] = False
    """Whether the model must be able to compute the likelihood of a given answer."""

    # language model that judges the candidates. none: the one that answers, without its tuning
    llm: SelectLLM | None = None
    words: int = 300  # maximum number of words of each candidate
    max_tokens: int = 2048  # token budget of the request and all candidates in one prompt

    def check(self) -> None:
        super().check()
        self.at_least("words", 1)
        self.at_least("max_tokens", 64)

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        if self.scoring:
            self.model(run).check_scoring(f"select.method {self.method}")
        return {"llm": language_model.frozen(run, self.llm), "wording": language_model.wording(run)}

    @builds_nodes
    def model(self, run: Run) -> Options:
        """The options of the model that judges."""
        return self.llm or run.config.llm

    def scores(self, batch: Batch, tally: Tally, *, llm: Any, wording: Wording) -> list[np.ndarray]:
        write = Writer(wording, self.words, self.max_tokens, llm.count, llm.truncate)
        return self.judged(batch, Judge(llm, write, tally, self.llm))

    @abc.abstractmethod
    def judged(self, batch: Batch, judge: "Judge") -> list[np.ndarray]:
        """The scores of `ByScore.scores`, by this judge."""


class Judge(NamedTuple):
    """The language model, what it is shown, and what that costs."""

    llm: Any
    write: Writer
    tally: Tally
    other: SelectLLM | None = None  # the options of the model, where it is not the run's

    @contextmanager
    def asking(self, ids: Iterable[str]) -> Iterator[None]:
        """Around what is asked of the model for these questions, in their order: seconds, costs, errors."""
        apart = nullcontext() if self.other is None else usage.apart("select")
        with self.tally.timed("select_llm"), apart, language_model.blaming(self.other), naming(ids):
            yield

    def charge(self, prompts: Sequence[Prompt], written: int = 0) -> None:
        """Counts calls, and the tokens that were read and written."""
        model: LLM = self.llm
        self.tally.counts["select_calls"] += len(prompts)
        self.tally.counts["select_prompt_tokens"] += sum(map(model.num_tokens, prompts))
        self.tally.counts["select_answer_tokens"] += written

    def odds(self, ids: Sequence[str], prompts: Sequence[Prompt]) -> np.ndarray:
        """log p(yes) - log p(no) after each prompt, in nats; `ids` are those of the questions."""
        with self.asking(owner for owner in ids for _ in (YES, NO)):
            scores = self.llm.score([p for p in prompts for _ in (YES, NO)], [YES, NO] * len(prompts))
        self.charge(prompts, sum(score.tokens for score in scores))
        return np.array([yes.total - no.total for yes, no in zip(scores[::2], scores[1::2], strict=True)])

    def texts(self, ids: Iterable[str], prompts: Sequence[Prompt], max_tokens: int) -> list[str]:
        """What the model writes to each prompt; `ids` are those of the questions."""
        with self.asking(ids):
            texts = self.llm.generate(prompts, Sampling(max_tokens))
        self.charge(prompts, sum(map(self.llm.count, texts)))
        return texts

    def note(self, kind: str, faults: Iterable[str]) -> None:
        """Counts an answer of this kind, and what was wrong with it."""
        self.tally.counts[f"select_{kind}"] += 1
        self.tally.counts.update({f"select_{kind}_{fault}": 1 for fault in faults})


def text_of(query: Query) -> str:
    """What is searched for, as one text; what an expansion repeated stands once."""
    return " ".join(dict.fromkeys(query.texts)).strip()


def _each(batch: Batch) -> Iterator[tuple[Example, str, Any]]:
    """Each candidate with its question and what is searched for."""
    for example, query, ranking in zip(*batch, strict=True):
        for candidate in ranking:
            yield example, text_of(query), candidate


def _split(values: Sequence[float] | np.ndarray, rankings: Sequence[Ranking]) -> list[np.ndarray]:
    """The values of all candidates, question by question."""
    rest = iter(values)
    return [np.array([next(rest) for _ in ranking]) for ranking in rankings]


@dataclass(frozen=True, kw_only=True)
class QueryLikelihood(Judging):
    """Candidates by log p(query | candidate), in nats per token."""

    scoring: ClassVar[bool] = True
    method: Literal["query_likelihood"] = "query_likelihood"

    def judged(self, batch: Batch, judge: Judge) -> list[np.ndarray]:
        pairs = [judge.write.asks_for(query, candidate.document) for _, query, candidate in _each(batch)]
        with judge.asking(example.id for example, _, _ in _each(batch)):
            scores = judge.llm.score([prompt for prompt, _ in pairs], [query for _, query in pairs])
        judge.charge([prompt for prompt, _ in pairs], sum(score.tokens for score in scores))
        return _split([score.mean for score in scores], batch.rankings)


@dataclass(frozen=True, kw_only=True)
class Pointwise(Judging):
    """Candidates by log p(yes) - log p(no), in nats, when the language model is asked whether each is
    relevant to the query."""

    scoring: ClassVar[bool] = True
    method: Literal["pointwise"] = "pointwise"

    def judged(self, batch: Batch, judge: Judge) -> list[np.ndarray]:
        prompts = [judge.write.is_relevant(query, candidate.document) for _, query, candidate in _each(batch)]
        ids = [example.id for example, _, _ in _each(batch)]
        return _split(judge.odds(ids, prompts), batch.rankings)


# -- orders that the model writes ------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RankGPT(Judging):
    """The language model writes the order of the candidates, window by window. Counts (`select_orders_…`)
    report invalid answers."""

    best_first: ClassVar[bool] = True

    method: Literal["rankgpt"] = "rankgpt"
    window: int = 20  # number of candidates in one prompt
    step: int = 10  # number of candidates by which the window moves

    def check(self) -> None:
        super().check()
        self.at_least("window", 2)
        self.at_least("step", 1)
        if self.step > self.window:
            raise UserError(
                f"select.step is {self.step} and select.window {self.window}; windows would leave candidates "
                "out: lower select.step"
            )

    def judged(self, batch: Batch, judge: Judge) -> list[np.ndarray]:
        orders = [list(range(len(ranking))) for ranking in batch.rankings]
        windows = [_windows(len(ranking), self.window, self.step) for ranking in batch.rankings]
        for turn in range(max(map(len, windows), default=0)):
            live = [i for i, own in enumerate(windows) if turn < len(own)]
            spans = [slice(*windows[i][turn]) for i in live]
            prompts = [
                judge.write.ranks(
                    text_of(batch.queries[i]), [batch.rankings[i][j].document for j in orders[i][span]]
                )
                for i, span in zip(live, spans)
            ]
            # One number of an order takes at most 8 tokens, with what stands before it.
            texts = judge.texts((batch.examples[i].id for i in live), prompts, 8 * self.window)
            for i, span, text in zip(live, spans, texts):
                part = orders[i][span]
                order, faults = permutation(text, len(part))
                judge.note("orders", faults)
                orders[i][span] = [part[j] for j in order]
        return [-np.argsort(order).astype(np.float64) for order in orders]


def _windows(count: int, window: int, step: int) -> list[tuple[int, int]]:
    """Where each window begins and ends, the last candidates first; one candidate needs none."""
    if count < 2:
        return []
    windows, end = [(max(0, count - window), count)], count
    while windows[-1][0] > 0:
        end = max(end - step, min(window, 2))  # one candidate alone has no order
        windows.append((max(0, end - window), end))
    return windows


def permutation(text: str, count: int) -> tuple[list[int], list[str]]:
    """The order that an answer gives to `count` candidates, numbered from 0, and what was wrong with it.

    It is read behind the model's thinking. Every candidate stands in it once: those that the answer leaves
    out follow in their order. Faults: `unreadable` (it names none), `out_of_range`, `repeated`, `missing`.
    """
    text = after_thinking(text) or ""
    # Numbers in brackets are meant as such; "20 records" in prose is not.
    lists = re.findall(r"\[((?:\s*\d{1,9}\s*,?)+)\]", text)
    marked = [int(digits) for inside in lists for digits in re.findall(r"\d+", inside)]
    named = [number - 1 for number in marked or _numbers(text)]
    inside = [number for number in named if 0 <= number < count]
    order = list(dict.fromkeys(inside))
    wrong = {
        "unreadable": not order,
        "missing": 0 < len(order) < count,
        "out_of_range": len(inside) < len(named),
        "repeated": max(Counter(inside).values(), default=0) > 1,
    }
    faults = [fault for fault, present in wrong.items() if present]
    return order + [number for number in range(count) if number not in set(order)], faults


def _numbers(text: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"(?<!\d)\d{1,9}(?!\d)", text)]


# -- attention -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ICR(Judging):
    """In-context re-ranking. All candidates are in one prompt, and attention to their tokens gives their
    scores."""

    method: Literal["icr"] = "icr"
    # tokens whose attention counts. query: those of the query; rest: all tokens after the candidates, nearly
    # as in the released code
    asking: Literal["query", "rest"] = "query"
    # position of the retriever's best candidate in the prompt. last: as in the released code
    best: Literal["last", "first"] = "last"
    calibrated: bool = True  # whether the attention of a content-free query is subtracted

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        language_model.check_tokens(self.model(run), "select.method icr")
        return super().needs(run)

    def judged(self, batch: Batch, judge: Judge) -> list[np.ndarray]:
        llm: TokenLevel = judge.llm
        turned = [ranking[::-1] if self.best == "last" else ranking for ranking in batch.rankings]
        texts = [text_of(query) for query in batch.queries]
        # Where nothing is asked nothing attends, and the retriever's order stays.
        many = [i for i, ranking in enumerate(turned) if len(ranking) > 1 and texts[i]]
        blanks = (False, True) if self.calibrated else (False,)
        watches = [self._watch(judge, texts[i], turned[i], blank) for i in many for blank in blanks]
        with judge.asking(batch.examples[i].id for i in many for _ in blanks):
            attention = iter(llm.attention(watches))
        judge.charge([watch.messages for watch in watches])
        scores = [np.zeros(len(ranking)) for ranking in turned]
        for i in many:
            scores[i] = calibrated(*(next(attention) for _ in blanks))
        return [values[::-1] if self.best == "last" else values for values in scores]

    def _watch(self, judge: Judge, query: str, ranking: Ranking, blank: bool) -> Watch:
        documents = [candidate.document for candidate in ranking]
        messages, spans, where = judge.write.looked_at(query, documents, blank)
        if self.asking == "rest":
            where = (spans[-1][1], where[1])
        return Watch(messages, tuple(spans), where, self.asking == "rest")


def calibrated(
    asked: Sequence[Sequence[float]], nothing: Sequence[Sequence[float]] | None = None
) -> np.ndarray:
    """The score of each candidate from the attention to its tokens, with the query and with none.

    Of the differences those below their mean less two standard deviations are left out.
    """
    if nothing is None:
        return np.array([sum(row) for row in asked])
    scores = []
    for row, bias in zip(asked, nothing, strict=True):
        left = np.subtract(row, bias)
        if len(left) > 1:
            left = left[left >= left.mean() - 2 * left.std(ddof=1)]
        scores.append(left.sum())
    return np.array(scores)


# -- steps that grow -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class MultiLevel(Judging):
    """The relevant candidates of the first step that has some, then all others in the retriever's order.

    The prompt contains the first `k`. Counts (`select_lists_…`) report the answers that could not be read.
    """

    best_first: ClassVar[bool] = True

    method: Literal["multi_level"] = "multi_level"
    k: int = 5  # number of documents in the prompt. The paper reports R@5
    # number of documents judged in each step. Documents after these are not judged. In Table 7, "single" is
    # 40 times 1 and "every 20" is 20 20
    steps: tuple[int, ...] = (1, 1, 1, 1, 1, 5, 10, 20)
    # llm: the language model judges; oracle: the relevant documents in the data decide. With oracle, prompts
    # are counted but no model runs
    judge: Literal["llm", "oracle"] = "llm"
    # token budget of the request and all candidates in one prompt. The default fits 20 whole paragraphs
    max_tokens: int = 6144

    @property
    def ceiling(self) -> bool:
        return self.judge == "oracle"

    def check(self) -> None:
        super().check()
        if not self.steps or min(self.steps) < 1:
            raise UserError(f"select.steps is {list(self.steps)}, want one number or more, each at least 1")

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        if self.judge == "llm":
            self.model(run).check_scoring("select.method multi_level")
        return super().needs(run)

    @builds_nodes
    def check_run(self, run: Run) -> None:
        store: Store = run.data.value
        if self.judge == "oracle":
            _check_relevant(list(store.examples()))

    def judged(self, batch: Batch, judge: Judge) -> list[np.ndarray]:
        if self.judge == "oracle":
            _check_relevant(batch.examples)
        scores = [np.zeros(len(ranking)) for ranking in batch.rankings]
        start = 0
        for size in self.steps:
            live = [i for i, r in enumerate(batch.rankings) if start < len(r) and not scores[i].any()]
            parts = [
                _Part(batch.examples[i], text_of(batch.queries[i]), batch.rankings[i][start : start + size])
                for i in live
            ]
            judge.tally.counts["select_judged"] += sum(len(part.ranking) for part in parts)
            alone = [part for part in parts if len(part.ranking) == 1]
            together = [part for part in parts if len(part.ranking) > 1]
            of_alone = iter(self._alone(judge, alone) if alone else ())
            of_many = iter(self._together(judge, together, size) if together else ())
            for i, part in zip(live, parts):
                scores[i][start : start + size] = next(of_alone if len(part.ranking) == 1 else of_many)
            start += size
        return scores

    def _alone(self, judge: Judge, parts: "Sequence[_Part]") -> list[list[bool]]:
        prompts = [judge.write.is_relevant(part.query, part.ranking[0].document) for part in parts]
        if self.judge == "oracle":
            judge.charge(prompts, len(prompts) * (judge.llm.count(YES) + judge.llm.count(NO)))
            return [part.relevant for part in parts]
        return [[bool(odds >= 0)] for odds in judge.odds([part.example.id for part in parts], prompts)]

    def _together(self, judge: Judge, parts: "Sequence[_Part]", size: int) -> list[list[bool]]:
        prompts = [judge.write.which(part.query, [c.document for c in part.ranking]) for part in parts]
        if self.judge == "oracle":
            texts = [
                ", ".join(str(n) for n, right in enumerate(part.relevant, 1) if right) or NONE
                for part in parts
            ]
            judge.charge(prompts, sum(map(judge.llm.count, texts)))
        else:  # one number of an answer takes at most 4 tokens, with what stands before it
            texts = judge.texts((part.example.id for part in parts), prompts, 4 * size)
        judged = []
        for part, text in zip(parts, texts, strict=True):
            numbers, faults = numbered(text, len(part.ranking))
            judge.note("lists", faults)
            judged.append([number in numbers for number in range(1, len(part.ranking) + 1)])
        return judged


class _Part(NamedTuple):
    """Candidates of a question that are judged together."""

    example: Example
    query: str
    ranking: Ranking

    @property
    def relevant(self) -> list[bool]:
        return [is_relevant(self.example, candidate.document) for candidate in self.ranking]


def _check_relevant(examples: Examples) -> None:
    if examples and not any(example.relevant for example in examples):
        raise UserError(
            f"select.judge oracle reads the relevant documents, and question {examples[0].id!r} has none, as "
            "have those beside it; take data that name them, or select.judge llm"
        )


def numbered(text: str, count: int) -> tuple[set[int], list[str]]:
    """The numbers, from 1 to `count`, that an answer names, and what was wrong with it.

    It is read behind the model's thinking, and one that begins with no or none names nothing. Faults:
    `unreadable` (it names none and does not say so), `out_of_range`.
    """
    text = after_thinking(text) or ""
    if re.match(rf"\W*({NO}|{NONE})\b", text, flags=re.IGNORECASE):
        return set(), []
    named = set(_numbers(text))
    inside = {number for number in named if 1 <= number <= count}
    return inside, [*["unreadable"] * (not inside), *["out_of_range"] * (inside != named)]
