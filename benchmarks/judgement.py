"""Whether a language model judges users' remarks rightly, alone or beside what is known; and what one user
who tells lies, or two who agree on them, do to what others find.

    python benchmarks/judgement.py --root XQUAD_FOLDER --questions 40
    python benchmarks/judgement.py --root XQUAD_FOLDER --poison 20

The first is LUF's Table 3: of simulated remarks 40 % are right, 40 % wrong and 20 % say something else
(A.1.3). They are written by rule from English questions and answers, so that they are the same on every
machine: a wrong one has the answer to another question of the same article. Each is judged `direct` and
`guided` (`remarks.judgement`). A right one has to be judged correct, a wrong one not, and the others may not
reach the shared store. Not summarised before: it is the judgement that is measured.

The second has users make wrong claims, which a judge takes all for correct, and searches the questions that
they are about before and after: one account or two, with the same words or a paraphrase by rule, and with
quorums of 1 (LUF as printed), 2 and 3.
"""

import argparse
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from sklearn.metrics import roc_auc_score

import pbr_jax
from pbr_jax.base.types import Document, Example
from pbr_jax.config import Config, override
from pbr_jax.eval.ranking import ranking_metric
from pbr_jax.remarks.judge import Agent, Script
from pbr_jax.remarks.log import Remark
from pbr_jax.stages.simulated import OTHERS, claim
from pbr_jax.system import System

SAID = "I was reading about this. "


class Told(NamedTuple):
    """A simulated remark, and whether it is right, wrong, or says something else."""

    kind: str
    text: str
    example: Example


def simulated(examples: Sequence[Example], count: int, seed: int) -> list[Told]:
    """So many remarks on questions that are drawn; the same for the same seed."""
    draw = random.Random(seed)
    kinds = ["right"] * round(0.4 * count) + ["wrong"] * round(0.4 * count)
    kinds += ["other"] * (count - len(kinds))
    draw.shuffle(kinds)
    remarks = []
    for kind, example in zip(kinds, draw.sample(list(examples), count)):
        answer = example.target
        if kind == "wrong":
            own = {(text or "").lower() for text in (example.target, *example.alternatives)}
            pool = [
                e.target for e in examples if e.unit == example.unit and (e.target or "").lower() not in own
            ]
            answer = draw.choice(pool)
        said = SAID + claim(example.query, answer or "")
        remarks.append(Told(kind, draw.choice(OTHERS) if kind == "other" else said, example))
    return remarks


def judged(system: System, config: Config, remarks: Sequence[Told], judgement: str) -> None:
    """Prints the judgements of the remarks in one way, and what they cost."""
    options = replace(config.remarks, judgement=judgement, operations="add")
    agent, began, cpu = Agent(system.llm, options), time.perf_counter(), time.process_time()
    verdicts: Counter[tuple[str, str]] = Counter()
    right, chances = [], []
    for told in remarks:
        found = agent.judge(remark(told.text), known(system, told.text, options.documents))
        verdicts[
            told.kind, f"{found.verdict}, {found.route}" if found.verdict == "correct" else found.verdict
        ] += 1
        correct = found.verdict == "correct"
        likely = found.evidence["probabilities"]
        chances.append(likely["correct, shared"] + likely["correct, personal"])
        taken = correct and found.route == "shared"
        right.append({"right": correct, "wrong": not correct, "other": not taken}[told.kind])
    facts = [i for i, told in enumerate(remarks) if told.kind != "other"]
    auc = roc_auc_score([remarks[i].kind == "right" for i in facts], [chances[i] for i in facts])
    low, high = wilson(sum(right), len(right))
    print(
        f"{judgement}: accuracy {np.mean(right):.3f} [{low:.3f}, {high:.3f}], n = {len(right)}; AUC of "
        f"P(correct), right against wrong, {auc:.3f}; {time.perf_counter() - began:.0f} s, "
        f"{time.process_time() - cpu:.0f} CPU s"
    )
    for (kind, verdict), number in sorted(verdicts.items()):
        print(f"  {kind:6} judged {verdict:18} {number}")


def remark(text: str) -> Remark:
    return Remark(0, "", 0.0, "", text, "summarised", text)


def known(system: System, text: str, count: int) -> list[Document]:
    """The first shared documents for a text."""
    example = next(system.store.examples())
    (ranking,) = system.rank([replace(example, id="remark", query=text, input=text)])
    return [candidate.document for candidate in ranking if candidate.document.shared][:count]


def wilson(hits: int, count: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a share."""
    share, spread = hits / count, z * z / count
    middle, width = share + spread / 2, z * np.sqrt(share * (1 - share) / count + spread / count / 4)
    return (middle - width) / (1 + spread), (middle + width) / (1 + spread)


def recalls(system: System, examples: Sequence[Example]) -> dict[str, float]:
    ids = [[c.document.id for c in ranking] for ranking in system.rank(examples)]
    names = ("recall@1", "recall@5")
    return {
        n: float(np.mean([ranking_metric(n, i, e.relevant) for i, e in zip(ids, examples)])) for n in names
    }


ATTACKS = (
    (1, ("liar",), False),
    (2, ("liar",), False),
    (2, ("liar", "liar"), True),
    (2, ("liar", "friend"), False),
    (2, ("liar", "friend"), True),
    (3, ("liar", "friend"), False),
)
"""Quorum, who makes each claim, and whether it is made in other words the second time."""


def poisoned(config: Config, examples: Sequence[Example], count: int, seed: int) -> None:
    """Prints what is found of the questions that lies are about, and of all, before and after them."""
    lies = [told for told in simulated(examples, 5 * count // 2, seed) if told.kind == "wrong"][:count]
    believes = Script([{"remark": "", "verdict": "correct", "route": "shared"}])
    asked = {"lied about": [told.example for told in lies], "all": list(examples)}
    before: dict[str, dict[str, float]] = {}
    ranked: list[list] = []
    for quorum, accounts, reworded in ATTACKS:
        system = pbr_jax.open(override(config, {"remarks.quorum": quorum}))
        before = before or {name: recalls(system, some) for name, some in asked.items()}
        ranked = ranked or system.rank(asked["all"])
        for told in lies:
            for place, account in enumerate(accounts):
                text = paraphrase(told.text) if reworded and place else told.text
                system.observe(account, text, judge=believes)
        same = sum(map(_same, ranked, system.rank(asked["all"])))
        who = f"{len(set(accounts))} account(s){', paraphrased' * reworded}, quorum {quorum}"
        for name, some in asked.items():
            after = recalls(system, some)
            told = ", ".join(f"{n} {before[name][n]:.3f} -> {after[n]:.3f}" for n in after)
            print(f"{who}: {len(lies)} lies, {len(some)} questions {name}: {told}")
        print(f"{who}: {same} of {len(ranked)} rankings have the same ids and scores", flush=True)


def paraphrase(text: str) -> str:
    """The same claim in other words."""
    asked, answer = text.removeprefix(SAID).removesuffix(".").rsplit(" The answer is ", 1)
    return f"It is {answer}, as a friend told me when I wanted to know: {asked}"


def _same(one: list, other: list) -> bool:
    return [(c.document.id, c.score) for c in one] == [(c.document.id, c.score) for c in other]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", required=True, help="folder of xquad.en.json")
    parser.add_argument("--questions", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--documents", type=int, default=2, help="that are shown to the judge")
    parser.add_argument("--poison", type=int, metavar="N", help="so many lies instead")
    parser.add_argument("--model", default=Config().llm.model)
    options = parser.parse_args()
    fields = {
        "benchmark.name": "xquad", "benchmark.root": options.root, "benchmark.split": "en",
        "benchmark.passages": "en", "benchmark.training": "none", "retrieve.k": 5, "llm.model": options.model,
        "remarks.documents": options.documents,
    }  # fmt: skip
    config = override(Config(), fields)
    system = pbr_jax.open(config)
    examples = list(system.store.examples())
    if options.poison:
        poisoned(config, examples, options.poison, options.seed)
        return
    remarks = simulated(examples, options.questions, options.seed)
    for judgement in ("direct", "guided"):
        judged(system, config, remarks, judgement)


if __name__ == "__main__":
    main()
