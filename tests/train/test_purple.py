"""The policy's training: exact where it can be enumerated, better than what it must beat where it cannot."""

import dataclasses
import os
import re
import signal
import subprocess
import sys
from itertools import permutations
from pathlib import Path
from typing import Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
from planted_sets import RECORDS, WIDTH, K, World

from pbr_jax.base.types import UserError
from pbr_jax.config import load
from pbr_jax.eval.significance import paired_difference
from pbr_jax.losses.policy_gradient import plackett_luce_log_prob
from pbr_jax.methods.select import Purple
from pbr_jax.methods.select import purple_training as purple
from pbr_jax.models.set_policy import from_arrays, log_scores, set_policy
from pbr_jax.options import Optimizer, Training
from pbr_jax.train.loop import TrainingTask, fit
from pbr_jax.train.selection import by_users

CONFIGS = Path(__file__).parents[2] / "configs"


def options(**changes: Any) -> Purple:
    training = Training(
        epochs=2, batch_size=16, selection=0.15, devices=1, patience=99,
        optimizer=Optimizer(name="adam", learning_rate=1e-3),
    )  # fmt: skip
    base: dict[str, Any] = dict(k=K, num_layers=1, num_heads=4, rollouts=4, training=training)
    return Purple(**(base | changes))


def policy(world: World, told: Purple) -> purple.Policy:
    return purple.Policy(set_policy(told.sizes(WIDTH)), lambda questions: world.arrays(questions, told.prior))


def fitted(world: World, told: Purple, folder: Path, reward: Any = None, seed: int = 0) -> purple.Fitted:
    owners = [f"u{i // 2}" for i in range(len(world))]
    sizes = world.sizes.tolist()
    return purple.train(
        policy(world, told),
        world.reward if reward is None else reward,
        sizes,
        owners,
        told,
        folder,
        seed=seed,
    )


def chosen(world: World, told: Purple, params: Any) -> list[purple.Action]:
    score = jax.jit(from_arrays(set_policy(told.sizes(WIDTH))))
    everybody = np.arange(len(world))
    return purple._chosen(policy(world, told), score, params, everybody, world.sizes.tolist(), K)


def gradients(model: Any, told: Purple, params: Any, batch: Any, key: jax.Array) -> Any:
    arrays = {name: jnp.asarray(value) for name, value in batch.items()}
    return jax.jit(jax.grad(purple._loss(model, told)))(params, arrays, key)


# -- a step ---------------------------------------------------------------------------------------------


THREE = World(3, 0)
THREE.sizes[:] = (3, 3, 2)  # of the last one, both are drawn
ROWS = {"row": np.arange(3, dtype=np.int32), "where": np.ones(3, bool)}


def of_two(question: int, profile: tuple[int, ...]) -> float:
    """A reward that depends on the order."""
    return float(sum((place + 1 + question) / (1 + at) ** 2 for at, place in enumerate(profile)) % 1.7)


def enumerated(params: Any, score: Any, k: int) -> jax.Array:
    """Minus the expected reward of the questions, over all orders that can be drawn."""
    arrays = THREE.arrays(np.arange(3))
    logits = log_scores(score(params, arrays), jnp.asarray(arrays["record_mask"]))
    total = jnp.float32(0)
    for question, size in enumerate(THREE.sizes.tolist()):
        orders = list(permutations(range(size), min(k, size)))
        rewards = jnp.array([of_two(question, order) for order in orders])
        log_probs = plackett_luce_log_prob(logits[question], jnp.array(orders))
        total -= jnp.exp(log_probs) @ rewards
    return total / len(THREE.sizes)


@pytest.mark.long
@pytest.mark.parametrize("learns_from", ["profiles", "singles"])
def test_gradients_are_those_of_the_enumerated_expected_reward(learns_from: Any):
    told = options(k=2, num_layers=0, dropout=0.0, rollouts=5_000, advantage="leave_one_out",
                   learns_from=learns_from)  # fmt: skip
    model = set_policy(told.sizes(WIDTH))
    score, params = from_arrays(model), model.init(jax.random.key(1))
    k = 2 if learns_from == "profiles" else 1
    act = purple._act(model, lambda asked: np.array([of_two(*one) for one in asked]), np.arange(3), told, k)
    batch = THREE.arrays(np.arange(3)) | ROWS
    key = jax.random.key(2)
    made, said = act(params, batch, key)
    found = gradients(model, told, params, batch | made, key)
    wanted = jax.jit(jax.grad(enumerated), static_argnums=(1, 2))(params, score, k)
    if learns_from == "singles":  # centred and scaled by n / (n - 1), nothing else
        assert said["profiles"] == 8
        shares = np.array([3 / 2, 3 / 2, 2 / 1]) / 3

        def scaled(params):
            arrays = THREE.arrays(np.arange(3))
            logits = log_scores(score(params, arrays), jnp.asarray(arrays["record_mask"]))
            probs = jax.nn.softmax(logits, axis=-1)
            values = np.array([[of_two(q, (place,)) for place in range(RECORDS)] for q in range(3)])
            return -(shares * jnp.where(arrays["record_mask"], probs * values, 0).sum(-1)).sum()

        wanted = jax.jit(jax.grad(scaled))(params)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, wanted)
        return
    expected = -float(enumerated(params, score, k))
    assert said["reward"] == pytest.approx(expected, abs=0.03)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, atol=0.1 * float(np.abs(other).max()) + 1e-3)


@pytest.mark.long
def test_padding_is_never_drawn_and_short_histories_shorten_no_other():
    world = World(6, 3)
    world.sizes[:] = (1, 2, 3, 5, 8, 8)
    told = options(rollouts=64, num_layers=0)
    model = set_policy(told.sizes(WIDTH))
    params = model.init(jax.random.key(0))
    asked: list[purple.Action] = []

    def reward(some):
        asked.extend(some)
        return np.zeros(len(some))

    act = purple._act(model, reward, np.arange(6), told, K)
    batch = world.arrays(np.arange(6)) | {
        "row": np.arange(6, dtype=np.int32), "where": np.arange(6) < 5,
    }  # fmt: skip
    made, said = act(params, batch, jax.random.key(0))
    assert {question for question, _ in asked} == set(range(5))  # the last one fills the batch up
    for question, profile in asked:
        assert len(profile) == min(K, world.sizes[question]) == len(set(profile))
        assert max(profile) < world.sizes[question]
    assert said["reward"] == 0
    found = gradients(model, told, params, batch | made, jax.random.key(0))
    assert all(not np.asarray(leaf).any() for leaf in jax.tree.leaves(found))  # equal rewards distill nothing


@pytest.mark.long
def test_the_first_update_of_grpo_is_reinforce_with_dropout_however_the_batch_is_divided():
    world = World(16, 4)
    told = options(dropout=0.3, loss="grpo")
    model = set_policy(told.sizes(WIDTH))
    params = model.init(jax.random.key(0))
    rows = np.array([3, 0, 15, 7, 7, 2, 1, 9])
    batch = world.arrays(rows) | {"row": rows.astype(np.int32), "where": np.ones(8, bool)}
    key = jax.random.key(5)
    act = purple._act(model, world.reward, np.arange(16), told, K)
    made, _ = act(params, batch, key)
    half = {name: value[::2] for name, value in (batch | made).items()}
    again, _ = act(params, {name: half[name] for name in batch}, key)
    np.testing.assert_array_equal(again["actions"], half["actions"])
    np.testing.assert_allclose(again["old"], half["old"], atol=1e-5)
    plain = dataclasses.replace(told, loss="reinforce")
    one, other = (gradients(model, o, params, half, key) for o in (told, plain))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), one, other)


@pytest.mark.long
def test_a_policy_that_stands_still_has_ratios_of_one_in_every_update(tmp_path: Path):
    """The ratio is between policies: both have the same units dropped."""
    world, told = World(16, 4), options(dropout=0.2, loss="grpo", updates=2)
    model = set_policy(told.sizes(WIDTH))
    score = from_arrays(model)

    def farthest(params, batch, key):
        """From 1: as `purple._loss` computes the ratios."""
        dropout, _ = jax.random.split(key)
        logits = log_scores(score(params, batch, dropout), batch["record_mask"])
        ratios = jnp.exp(plackett_luce_log_prob(logits, batch["actions"]) - batch["old"])
        return jnp.abs(jnp.where(batch["counted"], ratios - 1, 0)).max()

    def batch(rows):
        return world.arrays(rows.indices) | {"where": rows.where}

    start = model.init(jax.random.key(0))
    act = purple._act(model, world.reward, np.arange(16), told, K)
    task = TrainingTask(lambda: start, farthest, 16, batch, act=act, updates=told.updates)
    still = Training(epochs=3, batch_size=16, devices=1, optimizer=Optimizer(name="sgd", learning_rate=0.0))
    lines = fit(task, still, tmp_path, seed=0).metrics  # of the last update of every batch
    assert [line["loss"] for line in lines if "loss" in line] == pytest.approx([0.0] * 3, abs=1e-5)


# -- a training -----------------------------------------------------------------------------------------


def test_untrained_with_a_prior_the_policy_is_the_retriever(tmp_path: Path):
    world, told = World(40, 1), options(prior=1.0, num_layers=0)
    told = dataclasses.replace(told, training=dataclasses.replace(told.training, epochs=0))
    found = fitted(world, told, tmp_path)
    assert chosen(world, told, found.params) == world.similar()


def test_one_candidate_or_none_is_nothing_to_learn_from(tmp_path: Path):
    world = World(4, 1)
    world.sizes[:] = (0, 1, 1, 0)
    with pytest.raises(UserError, match="no training question has two candidate documents"):
        fitted(world, options(), tmp_path)


def steps_trained(found: purple.Fitted) -> int:
    return sum("loss" in line for line in found.metrics)


@pytest.mark.long
def test_all_epochs_are_trained_however_long_nothing_gets_better(tmp_path: Path):
    """As in the paper: the best step is kept, and none ends the training."""
    training = Purple().training
    for config in ("purple", "purple_as_released", "purple_small"):
        chosen = load(CONFIGS / f"{config}.py").config.select
        assert isinstance(chosen, Purple)
        assert chosen.training.patience is None
    told = options(num_layers=0, rollouts=2, training=dataclasses.replace(training, devices=1))
    found = fitted(World(24, 1), told, tmp_path, lambda asked: np.zeros(len(asked), np.float32))
    assert steps_trained(found) == training.epochs * -(-found.report["questions"] // training.batch_size)
    assert found.step == 0
    flat, untrained = found.notes
    assert "all worth the same" in flat
    assert "the untrained policy was best to the held-out users" in untrained


@pytest.mark.parametrize(
    ("changes", "users", "wanted"),
    [
        ({"epochs": 0}, 12, ["untrained, as training.epochs is 0"]),
        ({"epochs": 0, "selection": 0.0}, 12, ["untrained, as training.epochs is 0"]),
        ({"selection": 0.0}, 12, [r"no questions chose the step \(training.selection is 0\)"]),
        ({"selection": 0.2}, 1, [r"no questions chose the step \(too few ask"]),
        ({"selection": 0.2}, 12, []),
    ],
)
def test_notes_tell_how_the_step_was_chosen(changes: Any, users: int, wanted: list[str]):
    training = dataclasses.replace(Purple().training, **changes)
    held = len(by_users([str(i % users) for i in range(24)], training.selection, 0)[1])
    found = purple.Fitted({}, 3, [{"step": 1, "informative": 1.0}], {})
    notes = purple._notes(found, {"held_out": held, "correlation_with_start": 0.5}, training)
    assert len(notes) == len(wanted)
    assert all(re.match(*pair) for pair in zip(wanted, notes))


def test_a_training_that_changed_hardly_anything_is_doubted():
    found = purple.Fitted({}, 3, [{"step": 1, "informative": 1.0}], {})
    (note,) = purple._notes(found, {"held_out": 9, "correlation_with_start": 0.999}, Purple().training)
    assert "almost those before training" in note


def test_a_question_is_informative_where_its_own_profiles_differ():
    rewards = np.array([[1.0, 1.0, 5.0], [2.0, 2.1, 2.0], [3.0, 3.0, 3.0], [0.0, 1.0, 2.0]], np.float32)
    counted = np.array([[1, 1, 0], [1, 1, 1], [1, 1, 1], [0, 0, 0]], bool)
    assert purple._informative(rewards, counted) == 1


SCRIPT = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import jax
jax.config.update("jax_num_cpu_devices", 8)
import numpy as np
import test_purple as t
from pbr_jax.models.params_file import save_params
from pbr_jax.methods.select.purple_training import Rewards
from pbr_jax.text.prompts import Written
from pbr_jax.base.types import Candidate, Document, Example

folder, stop = Path(sys.argv[1]), int(sys.argv[2])
world = t.World(40, 2)
examples = [Example(str(i), f"u{{i // 2}}", "q", "q", "y") for i in range(40)]
candidates = [[Candidate(Document(str(j), "u", "d"), 0.0, j) for j in range(n)] for n in world.sizes]
calls = 0

def judge(examples, rankings, written):
    global calls
    calls += 1
    if calls == stop:
        os.kill(os.getpid(), signal.SIGKILL)
    asked = [(int(e.id), tuple(c.row for c in r)) for e, r in zip(examples, rankings)]
    with (folder / "asked.txt").open("a") as file:
        file.writelines(f"{{one}}\\n" for one in asked)
    return world.reward(asked)

def write(examples, rankings):
    shown = [str([candidate.row for candidate in ranking]) for ranking in rankings]
    return [Written([{{"content": text}}], 1, (0, 0)) for text in shown]

rewards = Rewards(judge, write, examples, candidates, folder / "rewards.jsonl")
told = t.options(dropout=0.2, loss="grpo", updates=2)
training = t.dataclasses.replace(told.training, epochs=3, checkpoint_every=2, evaluate_every=3)
found = t.fitted(world, t.dataclasses.replace(told, training=training), folder, rewards)
save_params(found.params, folder / "params.safetensors")
"""


@pytest.mark.long
def test_killed_anywhere_it_ends_the_same_and_asks_nothing_twice(tmp_path: Path):
    script = SCRIPT.format(tests=str(Path(__file__).parent))

    def started(folder: Path, stop: int) -> int:
        folder.mkdir(exist_ok=True)
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-c", script, str(folder), str(stop)]
        return subprocess.run(command, env=environment, check=False).returncode

    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert started(whole, 0) == 0
    for stop in (3, 4):
        assert started(cut, stop) == -signal.SIGKILL
    assert started(cut, 0) == 0
    for name in ("params.safetensors", "metrics.jsonl"):
        assert (cut / name).read_bytes() == (whole / name).read_bytes()
    asked = (cut / "asked.txt").read_text().splitlines()
    assert len(asked) == len(set(asked)) > 100
    assert set(asked) == set((whole / "asked.txt").read_text().splitlines())


@pytest.mark.long
def test_it_finds_sets_that_are_better_than_the_best_singles(tmp_path: Path):
    """Against the most similar records, and the best single ones by their true worth; new questions."""
    world, other = World(300, 0), World(300, 100)
    told = options(num_layers=2, rollouts=8, dropout=0.0, fusion="residual_attention")
    told = dataclasses.replace(told, training=dataclasses.replace(told.training, epochs=8))
    found = fitted(world, told, tmp_path, seed=0)
    mine = other.reward(chosen(other, told, found.params))
    users = [str(i) for i in range(len(other))]
    for rival in (other.similar(), other.singles()):
        difference = paired_difference(mine[:, None], other.reward(rival)[:, None], users, lambda m: m[:, 0])
        assert difference.low > 0
    best = other.reward(other.best())
    assert mine.mean() > 0.88 * best.mean()
    print(f"gap to the best sets: {best.mean() - mine.mean():.3f} of {best.mean():.3f}")
