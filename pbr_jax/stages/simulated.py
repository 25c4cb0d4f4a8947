"""Simulated remarks of users on answered questions. Accepted remarks become shared documents.

LUF, sections 2.3 and 3.4, prompt A.1.3: 40 % of the questions have a correct remark, 40 % a wrong one, and
20 % an unrelated one. In the paper, a language model writes a dialogue from question and answer. Here, a rule
writes one claim, so that remarks are the same on every machine and need no summary. Remarks are supervision,
since a correct remark contains the answer in the data.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from pbr_jax.base.types import Document, Example, UserError
from pbr_jax.corpus.store import Store
from pbr_jax.data.passages import counterparts
from pbr_jax.eval.answer_recall import accepted, holds
from pbr_jax.graph import Node, Value, builds_nodes
from pbr_jax.llm import LLM, usage
from pbr_jax.options import Benchmark, Remarks
from pbr_jax.pipeline import Examples, Neighbour, Query, RetrieveSlot
from pbr_jax.remarks.judge import Agent
from pbr_jax.remarks.log import Remark
from pbr_jax.stages import language_model
from pbr_jax.stages.run import Run

Accepts = Literal["none", "oracle", "judged", "all"]
Kind = Literal["right", "wrong", "other"]
SHARES: dict[Kind, float] = {"right": 0.4, "wrong": 0.4, "other": 0.2}
OTHERS = (
    "I usually have breakfast at seven.", "My sister has moved to the coast.", "Please keep answers short.",
    "I am learning to play the cello.", "My garden needs rain.", "I prefer trains to planes.",
    "Next week I am on holiday.", "My neighbour has two dogs.",
)  # fmt: skip
FOUND = 5  # documents of a prompt in LUF
_FILE = "store.sqlite"


class Told(NamedTuple):
    """A remark on one question. `taken`: whether it was accepted as a shared document."""

    kind: Kind
    text: str
    taken: bool = False


class Simulation(NamedTuple):
    """The settings of simulated remarks: which are accepted, the questions' texts in the language of the
    passages by id, the judge, and the number of `documents` of the data that the judge reads."""

    accepts: Accepts
    asked: Mapping[str, str]
    agent: Agent | None
    documents: int


@builds_nodes
def simulation(run: Run, accepts: Accepts) -> dict[str, Node]:
    """The node `simulation` of a `Simulation`, if remarks are simulated.

    Raises UserError if the task has no short answers, if passages are not shared, or if users may not read
    remarks of others.
    """
    if accepts == "none":
        return {}
    config, who = run.config, f"retrieve.remarks {accepts}"
    if not (run.task.short_answers and config.benchmark.shares):
        raise UserError(
            f"{who} tells short answers to shared passages, and {config.benchmark.name} has none of the one "
            "or the other; take a question set with benchmark.passages, or retrieve.remarks none"
        )
    if config.collaboration != "text":
        raise UserError(
            f"{who} shows what one user has told to others, and collaboration is {config.collaboration}; "
            "set it to text"
        )
    if config.stream.protocol == "cross_users":
        raise UserError(
            f"{who} grows the corpus from block to block, and folds of users (stream.protocol cross_users) "
            "have no order; take prequential"
        )
    needs, told = {"store": run.data}, None
    if accepts == "judged":
        needs["llm"] = language_model.judge(run)
        told = replace(config.remarks, operations="add")
    return {
        "simulation": Value(
            "remarks", (accepts, told, config.benchmark), needs, _simulation, identity=lambda: [accepts, told]
        )
    }


def _simulation(
    accepts: Accepts, told: Remarks | None, benchmark: Benchmark, *, store: Store, llm: LLM | None = None
) -> Simulation:
    found = counterparts(benchmark)
    asked = {} if found is None else {id: one.text for id, one in found.questions.items()}
    if told is None:
        return Simulation(accepts, asked, None, 1)
    assert llm is not None
    return Simulation(accepts, asked, Agent(llm, told), told.documents)


def claim(question: str, answer: str) -> str:
    """The text of a remark on a question."""
    return f"{question} The answer is {answer}."


def remarks(simulation: Simulation, examples: Examples, search: RetrieveSlot, *, seed: int) -> list[Told]:
    """Draws a remark on each question. It depends on the seed and the question's id.

    A wrong remark gives the answer to another question of `examples`, from the same article if possible. All
    of `examples` are already answered, so no answer is revealed before its question. If there is no such
    answer, or no answer to the question itself, the remark is unrelated. `search` retrieves documents of the
    data for the judge.
    """
    told = [_told(simulation, example, examples, seed) for example in examples]
    return [
        one._replace(taken=_taken(simulation, one, example, search))
        for one, example in zip(told, examples, strict=True)
    ]


def _told(simulation: Simulation, example: Example, examples: Examples, seed: int) -> Told:
    draw = random.Random(f"{seed} remark {example.id}")
    (kind,) = draw.choices(list(SHARES), list(SHARES.values()))
    answers = [example.target] if kind == "right" else _wrong(example, examples) if kind == "wrong" else []
    if not any(answers):
        return Told("other", draw.choice(OTHERS))
    question = simulation.asked.get(example.id, example.query)
    return Told(kind, claim(question, draw.choice(answers) or ""))


def _wrong(example: Example, examples: Examples) -> list[str]:
    right = accepted(example)
    others = [one for one in examples if one.target and not holds(one.target, right)] if any(right) else []
    same = [one for one in others if one.unit == example.unit]
    return [one.target or "" for one in same or others]


def _taken(simulation: Simulation, told: Told, example: Example, search: RetrieveSlot) -> bool:
    if simulation.agent is None:
        return simulation.accepts == "all" or told.kind == "right"
    (ranking,) = search([example], [Query((told.text,))], [[Neighbour("")]])
    with usage.apart("judge"):
        claimed = Remark(0, "", 0.0, example.user_id, told.text, "summarised", told.text)
        found = simulation.agent.judge(claimed, [candidate.document for candidate in ranking])
    return found.verdict == "correct" and found.route == "shared"


def corpus(state: Path) -> Path:
    """The file of a state's store, which contains the remarks accepted so far."""
    return state / _FILE


def add(store: Store, examples: Examples, told: Sequence[Told], out: Path) -> None:
    """Writes a copy of a store, with accepted remarks as shared documents, into the folder of a state."""
    for left in out.glob(f"{_FILE}*"):  # of an interrupted attempt
        left.unlink()
    copy = store.copy_to(corpus(out))
    copy.append(
        Document(_id(example), "", one.text, shared=True)
        for example, one in zip(examples, told, strict=True)
        if one.taken
    )
    copy.close()


def _id(example: Example) -> str:
    return f"remark-{example.id}"


def counts(blocks: Sequence[tuple[Examples, Sequence[Any], Sequence[Told]]]) -> dict[str, float]:
    """Counts of the remarks of all blocks. Each block has questions, rankings and remarks.

    `remarks_KIND` and `accepted_KIND` are the numbers of drawn and accepted remarks. `found_KIND` is the
    share of all questions with an accepted remark among their first five documents.
    """
    kinds = {_id(e): one.kind for examples, _, told in blocks for e, one in zip(examples, told)}
    made = Counter(one.kind for *_, told in blocks for one in told)
    taken = Counter(one.kind for *_, told in blocks for one in told if one.taken)
    found = [
        {kinds.get(candidate.document.whole) for candidate in ranking[:FOUND]}
        for _, rankings, _ in blocks
        for ranking in rankings
    ]
    return {
        f"{what}_{kind}": float(number)
        for kind in SHARES
        for what, number in (
            ("remarks", made[kind]),
            ("accepted", taken[kind]),
            ("found", np.mean([kind in some for some in found])),
        )
    }
