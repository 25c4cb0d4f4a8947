"""Labels of retrieved documents: which hold the answer (LUF section 2.1), and the controls beside these.

A label is a grade: 1 for a document that holds the answer (D+), 0 for an irrelevant one (D-), between them a
related one (D^r). Only documents that were retrieved are labelled; of all others nothing is known.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pbr_jax.base.draws import generator
from pbr_jax.base.types import Candidate, Document, Example
from pbr_jax.corpus.store import Store
from pbr_jax.eval.answer_recall import Finder, accepted, body
from pbr_jax.graph import Node, Value, builds_nodes
from pbr_jax.llm import LLM, Prompt, Score, naming, usage
from pbr_jax.options import Labels
from pbr_jax.pipeline import Examples, Ranking
from pbr_jax.stages import language_model
from pbr_jax.stages.run import Run
from pbr_jax.tasks import Wording
from pbr_jax.text.judging import NO, YES, Writer


class Labelled(NamedTuple):
    """The labels of one question: rows of the store, best first, and their grades.

    `calls` and `tokens` (read and written) are what a language model spent on them.
    """

    rows: list[int]
    grades: list[float]
    calls: int = 0
    tokens: int = 0


class Judge(NamedTuple):
    """The language model that labels, and its prompts."""

    llm: LLM
    write: Writer


@builds_nodes
def judge(run: Run, options: Labels) -> dict[str, Node]:
    """The node `judge` of a `Judge`, where a language model gives the labels."""
    if not options.asks:
        return {}
    run.config.llm.check_scoring(f"{options.section}.kind {options.kind}")
    needs = {"llm": language_model.frozen(run), "wording": language_model.wording(run)}
    return {"judge": Value("judge", (options.max_tokens,), needs, _judge)}


def _judge(max_tokens: int, *, llm: LLM, wording: Wording) -> Judge:
    # A word has at least a token, so the limit of words is idle.
    return Judge(llm, Writer(wording, max_tokens, max_tokens, llm.count, llm.truncate))


def label(
    options: Labels,
    examples: Examples,
    rankings: Sequence[Ranking],
    *,
    seed: int,
    judge: Judge | None = None,
    collaboration: str = "signals",
) -> list[Labelled]:
    """The labels of each question's documents, in the order of its ranking.

    Shared documents, which nobody owns, are labelled, and where `collaboration` is text the asking user's
    own. What is drawn depends on the seed and the question, with `shuffled` also on the questions beside it.
    `judge` gives the labels of a language model, whose answers are cached one by one: what an interrupted
    call has paid for is not asked again.
    """
    owners = [{"", example.user_id} if collaboration == "text" else {""} for example in examples]
    shown = [
        [candidate for candidate in ranking if candidate.document.user_id in allowed][: options.depth]
        for allowed, ranking in zip(owners, rankings, strict=True)
    ]
    if options.asks:
        assert judge is not None, "labels of a language model need the judge"
        labelled = _asked(options, examples, [ranking[: options.judged] for ranking in shown], judge)
    else:
        graded = _given(options, examples, shown, seed)
        labelled = [Labelled([c.row for c in ranking], grades) for ranking, grades in zip(shown, graded)]
    return [
        one._replace(grades=_noisy(one, options, example, seed))
        for example, one in zip(examples, labelled, strict=True)
    ]


def _noisy(labelled: Labelled, options: Labels, example: Example, seed: int) -> list[float]:
    """Each D+ stays one with probability `keep`, and passes its label to another document with `wrong`.

    What stays at a smaller `keep` stays at a larger one, and what is wrong at a smaller `wrong` is wrong at a
    larger one. It is drawn for question and document, at whichever rank that stands.
    """
    grades = [float(grade) for grade in labelled.grades]
    others = [place for place, grade in enumerate(grades) if grade != 1]
    for place, row in enumerate(labelled.rows):
        if labelled.grades[place] != 1:
            continue
        if _draw(seed, f"keep {row}", example).random() >= options.keep:
            grades[place] = 0.0
        elif options.wrong and others:
            draw = _draw(seed, f"wrong {row}", example)
            if draw.random() < options.wrong:
                grades[place], grades[others[draw.integers(len(others))]] = 0.0, 1.0
    return grades


def _draw(seed: int, what: str, *examples: Example) -> np.random.Generator:
    return generator(seed, what, *(name for e in examples for name in (e.user_id, e.id)))


def _asked(options: Labels, examples: Examples, rankings: Sequence[Ranking], judge: Judge) -> list[Labelled]:
    """Labels by what the language model finds probable; nothing is decoded."""

    def requests(query: str, document: Document) -> list[tuple[Prompt, str]]:
        if options.kind == "yes_no":
            prompt = judge.write.is_relevant(query, document)
            return [(prompt, YES), (prompt, NO)]
        return [judge.write.asks_for(query, document)]

    asked = [
        [requests(example.query, candidate.document) for candidate in ranking]
        for example, ranking in zip(examples, rankings, strict=True)
    ]
    flat = [(e.id, *pair) for e, documents in zip(examples, asked) for pairs in documents for pair in pairs]
    with usage.apart("label"), naming(id for id, _, _ in flat):
        scores = iter(judge.llm.score([prompt for _, prompt, _ in flat], [target for *_, target in flat]))
    labelled = []
    for ranking, documents in zip(rankings, asked):
        own = [[next(scores) for _ in pairs] for pairs in documents]
        read = sum(judge.llm.num_tokens(pairs[0][0]) for pairs in documents)
        written = sum(score.tokens for each in own for score in each)
        rows = [candidate.row for candidate in ranking]
        labelled.append(Labelled(rows, _grades(options, own), len(rows), read + written))
    return labelled


def _grades(options: Labels, scores: Sequence[Sequence[Score]]) -> list[float]:
    """The grades of one question's documents from their scores.

    `query_likelihood` takes p(document | question) among the documents judged, by Bayes with an even prior.
    """
    from scipy.special import expit, softmax

    if options.kind == "yes_no":
        found = expit([yes.total - no.total for yes, no in scores])
        positive = found >= options.positive
    else:
        means = np.array([score.mean for (score,) in scores])
        found = softmax([score.total for (score,) in scores]) if scores else np.zeros(0)
        positive = means >= means.max(initial=-np.inf) - options.margin
    return np.where(positive, 1.0, np.where(found < options.negative, 0.0, found)).tolist()


def _given(options: Labels, examples: Examples, rankings: Sequence[Ranking], seed: int) -> list[list[float]]:
    """The grades of kinds that ask no language model."""
    if options.kind == "shuffled":
        return _shuffled(examples, rankings, seed)
    finder = Finder()

    def holds(example: Example, candidate: Candidate) -> bool:
        if options.kind == "gold":
            return is_relevant(example, candidate.document)
        return finder.rank(accepted(example), [(candidate.row, body(candidate.document))]) == 1

    graded = []
    for example, ranking in zip(examples, rankings, strict=True):
        if options.kind in ("gold", "answer"):
            graded.append([float(holds(example, candidate)) for candidate in ranking])
            continue
        best = 0
        if options.kind == "random_k":
            best = _draw(seed, "random_k", example).integers(max(1, min(options.among, len(ranking))))
        graded.append([float(place == best) for place in range(len(ranking))])
    return graded


def _shuffled(examples: Examples, rankings: Sequence[Ranking], seed: int) -> list[list[float]]:
    """Each question takes the gold grades of another one, rank by rank.

    So the number of D+ and the ranks where they stand are those of gold, and what they have to do with the
    question is lost. A question without another one beside it has no D+.
    """
    order = _draw(seed, "shuffled", *examples).permutation(len(examples))
    graded: list[list[float]] = [[] for _ in examples]
    for to, source in zip(order, np.roll(order, 1)):  # one cycle: none keeps its own
        gold = [] if to == source else [is_relevant(examples[source], c.document) for c in rankings[source]]
        lacking = [0.0] * len(rankings[to])
        graded[to] = [*map(float, gold), *lacking[len(gold) :]][: len(lacking)]
    return graded


def is_relevant(example: Example, document: Document) -> bool:
    """Whether the data say that a document, or the one that it is a passage of, is relevant to a question.

    They name it by its id, which another user's document may have too: that one is not meant.
    """
    named = any(document.whole in group for group in example.relevant)
    return named and document.user_id in ("", example.user_id)


def accuracy(labelled: Sequence[Labelled], examples: Examples, store: Store) -> dict[str, float]:
    """How right labels are, by the relevant documents of those questions that have some.

    `label_precision`: the share of D+ that are relevant. `label_recall`: the share of the relevant documents
    among those labelled that are D+. `label_auc`: the probability that a relevant document has a higher grade
    than another one of its question, where ties count half; the mean over questions. What is undefined is
    left out. `label_questions`: how many have relevant documents. Of all questions `label_positive`, the
    share that has a D+, and `label_calls` and `label_tokens`, what a language model spent.
    """
    grades, right, areas, known = [], [], [], 0
    for one, example in zip(labelled, examples, strict=True):
        if not any(example.relevant):
            continue
        known += 1
        grades.append(np.array(one.grades))
        right.append(
            np.array([is_relevant(example, document) for document in store.documents(one.rows)], bool)
        )
        if 0 < right[-1].sum() < len(right[-1]):
            areas.append(_area(grades[-1], right[-1]))
    positive = np.concatenate([*grades, np.zeros(0)]) == 1
    relevant = np.concatenate([*right, np.zeros(0, bool)])
    shares: dict[str, Any] = {
        "label_precision": relevant[positive],
        "label_recall": positive[relevant],
        "label_auc": areas,
        "label_positive": [1.0 in one.grades for one in labelled],
    }
    return {
        **{name: float(np.mean(values)) for name, values in shares.items() if len(values)},
        "label_questions": float(known),
        "label_calls": float(sum(one.calls for one in labelled)),
        "label_tokens": float(sum(one.tokens for one in labelled)),
    }


def _area(grades: np.ndarray, right: np.ndarray) -> float:
    """The area under the ROC curve of some grades."""
    apart = grades[right][:, None] - grades[~right]
    return float(np.mean((apart > 0) + 0.5 * (apart == 0)))
