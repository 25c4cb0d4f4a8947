"""PURPLE where the truth is known: what its sets are worth, and how many prompts it asks for that.

    python benchmarks/purple.py sets   # against similar and single records, and the best sets, three seeds
    python benchmarks/purple.py calls  # against the released procedure: prompts asked for the same gain

The world is that of the tests (tests/train/planted_sets.py): rewards in closed form, no language model
is asked; three of at most eight records are chosen, which help, repeat each other or harm. A call stands for
one prompt that a language model would score; all have the same number of records.
"""

import argparse
import importlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "train"))
planted = importlib.import_module("planted_sets")

LEARNING_RATE = 1e-3
PROCEDURES: dict[str, dict[str, Any]] = {
    "released: 32 profiles, each scored anew": {"rollouts": 32},
    "the same, each profile scored once": {"rollouts": 32},
    "8 profiles": {"rollouts": 8},
    "8 profiles, four steps from the same rewards": {"rollouts": 8, "loss": "grpo", "updates": 4},
    "16 profiles, four steps from the same rewards": {"rollouts": 16, "loss": "grpo", "updates": 4},
    **{
        f"{rollouts} profiles, four steps, {control} guesses": {
            "rollouts": rollouts,
            "loss": "grpo",
            "updates": 4,
            "advantage": "leave_one_out",
            "control": control,
        }
        for control in ("none", "additive", "pairwise")
        for rollouts in (4, 8)
    },
    "single records": {"learns_from": "singles"},
}


class Point(NamedTuple):
    """A moment of a training: prompts drawn so far, different ones among them, and what the choices of
    held-out users are worth."""

    drawn: int
    asked: int
    worth: float


class Counted:
    """Rewards of a world that note what was asked, and the curve of what held-out users get."""

    def __init__(self, world: Any) -> None:
        self._world, self._known, self._drawn = world, set(), 0
        self.curve: list[Point] = []

    def __call__(self, asked: Sequence[Any]) -> np.ndarray:
        found = self._world.reward(asked)
        if len({question for question, _ in asked}) == len(asked):  # one choice of each: an evaluation
            self.curve.append(Point(self._drawn, len(self._known), float(found.mean())))
        else:
            self._drawn += len(asked)
            self._known.update(asked)
        return found


def options(epochs: int, selection: float = 0.15, **changes: Any) -> Any:
    from pbr_jax.methods.select import Purple
    from pbr_jax.options import Optimizer, Training

    training = Training(
        epochs=epochs,
        batch_size=16,
        selection=selection,
        devices=1,
        optimizer=Optimizer(name="adam", learning_rate=LEARNING_RATE),
    )
    chosen = {"num_layers": 2, "num_heads": 4, "dropout": 0.0, "fusion": "residual_attention", **changes}
    return Purple(k=planted.K, training=training, **chosen)


def trained(world: Any, told: Any, reward: Any, seed: int) -> tuple[Any, Any]:
    """The policy and what it was fitted to."""
    from pbr_jax.models.set_policy import set_policy
    from pbr_jax.train import purple

    policy = purple.Policy(set_policy(told.sizes(planted.WIDTH)), world.arrays)
    owners = [f"u{i // 2}" for i in range(len(world))]
    with tempfile.TemporaryDirectory() as folder:
        sizes = world.sizes.tolist()
        return policy, purple.train(policy, reward, sizes, owners, told, Path(folder), seed=seed).params


def sets(seeds: int) -> None:
    """Mean rewards of new questions, with paired 95 % intervals against each rival."""
    import jax

    from pbr_jax.eval.significance import paired_difference
    from pbr_jax.models.set_policy import from_arrays
    from pbr_jax.train import purple

    for seed in range(seeds):
        world, new = planted.World(300, seed), planted.World(300, 100 + seed)
        policy, params = trained(world, options(8, rollouts=8), world.reward, seed)
        score = jax.jit(from_arrays(policy.model))
        there = purple.Policy(policy.model, new.arrays)
        chosen = purple._chosen(there, score, params, np.arange(len(new)), new.sizes.tolist(), planted.K)
        mine, users = new.reward(chosen), [str(i) for i in range(len(new))]
        print(f"seed {seed}: PURPLE {mine.mean():.3f}", flush=True)
        rivals = {"similarity": new.similar(), "best singles": new.singles(), "best sets": new.best()}
        for name, profiles in rivals.items():
            theirs = new.reward(profiles)
            found = paired_difference(mine[:, None], theirs[:, None], users, lambda m: m[:, 0])
            print(
                f"  {name} {theirs.mean():.3f}; PURPLE less it {found.value:+.3f} "
                f"[{found.low:+.3f}, {found.high:+.3f}]",
                flush=True,
            )


def calls(seeds: int, epochs: int, share: float) -> None:
    """Prompts that each procedure asks until held-out users have a share of what the released one gains."""
    needed: dict[str, list[float]] = {name: [] for name in PROCEDURES}
    for seed in range(seeds):
        goal = 0.0
        for name, changes in PROCEDURES.items():
            world = planted.World(600, seed)
            reward = Counted(world)
            trained(world, options(epochs, selection=0.5, **changes), reward, seed)
            untrained, *curve = reward.curve
            anew = name.startswith("released")
            if anew:
                goal = untrained.worth + share * (max(point.worth for point in curve) - untrained.worth)
            reached = next((point for point in curve if point.worth >= goal), None)
            asked = float("inf") if reached is None else reached.drawn if anew else reached.asked
            needed[name].append(asked)
            when = "never" if reached is None else f"after {asked:,.0f} calls ({reached.drawn:,} drawn)"
            print(
                f"seed {seed}, {name}: from {untrained.worth:.3f} to {max(p.worth for p in curve):.3f}; "
                f"{goal:.3f} {when}",
                flush=True,
            )
    (_, released), *rest = needed.items()
    for name, asked in rest:
        ratios = [theirs / ours for theirs, ours in zip(released, asked)]
        told = ", ".join(f"{ratio:.1f}" if ratio else "never" for ratio in ratios)
        print(f"{name}: {told} times fewer calls", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["sets", "calls"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10, help="of calls; the paper has 10")
    parser.add_argument("--share", type=float, default=0.9, help="of the released procedure's gain")
    arguments = parser.parse_args()
    if arguments.what == "sets":
        sets(arguments.seeds)
    else:
        calls(arguments.seeds, arguments.epochs, arguments.share)


if __name__ == "__main__":
    main()
