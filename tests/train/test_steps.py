"""The training step and its optimizers, against torch and against itself on other layouts."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from pbr_jax.config import Optimizer
from pbr_jax.losses import masked_mean
from pbr_jax.train import sharding, steps
from pbr_jax.train.optimizers import optimizer, schedule

GENERATOR = np.random.default_rng(5)
INPUTS = GENERATOR.normal(size=(16, 3)).astype(np.float32)
TARGETS = GENERATOR.normal(size=(16,)).astype(np.float32)
START = {
    "body": {"kernel": GENERATOR.normal(size=(3, 4)).astype(np.float32)},
    "head": GENERATOR.normal(size=4).astype(np.float32),
}


def params() -> dict[str, Any]:
    return jax.tree.map(jnp.asarray, START)


def loss(params, batch, key):
    found = jnp.tanh(batch["inputs"] @ params["body"]["kernel"]) @ params["head"]
    return jnp.square(found - batch["targets"].astype(found.dtype)).mean()


def masked_loss(params, batch, key):
    found = jnp.tanh(batch["inputs"] @ params["body"]["kernel"]) @ params["head"]
    return masked_mean(jnp.square(found - batch["targets"]), batch["where"])


@pytest.mark.long
def test_a_part_without_rows_that_count_adds_nothing_though_its_mean_is_0_over_0():
    where = np.arange(16) < 3  # every fourth row makes a part: the last has none

    def bare(params: Any, batch: dict[str, Any], key: Any) -> Any:
        found = jnp.tanh(batch["inputs"] @ params["body"]["kernel"]) @ params["head"]
        squares = jnp.square(found - batch["targets"])
        return jnp.where(batch["where"], squares, 0).sum() / batch["where"].sum()

    batch: Any = {"inputs": jnp.asarray(INPUTS), "targets": jnp.asarray(TARGETS), "where": jnp.asarray(where)}
    whole, parts = (
        steps._gradients(jax.value_and_grad(bare), params(), batch, jax.random.key(0), n) for n in (1, 4)
    )
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    rule = optimizer(Optimizer(), 1, ())
    mesh = sharding.data_mesh(1)
    for division in (steps.Division(1, 4), steps.Division(4, 1)):
        step = steps.compiled(bare, rule, mesh, division)
        now, metrics = step(steps.create(params(), rule, sharding.replicated(mesh)), batch, jax.random.key(0))
        assert float(metrics["loss"]) == pytest.approx(float(whole[0]), rel=1e-5)
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(now.params))


def run(
    config: Optimizer,
    count: int = 4,
    devices: int = 1,
    where: np.ndarray | None = None,
    heads: tuple[str, ...] = (),
    **options: Any,
):
    mesh = sharding.data_mesh(devices)
    rule = optimizer(config, count, heads)
    step = steps.compiled(loss if where is None else masked_loss, rule, mesh, **options)
    now = steps.create(params(), rule, sharding.replicated(mesh))
    arrays = {"inputs": INPUTS, "targets": TARGETS}
    batch = sharding.put(arrays if where is None else arrays | {"where": where}, mesh)
    metrics = {}
    for _ in range(count):
        now, metrics = step(now, batch, jax.random.key(0))
    return now, metrics


def torch_run(make: Any, count: int = 4, clip: float | None = None, rates: Any = None) -> dict[str, Any]:
    weights = {"kernel": START["body"]["kernel"], "head": START["head"]}
    leaves = {name: torch.tensor(value, requires_grad=True) for name, value in weights.items()}
    rule = make(list(leaves.values()))
    for number in range(count):
        if rates is not None:
            rule.param_groups[0]["lr"] = float(rates(number))
        rule.zero_grad()
        found = torch.tanh(torch.tensor(INPUTS) @ leaves["kernel"]) @ leaves["head"]
        (found - torch.tensor(TARGETS)).square().mean().backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(leaves.values(), clip)
        rule.step()
    return {name: leaf.detach().numpy() for name, leaf in leaves.items()}


OPTIMIZERS: dict[str, tuple[Optimizer, Any]] = {
    "adam with L2": (
        Optimizer(name="adam", learning_rate=0.02, weight_decay=0.1, clip=None),
        lambda p: torch.optim.Adam(p, lr=0.02, weight_decay=0.1),
    ),
    "adamw": (
        Optimizer(name="adamw", learning_rate=0.02, weight_decay=0.3, clip=None),
        lambda p: torch.optim.AdamW(p, lr=0.02, weight_decay=0.3),
    ),
    "sgd, clipped": (
        Optimizer(name="sgd", learning_rate=0.1, clip=0.2),
        lambda p: torch.optim.SGD(p, lr=0.1),
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_equal_torch(name):
    config, make = OPTIMIZERS[name]
    now, _ = run(config)
    wanted = torch_run(make, clip=config.clip)
    np.testing.assert_allclose(now.params["body"]["kernel"], wanted["kernel"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(now.params["head"], wanted["head"], rtol=1e-4, atol=1e-5)


def test_the_learning_rate_follows_its_schedule():
    linear = schedule(Optimizer(learning_rate=2.0, schedule="linear", warmup=0.2), 10)
    np.testing.assert_allclose(
        np.asarray([linear(i) for i in range(11)]), [0, 1, *np.linspace(2, 0, 9)], atol=1e-6
    )
    cosine = schedule(Optimizer(learning_rate=2.0, schedule="cosine"), 10)
    wanted = [1 + np.cos(np.pi * i / 10) for i in range(11)]
    np.testing.assert_allclose(np.asarray([cosine(i) for i in range(11)]), wanted, atol=1e-6)
    assert all(schedule(Optimizer(learning_rate=2.0), 10)(i) == 2.0 for i in range(10))
    config = Optimizer(name="sgd", learning_rate=0.1, schedule="linear", warmup=0.5, clip=None)
    now, _ = run(config)
    rates = schedule(config, 4)
    wanted = torch_run(lambda p: torch.optim.SGD(p, lr=0.0), rates=rates)
    np.testing.assert_allclose(now.params["head"], wanted["head"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_heads_have_a_rate_of_their_own_and_are_clipped_with_the_rest(name):
    """As torch's parameter groups."""
    config, make = OPTIMIZERS[name]
    config = dataclasses.replace(config, head_learning_rate=0.005)
    now, _ = run(config, heads=("head",))

    def groups(leaves):
        rule = make(leaves)
        options = {**rule.defaults, "lr": 0.005}
        options.pop("params", None)
        del rule.param_groups[0]["params"][1]
        rule.add_param_group({**options, "params": [leaves[1]]})
        return rule

    wanted = torch_run(groups, clip=config.clip)
    np.testing.assert_allclose(now.params["body"]["kernel"], wanted["kernel"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(now.params["head"], wanted["head"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("real", [None, 16, 5, 1, 0])
@pytest.mark.parametrize(
    ("devices", "division"),
    [(1, steps.Division(1, 4)), (4, steps.Division(1, 4)), (1, steps.Division(2)), (1, steps.Division(4, 2))],
)
def test_parts_and_lanes_give_the_gradient_of_the_whole(devices, division, real):
    config = Optimizer(name="sgd", learning_rate=0.01)  # 0.1 learns a single row: its loss is rounding
    where = None if real is None else np.arange(16) < real
    whole, metrics = run(config, where=where)
    parts, partial = run(config, division=division, devices=devices, where=where)
    for a, b in zip(jax.tree.leaves(whole.params), jax.tree.leaves(parts.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(metrics["loss"], partial["loss"], rtol=1e-5)
    np.testing.assert_allclose(metrics["gradient_norm"], partial["gradient_norm"], rtol=1e-5)


def test_bfloat16_computes_narrow_and_keeps_wide():
    _, exact = run(Optimizer(name="sgd", learning_rate=0.01))
    now, metrics = run(Optimizer(name="sgd", learning_rate=0.01), dtype=jnp.bfloat16)
    assert {leaf.dtype for leaf in jax.tree.leaves(now.params)} == {jnp.dtype(jnp.float32)}
    assert metrics["loss"] != exact["loss"]
    np.testing.assert_allclose(metrics["loss"], exact["loss"], rtol=0.03)


@pytest.mark.parametrize("lanes", [1, 2])
def test_one_compilation_and_the_old_state_is_freed(lanes):
    traces = 0

    def counted(params, batch, key):
        nonlocal traces
        traces += 1
        return loss(params, batch, key)

    mesh, rule = sharding.data_mesh(8 if lanes == 1 else 1), optimizer(Optimizer(), 10)
    step = steps.compiled(counted, rule, mesh, steps.Division(lanes))
    now = steps.create(params(), rule, sharding.replicated(mesh))
    batch = sharding.put({"inputs": INPUTS, "targets": TARGETS}, mesh)
    for _ in range(3):
        before = now
        now, _ = step(now, batch, jax.random.key(0))
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before))
    assert traces == 1
    assert batch["inputs"].addressable_shards[0].data.shape == (2 if lanes == 1 else 16, 3)
    assert int(now.step) == 3
