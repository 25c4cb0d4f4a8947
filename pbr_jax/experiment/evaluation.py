"""From rankings and answers to results.json and predictions.jsonl: the evaluation of a run."""

import itertools
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from pbr_jax.base.types import NO_ROW, Candidate, Example
from pbr_jax.corpus.store import Store
from pbr_jax.eval.answer_recall import Finder, accepted, body
from pbr_jax.eval.evaluate import (
    Evaluation,
    evaluate,
    judged,
    label_distribution,
    one_answer_note,
    place_distribution,
)
from pbr_jax.eval.overlap import copied, copies
from pbr_jax.models.thinking import after_thinking
from pbr_jax.options import Eval
from pbr_jax.stream.arrival import Arrivals, subsets
from pbr_jax.tasks import Task
from pbr_jax.text.answers import parse_answer


class Made(NamedTuple):
    """What a run made of the examples, in their order; None: no such thing.

    `answers` are read by `stages.answers.Answers`, `scores` by `stages.answers.Likelihoods`, and `judged`
    by `stages.judged.Judgements`.
    """

    rankings: Iterable[Sequence[Candidate]]
    answers: Iterable[Mapping[str, Any]] | None = None
    scores: Iterable[Mapping[str, Any]] | None = None
    judged: Iterable[Mapping[str, Any]] | None = None


@dataclass(kw_only=True)
class Evaluated:
    """What results.json says of the questions, answers and metrics. Fields that are None are not in the file.

    `blocks`, `over`, `shift` and `learned` are of a stream, `judge` of answers that a model graded, and
    `without_near_targets` of the questions whose target no document of the user nearly holds.
    """

    n: int
    dropped: int
    metrics: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    by_category: dict[str, dict[str, float]]
    by_category_intervals: dict[str, dict[str, tuple[float, float]]]
    by_category_users: dict[str, int]
    clusters: str
    variants: dict[str, str]
    notes: list[str]
    answers: Mapping[str, float]
    counts: dict[str, Any]
    blocks: list[dict[str, Any]] | None = None
    over: dict[str, dict[str, Any]] | None = None
    shift: int | None = None
    copied: dict[str, Any] | None = None
    judge: dict[str, Any] | None = None
    without_near_targets: dict[str, Any] | None = None
    learned: dict[str, dict[str, float]] | None = None


def evaluated(
    task: Task,
    store: Store,
    made: Made,
    options: Eval,
    *,
    seed: int,
    learned: int = 0,
    arrivals: Arrivals | None = None,
) -> tuple[Evaluated, list[dict[str, Any]]]:
    """What results.json says of the metrics, and the lines of predictions.jsonl.

    `learned`: examples of a training split that does not stand in the store. `arrivals`: of a stream.
    """
    made = made._replace(scores=None if made.scores is None else list(made.scores))
    lost = Counter[str]()
    ranks: list[float] | None = [] if task.short_answers and store.has_shared else None
    records = list(_records(task, store, made, lost, ranks))
    places = place_distribution([record.pop("places") for record in records if "places" in record])
    examples, n = list(store.examples()), len(records)
    over = {} if arrivals is None else subsets(arrivals, examples, shared=store.has_shared)
    score = partial(
        evaluate,
        task,
        **_columns(made, examples, records),
        answer_ranks=ranks,
        blocks=None if arrivals is None else [block for block, _ in arrivals.places],
        subsets=over,
        resamples=options.resamples,
        confidence=options.confidence,
        seed=seed,
    )
    scored = [e.scored and "unanswered" not in r for e, r in zip(examples, records, strict=True)]
    evaluation = score(scored=scored)
    for record, metrics in zip(records, evaluation.per_example, strict=True):
        record["metrics"] = metrics
    given = [record for record in records if "unanswered" not in record]
    shares = label_distribution(task, _predictions(made, given) or []) or places
    shares_copied = [r["copied"] for r, one in zip(records, scored, strict=True) if one and "copied" in r]
    values = Evaluated(
        **{name: getattr(evaluation, name) for name in _EVALUATED},
        dropped=store.summary.examples - n,
        notes=[*evaluation.notes, *one_answer_note(shares, n), *_note_lost(lost, records)],
        answers=shares,
        counts={**_counts(store, examples, evaluation, learned), **lost, **_shown(records)},
        copied=copies(shares_copied),
    )
    if arrivals is not None:
        values.blocks, values.over, values.shift = evaluation.by_block, evaluation.over, arrivals.shift
        _tell_places(records, arrivals, over)
    if made.judged is not None:
        values.judge = _judged(examples, records, made.judged, options, seed, scored)
    if (near := store.near_targets).any():
        rest = score(scored=[one and not held for one, held in zip(scored, near, strict=True)])
        values.without_near_targets = {name: getattr(rest, name) for name in _OVERALL}
    return values, records


_NAMED = 20  # questions that a note lists
_OVERALL = ("n", "metrics", "intervals")  # fields of `Evaluation`
_EVALUATED = (*_OVERALL, *("by_category" + of for of in ("", "_intervals", "_users")), "clusters", "variants")


def _columns(made: Made, examples: Sequence[Example], records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What `evaluate` scores, by its arguments' names: a value of each question."""
    fields = {"ids": "id", "users": "user_id", "targets": "target", "categories": "category"}
    fields |= {"units": "unit", "alternatives": "alternatives", "relevant": "relevant", "options": "options"}
    return {
        **{name: [getattr(example, field) for example in examples] for name, field in fields.items()},
        "predictions": _predictions(made, records),
        "expected": [record["expected"] for record in records if "expected" in record] or None,
        "likelihoods": made.scores,
        "rankings": [ranked_ids(record["documents"], record["user_id"]) for record in records],
        "probabilities": [record.get("probabilities") for record in records],
    }


def _predictions(made: Made, records: Sequence[dict[str, Any]]) -> list[str] | None:
    return None if made.answers is None else [record["prediction"] for record in records]


def _tell_places(
    records: Sequence[dict[str, Any]], arrivals: Arrivals, over: Mapping[str, Sequence[bool]]
) -> None:
    """Adds to each record when its question arrived, and the parts of the stream that it belongs to."""
    for i, (record, (block, place)) in enumerate(zip(records, arrivals.places, strict=True)):
        parts = [name for name, members in over.items() if members[i]]
        record |= {"block": block, "place": place, "over": parts}


def _judged(
    examples: Sequence[Example],
    records: Sequence[dict[str, Any]],
    judgements: Iterable[Mapping[str, Any]],
    options: Eval,
    seed: int,
    scored: Sequence[bool],
) -> dict[str, Any]:
    """What the judge found, which each record gets too."""
    for record, one in zip(records, judgements, strict=True):
        record["judge_p"] = one["p"]
    found = [(e.unit or e.user_id, r["judge_p"]) for e, r, one in zip(examples, records, scored) if one]
    how = {"resamples": options.resamples, "confidence": options.confidence, "seed": seed}
    return judged([p for _, p in found], [cluster for cluster, _ in found], **how)


def _counts(
    store: Store, examples: Sequence[Example], evaluation: Evaluation, learned: int
) -> dict[str, Any]:
    summary = store.summary
    unreadable = {} if evaluation.unreadable is None else {"unreadable_answers": evaluation.unreadable}
    return {
        "examples": summary.examples,
        "unscored": sum(not example.scored for example in examples),
        "users": summary.users,
        "documents": summary.documents,
        "empty_profiles": summary.empty_profiles,
        "targets_in_history": summary.targets_in_history,
        "targets_in_other_histories": summary.targets_elsewhere,
        "near_targets": summary.near_targets,
        "training_examples": max(summary.training, learned),
        **unreadable,
        **evaluation.counts,
    }


def _shown(records: Sequence[Mapping[str, Any]]) -> Counter[str]:
    """Tokens and documents of all prompts; nothing where no model saw one."""
    totals = {name: sum(record[f"prompt_{name}"] for record in records) for name in ("tokens", "documents")}
    shown = Counter({f"shown_{name}": total for name, total in totals.items() if totals["tokens"]})
    profiles = sum(record.get("profile_tokens", 0) for record in records)
    if profiles:
        shown["shown_profile_tokens"] = profiles
    return shown


def _note_lost(lost: Mapping[str, int], records: Sequence[Mapping[str, Any]]) -> list[str]:
    """How many answers have no text, and which questions have no answer, and why."""
    notes, n = [], len(records)
    if count := lost["unfinished_thinking"]:
        notes.append(
            f"{count} of {n} answers end inside the model's thinking, so they have no text: raise "
            "generate.max_new_tokens, or turn the thinking off"
        )
    if names := [record["id"] for record in records if "unanswered" in record]:
        why = Counter(record["unanswered"] for record in records if "unanswered" in record)
        reasons = ", ".join(f"{reason} {count}" for reason, count in why.items())
        more = f" and {len(names) - _NAMED} more" * (len(names) > _NAMED)
        notes.append(
            f"{len(names)} of {n} questions have no answer that can be used ({reasons}), so they are not "
            f"scored and left out of comparisons: {', '.join(names[:_NAMED])}{more}; --llm.ask_again 1 asks "
            "anew"
        )
    return notes


def _records(
    task: Task, store: Store, made: Made, lost: Counter[str], ranks: list[float] | None
) -> Iterator[dict[str, Any]]:
    """A line of predictions.jsonl for every example, without its metrics; counts answers that are `lost`.

    The rank of the first document that holds an accepted answer is added to `ranks` (`Finder.rank`).
    The first `prompt_documents` of `documents` stood in the prompt. `near_target`: a document of the user's
    own history nearly holds the target, see `pbr_jax.corpus.store.Summary`. `history`: how many documents of
    their own the user had.
    """
    finder = Finder()
    for example, near, ranking, seen in zip(
        store.examples(), store.near_targets, made.rankings, _seen(made, store.summary.examples), strict=True
    ):
        prediction = parse_answer(task.answers, seen["text"])
        if after_thinking(seen["text"]) is None:
            lost["unfinished_thinking"] += 1
        if "unanswered" in seen and example.scored:
            lost["unanswered"] += 1
        answered = made.answers is not None and not task.labels and task.kind != "choice"
        if ranks is not None:
            ranks.append(finder.rank(accepted(example), map(_passage, ranking)))
        yield {
            "id": example.id,
            "user_id": example.user_id,
            **({"unit": example.unit} if example.unit else {}),
            **({"category": example.category} if example.category else {}),
            "history": len(store.visible(example, example.user_id)) if example.user_id else 0,
            "prediction": prediction,
            "target": example.target,
            "near_target": bool(near),
            "prompt_tokens": seen["prompt_tokens"],
            "prompt_documents": seen["documents"],
            **({"profile_tokens": seen["profile_tokens"]} if "profile_tokens" in seen else {}),
            "documents": [told_of(candidate) for candidate in ranking],
            **_probable(task, seen["probabilities"]),
            **({"places": seen["places"]} if seen.get("places") else {}),
            **({"unanswered": seen["unanswered"]} if "unanswered" in seen else {}),
            **(_copied(example, prediction, ranking[: seen["documents"]]) if answered else {}),
        }


def _passage(candidate: Candidate) -> tuple[Hashable, str]:
    """What names a candidate's text, and the text."""
    text = body(candidate.document)
    return (text if candidate.row == NO_ROW else candidate.row), text


def _copied(example: Example, answer: str, shown: Sequence[Candidate]) -> dict[str, Any]:
    """What the answer copies, and what the target shares with the same texts."""
    texts = {"question": [example.query], "documents": [candidate.document.text for candidate in shown]}
    shares = {name: copied(answer, sources) for name, sources in texts.items()}
    if example.target is not None:
        shares |= {f"target_{name}": copied(example.target, sources) for name, sources in texts.items()}
    return {"copied": shares}


def _probable(task: Task, probabilities: Mapping[str, float] | None) -> dict[str, Any]:
    """The labels' probabilities where they are known, and the rating that they make expect."""
    if probabilities is None:
        return {}
    if task.kind != "rating":
        return {"probabilities": probabilities}
    expected = sum(share * float(label) for label, share in probabilities.items())
    return {"expected": expected, "probabilities": probabilities}


def told_of(candidate: Candidate) -> dict[str, Any]:
    """A candidate in predictions.jsonl; `scores` are those of the parts of its score, where it has some.

    Of a passage `id` is its document's, and `span` where it stands in that one's text. `sources`: the
    documents from which a text of its own was made.
    """
    document = candidate.document
    told: dict[str, Any] = {"id": document.whole, "user_id": document.user_id, "score": candidate.score}
    told |= {"span": list(document.span)} if document.part_of else {}
    told |= {"sources": list(candidate.sources)} if candidate.sources else {}
    return told | ({"scores": dict(candidate.scores)} if candidate.scores else {})


def ranked_ids(documents: Iterable[Mapping[str, Any]], user: str) -> list[str]:
    """The ids (`known_id`) of the documents ranked for a user, each once, however many of its passages stand
    there. A text of its own stands for its sources, in their order."""
    return [*dict.fromkeys(known_id(one, user) for told in documents for one in by_source(told))]


def by_source(told: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The documents for which a ranked one counts: those from which its text was made, or itself."""
    return [{**told, "id": source} for source in told.get("sources", ())] or [told]


def known_id(told: Mapping[str, Any], user: str) -> str:
    """The id by which a document that was ranked for a user is known.

    Another user's document, whose id may be that of a relevant one too, has its owner in front of its id.
    """
    return told["id"] if told["user_id"] in ("", user) else f"{told['user_id']}\0{told['id']}"


def _seen(made: Made, examples: int) -> Iterable[Mapping[str, Any]]:
    """What the model saw and said of each example."""
    nothing = {"text": "", "prompt_tokens": 0, "documents": 0, "messages": [], "probabilities": None}
    if made.answers is not None:
        return made.answers
    if made.scores is None:
        return itertools.repeat(nothing, examples)
    return ({**nothing, **seen} for seen in made.scores)


def texts(store: Store, made: Made) -> Iterator[dict[str, Any]]:
    """What the model saw of every example, for texts.jsonl: question, prompt, documents' texts, its words."""
    for example, ranking, seen in zip(
        store.examples(), made.rankings, _seen(made, store.summary.examples), strict=True
    ):
        yield {
            "id": example.id,
            **({} if example.time is None else {"time": example.time}),
            "query": example.query,
            "input": example.input,
            "prompt": seen["messages"],
            **({"profile": seen["profile"]} if "profile" in seen else {}),
            "answer": seen["text"],
            "documents": [text_of(candidate) for candidate in ranking],
        }


def text_of(candidate: Candidate) -> dict[str, Any]:
    """A candidate in texts.jsonl: as in predictions.jsonl, with its text, and its time where it is dated."""
    document = candidate.document
    dated = {} if document.time is None else {"time": document.time}
    return {**told_of(candidate), **dated, "text": document.text}
