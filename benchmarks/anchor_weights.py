"""Whether a user's own documents can tell how much of the anchor belongs into PBR's vector.

    python benchmarks/anchor_weights.py --name personabench --root FOLDER --split noise_0.0 --released FILE
    python benchmarks/anchor_weights.py --name longmemeval --root FOLDER --split locomo_dev

Leave one out, without any label: the first half of a document asks for its second half among the user's
other documents, with the anchor of those; the weight with the best mean reciprocal rank is the user's. Then
the benchmark's questions, each with its user's weight, next to no anchor and to weight 1. Without --released
the query and the anchor stand alone. Intervals are of a paired bootstrap over users.
"""

import argparse
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pbr_jax.base.types import Example
from pbr_jax.config import Config, override
from pbr_jax.corpus.store import Store
from pbr_jax.data import expansions
from pbr_jax.eval.ranking import ranking_metric
from pbr_jax.eval.significance import paired_difference
from pbr_jax.experiment.plan import Plan
from pbr_jax.index.page_rank import Walk, anchors
from pbr_jax.methods.expand import PBR
from pbr_jax.pipeline import Neighbour, Tally
from pbr_jax.stages.search import search
from pbr_jax.text.encode import TextEncoder

WEIGHTS = (0.0, 0.25, 0.5, 1.0, 2.0)
SHORTEST = 8  # words of a document that is cut in two


class World(NamedTuple):
    store: Store
    encoder: TextEncoder
    examples: list[Example]
    vectors: np.ndarray
    texts: list[str]


def world(options: argparse.Namespace) -> World:
    fields = {
        "benchmark.name": options.name,
        "benchmark.root": options.root,
        "benchmark.split": options.split,
    }
    needs = Plan(override(Config(), fields)).ranked.needs["retrieve"].needs
    store, encoder, vectors = (needs[name].value for name in ("store", "encoder", "embeddings"))
    examples = [example for example in store.examples() if example.scored]
    return World(store, encoder, examples, vectors, [text for _, text in store.texts()])


def recalls(here: World, released: str, weight: float) -> np.ndarray:
    """Recall@5 of each question with this weight of the anchor."""
    written = expansions.read(Path(released)) if released else None
    method = PBR(anchor_weight=weight, utterances=bool(released), reasoning=bool(released))
    there = {"store": here.store, "encoder": here.encoder, "embeddings": here.vectors}
    queries = method.slot(Tally(), **there, written=written)(here.examples)  # type: ignore[arg-type]
    users = [[Neighbour(example.user_id)] for example in here.examples]
    rankings = search(here.store, here.encoder, here.vectors, 5)(here.examples, queries, users)
    found = [[candidate.document.id for candidate in ranking] for ranking in rankings]
    return np.array([ranking_metric("recall@5", ids, e.relevant) for ids, e in zip(found, here.examples)])


def learned(here: World, rows: np.ndarray) -> float:
    """The weight with which the halves of this history's documents find each other best."""
    words = [here.texts[row].split() for row in rows]
    cut = [place for place, own in enumerate(words) if len(own) >= SHORTEST]
    if len(cut) < 2:
        return 1.0  # nothing to learn from: the paper's
    asked = here.encoder.encode(
        [" ".join(words[place][: len(words[place]) // 2]) for place in cut], role="query"
    )
    wanted = here.encoder.encode([" ".join(words[place][len(words[place]) // 2 :]) for place in cut])
    centres = anchors(here.vectors, [np.delete(rows, place) for place in cut], Walk())

    def mean_reciprocal_rank(weight: float) -> float:
        queries = asked + weight * centres
        others = queries @ here.vectors[rows].T
        others[np.arange(len(cut)), cut] = -np.inf
        above = others >= (queries * wanted).sum(1, keepdims=True)
        return float((1 / (1 + above.sum(1))).mean())

    return max(WEIGHTS, key=mean_reciprocal_rank)  # of equals the least


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("name", "root", "split"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--released", default="", help="utterances and reasoning by question id")
    options = parser.parse_args()
    here = world(options)
    by_weight = {weight: recalls(here, options.released, weight) for weight in WEIGHTS}
    histories = defaultdict(list)  # questions by what they see
    for place, example in enumerate(here.examples):
        histories[tuple(here.store.visible(example, example.user_id))].append(place)
    own, chosen = np.zeros(len(here.examples)), Counter[float]()
    for rows, places in histories.items():
        weight = learned(here, np.array(rows, int))
        chosen[weight] += 1
        own[places] = by_weight[weight][places]
    users = [example.user_id for example in here.examples]
    print(f"{len(own)} questions, {len(set(users))} users; histories by their learned weight: {dict(chosen)}")
    print("recall@5: " + ", ".join(f"weight {weight:g} {by_weight[weight].mean():.4f}" for weight in WEIGHTS))
    for weight in (0.0, 1.0):
        print(f"learned {own.mean():.4f}, from weight {weight:g}:", end=" ")
        print(paired_difference(own[:, None], by_weight[weight][:, None], users, lambda means: means[:, 0]))


if __name__ == "__main__":
    main()
