"""PURPLE where the truth is known: what its sets are worth, and how many prompts it asks for that.

    python benchmarks/purple.py sets   # against similar and single records, and the best sets, three seeds
    python benchmarks/purple.py calls  # against the released procedure: prompts asked for the same gain
    python benchmarks/purple.py limits CONFIG [--FIELD VALUE ...]  # what a real training's rewards can teach

In the first two the world is that of the tests (tests/train/planted_sets.py): rewards in closed form, no
language model is asked; three of at most eight records are chosen, which help, repeat each other or harm. A
call stands for one prompt that a language model would score; all have the same number of records.

`limits` takes the rewards of single records of a training that has run (`select.learns_from singles`), in
folds over its users: what is a choice worth to users who were not learned from, by policies of several sizes
that learned from several numbers of questions, and by regressions on pooled states? Differences are from the
retriever's first.
"""

import argparse
import dataclasses
import importlib
import json
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
    from pbr_jax.methods.select import purple_training as purple
    from pbr_jax.models.set_policy import set_policy

    policy = purple.Policy(set_policy(told.sizes(planted.WIDTH)), world.arrays)
    owners = [f"u{i // 2}" for i in range(len(world))]
    with tempfile.TemporaryDirectory() as folder:
        sizes = world.sizes.tolist()
        return policy, purple.train(policy, reward, sizes, owners, told, Path(folder), seed=seed).params


def sets(seeds: int) -> None:
    """Mean rewards of new questions, with paired 95 % intervals against each rival."""
    import jax

    from pbr_jax.eval.significance import paired_difference
    from pbr_jax.methods.select import purple_training as purple
    from pbr_jax.models.set_policy import from_arrays

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


class Table:
    """Questions of a real training whose candidates all have a reward: a world as `planted.World`.

    `worth` [n r], NaN beside candidates; `features` [n r f] of pairs, for regressions.
    """

    def __init__(self, words: Sequence[str], rewards: Path | None) -> None:
        from pbr_jax.cli import flags
        from pbr_jax.experiment.plan import Plan
        from pbr_jax.graph import walk
        from pbr_jax.methods.select import purple as propensities
        from pbr_jax.stages.rankings import drop_leaks

        _, config = flags.config(list(words), flags.RUN)
        node: Any = next(node for node in walk(Plan(config).last) if node.name == "purple")
        self.told, asked = node._options[:2]
        found = {name: need.value for name, need in node.needs.items()}
        store, records = found["store"], found["records"]
        examples = list(asked.read(store))
        ranked = list(drop_leaks(store, examples, found["ranked"].read(store, examples)))
        lines = (rewards or node.artefact.path / "rewards.jsonl").read_text().splitlines()
        known = {(x["id"], x["profile"][0]): x["value"] for x in map(json.loads, lines)}
        whole = [
            q
            for q, r in enumerate(ranked)
            if len(r) > 1 and all((examples[q].id, i) in known for i in range(len(r)))
        ]
        self.users = [examples[q].user_id for q in whole]
        self.sizes = np.array([len(ranked[q]) for q in whole])
        candidates = int(self.sizes.max())
        self.worth = np.full((len(whole), candidates), np.nan)
        queries = list(found["queries"].read(np.array(whole)))
        rows = [[c.row for c in ranked[q]] for q in whole]
        states = [records.read(of) for of in rows]
        self._questions = [
            propensities.Question(query, of, [c.score for c in ranked[q]])
            for q, query, of in zip(whole, queries, states, strict=True)
        ]
        for i, q in enumerate(whole):
            self.worth[i, : self.sizes[i]] = [known[examples[q].id, place] for place in range(self.sizes[i])]
        self.width = found["encoder"].dim
        self._shape = propensities.shape_of(max(map(len, queries)), candidates, self.width)
        self._arrays = propensities.arrays
        self.features = np.zeros((len(whole), candidates, 2 * self.width + 3), np.float32)
        for features, one in zip(self.features, self._questions, strict=True):
            features[: len(one.records)] = _features(one)

    def __len__(self) -> int:
        return len(self.users)

    def arrays(self, questions: np.ndarray, prior: float) -> dict[str, np.ndarray]:
        return self._arrays([self._questions[int(q)] for q in questions], self._shape, prior)

    def reward(self, asked: Sequence[Any]) -> np.ndarray:
        return np.array([self.worth[q, profile[0]] for q, profile in asked], np.float32)


def _features(question: Any) -> np.ndarray:
    """Of each candidate [r f]: products and distances of pooled states; score, rank, log of the length."""
    query = np.asarray(question.query, np.float32).mean(0)
    pooled = np.stack([np.asarray(record, np.float32).mean(0) for record in question.records])
    lengths = np.log([len(record) for record in question.records])
    plain = np.stack([question.scores, np.arange(len(pooled)), lengths], axis=1)
    return np.concatenate([query * pooled, np.abs(query - pooled), plain], axis=1)


def _by_policy(table: Table, learned: np.ndarray, tested: np.ndarray, told: Any, seed: int) -> np.ndarray:
    """Places that a policy chooses for tested questions."""
    import jax

    from pbr_jax.methods.select import purple_training as purple
    from pbr_jax.models.set_policy import from_arrays, set_policy

    def policy(some: np.ndarray) -> purple.Policy:
        model = set_policy(told.sizes(table.width))
        return purple.Policy(model, lambda questions: table.arrays(some[questions], told.prior))

    def reward(asked: Sequence[Any]) -> np.ndarray:
        return table.reward([(int(learned[q]), profile) for q, profile in asked])

    with tempfile.TemporaryDirectory() as folder:
        sizes, owners = table.sizes[learned].tolist(), [table.users[q] for q in learned]
        fitted = purple.train(policy(learned), reward, sizes, owners, told, Path(folder), seed=seed)
    there, everybody = policy(tested), np.arange(len(tested))
    score = jax.jit(from_arrays(there.model))
    chosen = purple._chosen(there, score, fitted.params, everybody, table.sizes[tested].tolist(), 1)
    return np.array([profile[0] for _, profile in chosen])


def _by_regression(table: Table, learned: np.ndarray, tested: np.ndarray, model: Any) -> np.ndarray:
    """Places that a regression of the reward, less its mean over the question's candidates, puts first."""
    there = np.isfinite(table.worth)
    wanted = table.worth - np.nanmean(table.worth, axis=1, keepdims=True)
    fitted = model.fit(table.features[learned][there[learned]], wanted[learned][there[learned]])
    shape = table.features[tested].shape
    found = fitted.predict(table.features[tested].reshape(-1, shape[-1])).reshape(shape[:2])
    return np.where(there[tested], found, -np.inf).argmax(1)


def limits(words: Sequence[str], rewards: Path | None, folds: int, epochs: int) -> None:
    """Worth of the choices for users that were not learned from, less that of the retriever's first."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from pbr_jax.eval.significance import paired_difference

    table = Table(words, rewards)
    users = sorted(set(table.users))
    of = {user: i % folds for i, user in enumerate(np.random.default_rng(0).permutation(users))}
    fold = np.array([of[user] for user in table.users])

    def told(worth: np.ndarray, name: str) -> None:
        ours, first = worth[:, None], table.worth[:, :1]
        found = paired_difference(ours, first, table.users, lambda m: m[:, 0])
        print(f"{name}: {found.value:+.4f} [{found.low:+.4f}, {found.high:+.4f}]", flush=True)

    print(f"{len(table)} questions of {len(users)} users; first {table.worth[:, 0].mean():.4f}", flush=True)
    told(np.nanmean(table.worth, axis=1), "random choice")
    told(np.nanmax(table.worth, axis=1), "best: a ceiling")
    training = dataclasses.replace(table.told.training, epochs=epochs, devices=1)
    base = dataclasses.replace(table.told, training=training)
    rules: dict[str, Any] = {
        "ridge": lambda: make_pipeline(StandardScaler(), RidgeCV(np.logspace(2, 6, 9))),
        "gradient boosting": lambda: HistGradientBoostingRegressor(max_iter=200, learning_rate=0.03),
        "policy": {},
        "policy, a third of the questions": {},
        "policy, no layers": {"num_layers": 0},
        "policy, the paper's fusion": {"fusion": "cross_attention"},
        "policy, from the retriever's scores": {"prior": 1.0},
    }
    for name, rule in rules.items():
        worth, fits = np.zeros(len(table)), []
        for held in range(folds):
            learned, tested = np.flatnonzero(fold != held), np.flatnonzero(fold == held)
            learned = learned[::3] if "third" in name else learned
            if callable(rule):
                chosen, again = (_by_regression(table, learned, some, rule()) for some in (tested, learned))
            else:
                with_changes = dataclasses.replace(base, **rule)
                chosen = _by_policy(table, learned, tested, with_changes, held)
                again = None
            worth[tested] = table.worth[tested, chosen]
            if again is not None:
                fits.append(float((table.worth[learned, again] - table.worth[learned, 0]).mean()))
        told(worth, name + (f" (on what it learned from {np.mean(fits):+.4f})" if fits else ""))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["sets", "calls", "limits"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10, help="of calls and limits; the paper has 10")
    parser.add_argument("--share", type=float, default=0.9, help="of the released procedure's gain")
    parser.add_argument("--rewards", type=Path, help="of limits: a training's rewards.jsonl, if not finished")
    parser.add_argument("--folds", type=int, default=5, help="of limits")
    arguments, words = parser.parse_known_args()
    if arguments.what == "limits":
        limits(words, arguments.rewards, arguments.folds, arguments.epochs)
    elif arguments.what == "sets":
        sets(arguments.seeds)
    else:
        calls(arguments.seeds, arguments.epochs, arguments.share)


if __name__ == "__main__":
    main()
