"""What a retriever's candidates are worth to a reader, and whether retrievers' scores tell.

    python benchmarks/worth.py --name locomo --root FOLDER --split locomo10 --questions 200

Each of a question's first candidates stands alone in the prompt. Its worth is log p(answer | prompt with
it) in nats per token of the reference answer; questions without one are left out. Printed are the spread of
worth among the candidates of a question, what the best and the first of them gain over no document, and the
mean rank correlation (Spearman) of worth with each retriever's score; retrievers over passages score a
document by its best one. Intervals are over conversations, 95 %.

The best of ten noisy numbers is above the first, whatever they are of. So the same is printed for as many
documents of another conversation, which cannot hold the answer. And worth is measured under a second wording
of the prompt: the document that is best under one wording is compared with the first one under the other.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
from scipy.stats import spearmanr

import pbr_jax
from pbr_jax.base.types import Example, UserError
from pbr_jax.config import Benchmark, Config
from pbr_jax.eval.metrics import plain_mean
from pbr_jax.eval.significance import Column, estimates
from pbr_jax.methods import generate, retrieve
from pbr_jax.options import LLM, Corpus, Encoder, Prompt, Retrieve
from pbr_jax.pipeline import Ranking
from pbr_jax.stages.run import chunks
from pbr_jax.system import System

REMINDER = "Use what is written above."  # of the second wording
PARTS: dict[str, Callable[[int], Retrieve]] = {
    "bm25": lambda k: retrieve.BM25(k=k),
    "dense": lambda k: retrieve.Dense(k=k),
    "fused": lambda k: retrieve.Fused(k=k),
    "recency": lambda k: retrieve.Recency(k=k),
    "random": lambda k: retrieve.Random(k=k),
}


def worth(system: System, examples: Sequence[Example], rankings: Sequence[Ranking]) -> list[np.ndarray]:
    """log p(answer) per token after each candidate alone, and after none, which comes first."""
    alone = [(e, shown) for e, r in zip(examples, rankings) for shown in ([], *([c] for c in r))]
    found = [
        score.mean
        for some in chunks(alone)
        for _, score in system.score([e for e, _ in some], [shown for _, shown in some])
        if score is not None
    ]
    return np.split(np.array(found), np.cumsum([1 + len(r) for r in rankings])[:-1])


def elsewhere(clusters: Sequence[str], rankings: Sequence[Ranking]) -> list[Ranking]:
    """For each question the candidates of one of the next conversation. Raises UserError for a single one."""
    names = sorted(set(clusters))
    if len(names) < 2:
        raise UserError(f"found {len(names)} conversation, wanted two or more for a control")
    following = dict(zip(names, [*names[1:], names[0]], strict=True))
    found = {name: [r for r, of in zip(rankings, clusters, strict=True) if of == name] for name in names}
    seen, other = dict.fromkeys(names, 0), []
    for name in clusters:
        pool = found[following[name]]
        other.append(pool[seen[name] % len(pool)])
        seen[name] += 1
    return other


def checked(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> list[float]:
    """What the best candidate under one wording is worth more than the first under the other; both ways."""
    ways = zip([*first, *second], [*second, *first], strict=True)
    gains = [judge[1:][chooser[1:].argmax()] - judge[1] for chooser, judge in ways]
    return np.reshape(gains, (2, -1)).mean(0).tolist()


def gains(values: Sequence[np.ndarray], clusters: Sequence[str], whose: str = "") -> None:
    """The rows of what candidates are worth."""
    told(f"spread (deviation) among candidates{whose}", [v[1:].std() for v in values], clusters)
    told(f"best less first{whose}", [v[1:].max() - v[1] for v in values], clusters)
    told(f"first less none{whose}", [v[1] - v[0] for v in values], clusters)
    told(f"mean of candidates less none{whose}", [v[1:].mean() - v[0] for v in values], clusters)


def told(name: str, values: Sequence[float], clusters: Sequence[str]) -> None:
    """A row: the mean over questions and its interval."""
    kept = [(value, cluster) for value, cluster in zip(values, clusters, strict=True) if np.isfinite(value)]
    column = Column(plain_mean, [np.array([[value] for value, _ in kept])])
    _, low, high, *_ = estimates([column], [of for _, of in kept])[0]
    mean = np.mean([value for value, _ in kept])
    print(f"| {name} | {mean:+.3f} [{low:+.3f}, {high:+.3f}] | {len(kept)} |")


def correlation(scores: Sequence[float], values: np.ndarray) -> float:
    """Spearman's, NaN where either is constant."""
    if len(set(scores)) < 2 or len(set(values.tolist())) < 2:
        return float("nan")
    return float(np.asarray(spearmanr(scores, values))[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--name", default="locomo")
    parser.add_argument("--root", required=True)
    parser.add_argument("--split", default="locomo10")
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--candidates", type=int, default=10)
    parser.add_argument("--model", default=LLM().model, help="the reader's folder")
    parser.add_argument("--encoder", default=Encoder().model, help="the encoder's folder")
    parser.add_argument("--by", default="bm25", choices=PARTS, help="whose first candidates are read")
    options = parser.parse_args()
    base = Config(
        benchmark=Benchmark(name=options.name, root=options.root, split=options.split),
        limit=options.questions,
        llm=LLM(model=options.model),
        encoder=Encoder(model=options.encoder),
        generate=generate.Nothing(),
        collaboration="text",  # the control shows documents of another conversation
    )
    systems = {
        name: pbr_jax.open(replace(base, retrieve=part(options.candidates if name == options.by else 10_000)))
        for name, part in PARTS.items()
    }
    cut = replace(base, corpus=Corpus(chunk="words"))
    for name in ("dense", "fused"):
        systems[f"{name}, passages"] = pbr_jax.open(replace(cut, retrieve=PARTS[name](10_000)))
    system = systems[options.by]
    examples = [e for e in islice(system.store.examples(), options.questions) if e.target is not None]
    rankings = system.rank(examples)
    values = worth(system, examples, rankings)
    clusters = [example.unit or example.user_id for example in examples]
    print(f"{len(examples)} questions, {options.candidates} candidates by {options.by}; nats per token")
    print("| | mean | questions |\n|---|---|---|")
    gains(values, clusters)
    gains(worth(system, examples, elsewhere(clusters, rankings)), clusters, ", another conversation's")
    reworded = replace(base, retrieve=retrieve.Recency(k=1), prompt=Prompt(reminder=REMINDER))
    again = worth(pbr_jax.open(reworded), examples, rankings)
    told("best under one wording less first under the other", checked(values, again), clusters)
    pairs = zip(values, again, strict=True)
    both = [correlation(v[1:].tolist(), w[1:]) for v, w in pairs]
    told("rank correlation of worth under both wordings", both, clusters)
    relevant = [{id for group in e.relevant for id in group} for e in examples]
    hit = [{c.document.id for c in r} & own for r, own in zip(rankings, relevant)]
    told("evidence among candidates", [float(bool(h)) for h in hit], clusters)
    for name, other in systems.items():
        found = [{c.document.whole: c.score for c in ranking} for ranking in other.rank(examples)]
        scores = [[of[one.document.id] for one in shown] for of, shown in zip(found, rankings, strict=True)]
        pairs = zip(scores, values, strict=True)
        told(f"rank correlation with {name}", [correlation(s, v[1:]) for s, v in pairs], clusters)
    marked = [[float(c.document.id in own) for c in r] for r, own in zip(rankings, relevant)]
    pairs = zip(marked, values, strict=True)
    told("rank correlation with being evidence", [correlation(m, v[1:]) for m, v in pairs], clusters)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(f"worth.py: error: {error}") from None
