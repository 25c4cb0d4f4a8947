"""PURPLE with evidence as the reward, and with a linear policy of what the retriever knows. Both are ours.

The reward of a set is the share of the question's pieces of evidence in it, so no language model is asked.
A linear policy is a few named weights. `policy.json` keeps them for runs on other data.
"""

import json
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pbr_jax.base.files import parse_json, write_text
from pbr_jax.base.types import UserError
from pbr_jax.graph import Value, builds_nodes
from pbr_jax.options import Retrieve, key_of
from pbr_jax.pipeline import Examples, Ranking
from pbr_jax.stages.labels import is_relevant
from pbr_jax.stages.run import Run
from pbr_jax.stages.scores import standardised

FILE = "policy.json"
_OWN = ("score", "place")  # features that every retriever gives


class Evidence(NamedTuple):
    """What is worth showing: `holds` [q n g] says whether a candidate of a question holds a piece of its
    evidence, `pieces` [q] how many pieces there are. Called with profiles, it gives their recall."""

    holds: np.ndarray
    pieces: np.ndarray

    @classmethod
    def of(cls, examples: Examples, rankings: Sequence[Ranking]) -> "Evidence":
        groups = [list(dict.fromkeys(map(frozenset, example.relevant))) for example in examples]
        pieces = np.array([len(of) for of in groups], np.int64)
        most = max(map(len, rankings), default=0)
        holds = np.zeros((len(examples), most, pieces.max(initial=0)), bool)
        for row, (example, ranking) in enumerate(zip(examples, rankings, strict=True)):
            for place, candidate in enumerate(ranking):
                if is_relevant(example, candidate.document):
                    own = [candidate.document.whole in group for group in groups[row]]
                    holds[row, place, : len(own)] = own
        return cls(holds, pieces)

    def __call__(self, asked: Sequence[tuple[int, tuple[int, ...]]]) -> np.ndarray:
        """The share of its question's pieces that each profile (question, places) holds, float32 [n]."""
        found = [self.holds[row, list(places)].any(axis=0).sum() / self.pieces[row] for row, places in asked]
        return np.array(found, np.float32)


def part_names(rankings: Iterable[Ranking]) -> tuple[str, ...]:
    """The parts that candidates' scores are made of, over all rankings, sorted."""
    return tuple(sorted({name for ranking in rankings for candidate in ranking for name in candidate.scores}))


def features(ranking: Ranking, parts: Sequence[str]) -> np.ndarray:
    """What retrievers say of a question's candidates, float32 [n 2 + p]: the score, the place (the first is
    the highest) and the scores of each part, each standardised within the question. A candidate that a part
    has no score of has the lowest of that part's.
    """
    columns = [[candidate.score for candidate in ranking], [-float(place) for place in range(len(ranking))]]
    for name in parts:
        lowest = min((c.scores[name] for c in ranking if name in c.scores), default=0.0)
        columns.append([candidate.scores.get(name, lowest) for candidate in ranking])
    return np.stack([standardised(column) for column in columns], axis=-1).astype(np.float32)


class LinearScorer(NamedTuple):
    """A linear policy: the weights of `features` of these parts, and of the retriever's scores."""

    theta: np.ndarray
    parts: Sequence[str]
    prior: float

    def scores(self, examples: Examples, rankings: Sequence[Ranking]) -> list[np.ndarray]:
        """The logit of each example's candidates."""
        return [
            features(ranking, self.parts) @ self.theta
            + self.prior * standardised([candidate.score for candidate in ranking])
            for ranking in rankings
        ]


# -- a policy on disk ----------------------------------------------------------------------------------


def write(folder: Path, policy: LinearScorer, retrieve: Retrieve) -> None:
    """Writes a policy, and of which retriever's scores it is."""
    weights = dict(zip((*_OWN, *policy.parts), policy.theta.tolist(), strict=True))
    told = {"prior": policy.prior, "weights": weights, "retrieve": _scores_of(retrieve)}
    write_text(folder / FILE, json.dumps(told, indent=2) + "\n")


@builds_nodes
def saved(run: Run, folder: Path) -> Value:
    """The node of a policy that `write` wrote, for the run's retriever."""
    read = partial(_read, folder, run.config.retrieve)

    def content() -> list[Any]:
        theta, *others = read()
        return [theta.tolist(), *others]

    return Value("saved_policy", (), {}, read, identity=content, check=read)


def _read(folder: Path, retrieve: Retrieve) -> LinearScorer:
    """Raises UserError where there is no sound policy, and for scores of another retriever."""
    file = folder / FILE
    read = parse_json(file.read_bytes()) if file.is_file() else None
    found = read if isinstance(read, dict) else {}
    weights = found["weights"] if isinstance(found.get("weights"), dict) else {}
    numbers = [found.get("prior"), *weights.values()]
    if not all(isinstance(n, int | float) and np.isfinite(n) for n in numbers) or [*weights][:2] != [*_OWN]:
        raise UserError(
            f"{file} holds no linear policy of select.method purple, or one with NaN; set select.state to a "
            "folder that `pbr-jax export --format state --slot select` wrote"
        )
    if found.get("retrieve") != _scores_of(retrieve):
        raise UserError(
            f"select.state {folder} weighs the scores of another retriever than this run's; set retrieve "
            f"and its options as its {FILE} says, all but retrieve.k"
        )
    return LinearScorer(np.array([*weights.values()]), [*weights][2:], found["prior"])


def _scores_of(retrieve: Retrieve) -> Any:
    """What decides a retriever's scores, as JSON."""
    options = parse_json(json.dumps(key_of(retrieve)).encode())
    return {name: value for name, value in options.items() if name != "k"}
