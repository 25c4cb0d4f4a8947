"""How many prompts of rewards the host writes and encodes in a second, where scoring costs nothing.

    git worktree add --detach /tmp/before COMMIT
    python benchmarks/reward_prompts.py FOLDER --name lamp_4 --against /tmp/before

FOLDER holds LaMP's files. A call is what PURPLE asks for in a step: 32 profiles of 5 of the first 20
documents for each of 16 questions, drawn by the call's number. All that is done for a reward is in the time:
prompts, their tokens, keys and rows of the cache of answers, lines of rewards.jsonl. The model's
log-probabilities are zeros. Each tree runs in a process of its own; the two make the same call one after the
other, and which is first changes. Rewards and tokens must be equal.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

QUESTIONS, PROFILES, CHOSEN, CANDIDATES = 16, 32, 5, 20


def rewards(root: str, name: str) -> tuple[Any, list[list[Any]]]:
    """The rewards of the tree that is imported, and the candidates of each question."""
    import pbr_jax.llm
    from pbr_jax import options
    from pbr_jax.base.types import Candidate
    from pbr_jax.data import read
    from pbr_jax.stages import feedback, language_model

    prompt, llm = options.Prompt(), pbr_jax.llm.load(options.LLM())
    examples = [e for e in read(options.Benchmark(name=name, root=root, split="train")) if e.profile[CHOSEN:]]
    rows = iter(range(sys.maxsize))
    candidates = [[Candidate(d, 0.0, next(rows)) for d in e.profile[:CANDIDATES]] for e in examples]
    if Path(pbr_jax.__file__).with_name("system.py").is_file():
        from pbr_jax.llm.engine import scoring
        from pbr_jax.methods.select.purple_training import Rewards
        from pbr_jax.system import System
        from pbr_jax.tasks import released

        write = language_model._writer(prompt, llm=llm, wording=released(name).wording(prompt.form))
        reward: Any = feedback.by_likelihood(System({"write": write, "llm": llm}), total=True)
    else:  # before there was a System
        import importlib

        scoring: Any = importlib.import_module("pbr_jax.llm.scoring")
        of: Any = importlib.import_module("pbr_jax.stages.rewards")
        task = importlib.import_module("pbr_jax.data").task(name)
        Rewards, write = of.Rewards, language_model._writer(prompt, llm=llm, task=task)  # type: ignore[call-arg]
        reward = of.by_total_likelihood(llm)
    scoring.log_probabilities = lambda engine, pairs: [np.zeros(len(target)) for _, target in pairs]
    llm._llm.__dict__["_engines"] = [SimpleNamespace(window=512)] * 2  # as many as cores
    file = Path(os.environ["PBR_JAX_CACHE"], "rewards.jsonl")
    examples = [replace(example, profile=()) for example in examples]
    return Rewards(reward, write, examples, candidates, file, llm.num_tokens), candidates


def asked(number: int, candidates: Sequence[Sequence[Any]]) -> list[tuple[int, tuple[int, ...]]]:
    """The profiles of one call."""
    draw, first = random.Random(number), number * QUESTIONS
    questions = [place % len(candidates) for place in range(first, first + QUESTIONS)]
    return [
        (question, tuple(draw.sample(range(len(candidates[question])), CHOSEN)))
        for question in questions
        for _ in range(PROFILES)
    ]


def cpu() -> float:
    """CPU seconds of this process and of those that it started (Linux)."""
    tasks = Path("/proc/self/task").glob("*/children")
    children = [Path("/proc", pid, "stat") for file in tasks for pid in file.read_text().split()]
    ticks = [sum(map(int, file.read_text().rpartition(")")[2].split()[11:13])) for file in children]
    return time.process_time() + sum(ticks) / os.sysconf("SC_CLK_TCK")


def child(root: str, name: str) -> None:
    """Makes the calls whose numbers stand in stdin, and says what each took."""
    judge, candidates = rewards(root, name)
    print(len(candidates), flush=True)
    for line in sys.stdin:
        profiles, known, tokens = asked(int(line), candidates), len(judge), judge.prompt_tokens
        start, used = time.perf_counter(), cpu()
        values = judge(profiles)
        spent = {"seconds": time.perf_counter() - start, "cpu": cpu() - used}
        found = {"prompts": len(judge) - known, "tokens": judge.prompt_tokens - tokens}
        print(json.dumps({**spent, **found, "sum": float(values.sum())}), flush=True)


def started(tree: Path, root: str, name: str, cache: str) -> Callable[[int], dict[str, float]]:
    """A process that makes calls with the package in a folder."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PBR_JAX_CACHE": cache, "JAX_PLATFORMS": "cpu"}
    process = subprocess.Popen(
        [sys.executable, __file__, root, "--name", name, "--child"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    ask, answers = process.stdin, process.stdout
    answers.readline()

    def call(number: int) -> dict[str, float]:
        print(number, file=ask, flush=True)
        return json.loads(answers.readline())

    return call


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root")
    parser.add_argument("--name", default="lamp_4")
    parser.add_argument("--against", type=Path, help="a tree of another commit")
    parser.add_argument("--calls", type=int, default=9)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.root, options.name)
        return
    trees = {"now": Path(__file__).parents[1], **({"before": options.against} if options.against else {})}
    with tempfile.TemporaryDirectory() as caches:
        calls = {}
        for side, tree in trees.items():
            (cache := Path(caches, side)).mkdir()
            calls[side] = started(tree, options.root, options.name, str(cache))
        rates: dict[str, list[float]] = {side: [] for side in trees}
        busy: dict[str, list[float]] = {side: [] for side in trees}
        for number in range(options.calls + 1):
            sides = [*calls] if number % 2 else [*calls][::-1]
            made = {side: calls[side](number) for side in sides}
            same = [{k: v for k, v in one.items() if k not in ("seconds", "cpu")} for one in made.values()]
            assert same[0] == same[-1], same
            if number:  # the first one starts the processes of templates
                for side, one in made.items():
                    rates[side].append(one["prompts"] / one["seconds"])
                    busy[side].append(1e3 * one["cpu"] / one["prompts"])
    for side, found in rates.items():
        middle, low, high = statistics.median(found), min(found), max(found)
        print(
            f"{side}: {middle:,.0f} prompts/s, median of {len(found)} calls ({low:,.0f} to {high:,.0f}); "
            f"{statistics.median(busy[side]):.2f} CPU-ms a prompt"
        )
    if options.against:
        ratios = [a / b for a, b in zip(rates["now"], rates["before"])]
        medians = statistics.median(rates["now"]) / statistics.median(rates["before"])
        print(f"ratio of medians {medians:.2f}; of neighbouring calls {min(ratios):.2f} to {max(ratios):.2f}")


if __name__ == "__main__":
    main()
