"""How probable the true answer is to a reader who is shown what each run found: `target_nll` of LoCoMo.

    python benchmarks/memory_likelihood.py 10 likelihood.jsonl runs/systems/*

The questions are the first 10 with an answer of each conversation. Of each run the prompt shows the first
texts that have 200 words together, or one that is longer and cut to fit. (More texts would be cut to a few
words each, since they share the prompt's tokens equally.) For each run it prints the mean of minus
log p(answer | prompt) per token, in nats, and its paired differences from `nothing` and `random session`,
with intervals over conversations. The file keeps what was computed, and a second call goes on from there.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

import pbr_jax
from pbr_jax.base.types import Example
from pbr_jax.eval.evaluate import intervals_of, scores
from pbr_jax.pipeline import Ranking
from pbr_jax.system import System

WORDS = 200  # they fit in 512 tokens beside the question and the wording


def asked(system: System, n: int) -> list[list[Example]]:
    """The i-th answerable question of each conversation, for each i."""
    of = defaultdict[str, list[Example]](list)
    for example in system.store.examples():
        if example.target is not None:
            of[example.user_id].append(example)
    return [[own[i] for own in of.values() if i < len(own)] for i in range(n)]


def first(ranking: Ranking) -> Ranking:
    """The first texts with at most WORDS words together; at least one, if there is one."""
    words = np.cumsum([len(candidate.document.text.split()) for candidate in ranking])
    return ranking[: max(1, int(np.searchsorted(words, WORDS, "right")))]


def main(n: str, file: str, *folders: str) -> None:
    known = defaultdict[str, dict[str, float]](dict)
    users = dict[str, str]()
    path, systems = Path(file), {}
    for line in path.read_text().splitlines() if path.exists() else ():
        one = json.loads(line)
        known[one["row"]][one["id"]], users[one["id"]] = one["nll"], one["user"]
    for folder in folders:
        systems[json.loads((Path(folder) / "results.json").read_text())["system"]] = pbr_jax.open(folder)
    with path.open("a") as kept:
        for i in range(int(n)):
            for name, system in systems.items():
                part = [one for one in asked(system, int(n))[i] if one.id not in known[name]]
                shown = [first(ranking) for ranking in system.rank(part)]
                for example, (_, score) in zip(part, system.score(part, shown), strict=True):
                    assert score is not None
                    one = {"row": name, "id": example.id, "user": example.user_id, "nll": -score.mean}
                    known[name][example.id], users[example.id] = one["nll"], example.user_id
                    kept.write(json.dumps(one) + "\n")
                    kept.flush()
    ids = sorted(set.intersection(*(set(known[name]) for name in systems)))
    owners = [users[id] for id in ids]
    values = {name: np.array([known[name][id] for id in ids]) for name in systems}
    print(f"{len(ids)} questions of {len(set(owners))} conversations")
    for name, own in values.items():
        print(f"{name}: {interval(own, owners)}")
        for other in sorted({"nothing", "random session"} & values.keys() - {name}):
            print(f"    less {other}: {interval(own - values[other], owners)}")


def interval(of: np.ndarray, owners: list[str]) -> str:
    rows = np.arange(len(of))
    sure = intervals_of([scores("nll", of)], owners, rows, resamples=1000, confidence=0.95, seed=0)["nll"]
    return f"{of.mean():.3f} [{sure[0]:.3f}, {sure[1]:.3f}]"


if __name__ == "__main__":
    main(*sys.argv[1:])
