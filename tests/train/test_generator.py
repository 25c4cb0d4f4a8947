"""Tuning the generator: against torch and PEFT, many devices, kills, users who are held out."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import save_llama, save_t5

from pbr_jax.base.types import UserError
from pbr_jax.config import Optimizer, Training, TunedGenerator
from pbr_jax.models import adapter_file, causal_lm, lora
from pbr_jax.train import generator, loop, sharding, steps
from pbr_jax.train.batches import Batches
from pbr_jax.train.generator import Pair
from pbr_jax.train.optimizers import optimizer

torch: Any = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")

# PEFT asks transformers by an old name.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    save_llama(folder)
    return folder


@pytest.fixture(scope="module")
def flan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("t5")
    save_t5(folder)
    return folder


def made_up(count: int, users: int = 6, seed: int = 0, alike: int = 0) -> list[Pair]:
    """Pairs of several lengths; targets are counted up from 5, so there is a rule. Prompts begin alike."""
    draw = np.random.default_rng(seed)
    found, begun = [], draw.integers(2, 97, alike).tolist()
    for i in range(count):
        prompt = begun + draw.integers(2, 97, draw.integers(3, 40)).tolist()
        target = [5 + j for j in range(draw.integers(1, 6))]
        found.append(Pair(tuple(prompt), (*target, 1), f"u{i % users}"))
    return found


def options(**fields: Any) -> TunedGenerator:
    training = {"epochs": 1, "batch_size": 4, "devices": 1, "selection": 0.0}
    optimizer = Optimizer(name="adamw", learning_rate=fields.pop("learning_rate", 1e-2), clip=None)
    training |= {name: fields.pop(name) for name in list(fields) if hasattr(Training(), name)}
    base = {"method": "lora", "rank": 4, "alpha": 8.0, "dropout": 0.0}
    return TunedGenerator(**{**base, **fields}, training=Training(**{"optimizer": optimizer, **training}))


def family(path: Path, told: TunedGenerator, tensor_parallel: int = 1) -> tuple[generator.Family, Any]:
    mesh = sharding.data_mesh(told.training.devices, tensor_parallel)
    make = (
        generator.t5_family if (path / "config.json").read_text().count('"t5"') else generator.causal_family
    )
    return make(path, told, mesh), mesh


def arrays(found: generator.Family, pairs: list[Pair]) -> dict[str, Any]:
    return {name: jnp.asarray(x) for name, x in found.arrays(pairs).items()}


def torch_loss(model: Any, pairs: list[Pair]) -> Any:
    """The mean over pairs of the mean over a target's tokens, one pair at a time."""
    losses = []
    for pair in pairs:
        ids = torch.tensor([pair.prompt + pair.target])
        labels = torch.tensor([[-100] * len(pair.prompt) + list(pair.target)])
        losses.append(model(input_ids=ids, labels=labels).loss)
    return torch.stack(losses).mean()


def t5_torch_loss(model: Any, pairs: list[Pair]) -> Any:
    return torch.stack(
        [
            model(input_ids=torch.tensor([pair.prompt]), labels=torch.tensor([pair.target])).loss
            for pair in pairs
        ]
    ).mean()


def with_peft(path: Path, adapter: Any, modules: Any, folder: Path, kind: Any, task: str) -> Any:
    peft = pytest.importorskip("peft")
    adapter_file.write(folder, adapter, modules, rank=4, alpha=8.0, dropout=0.0, base="tiny", task=task)
    return peft.PeftModel.from_pretrained(kind.from_pretrained(path), str(folder), is_trainable=True)


@pytest.mark.long
@pytest.mark.parametrize(("kind", "alike"), [("llama", 0), ("llama", 20), ("flan", 0)])
def test_loss_gradients_and_a_step_equal_torch_with_peft(
    kind: str, alike: int, tmp_path: Path, request: pytest.FixtureRequest
):
    path: Path = request.getfixturevalue(kind)
    told, pairs = options(), made_up(4, alike=alike)
    found, _ = family(path, told)
    base = found.params()
    start = lora.init(jax.random.key(0), base, told.targets, 4)
    noise = iter(jax.random.split(jax.random.key(1), 99))
    start = jax.tree.map(lambda x: x + 0.2 * jax.random.normal(next(noise), x.shape), start)
    causal = kind == "llama"
    torch_kind = transformers.LlamaForCausalLM if causal else transformers.T5ForConditionalGeneration
    task = "CAUSAL_LM" if causal else "SEQ_2_SEQ_LM"
    model = with_peft(path, start, found.modules, tmp_path / "start", torch_kind, task).train()
    wanted = (torch_loss if causal else t5_torch_loss)(model, pairs)
    wanted.backward()
    loss = generator._loss(found, 2.0)
    batch = arrays(found, pairs) | {"where": jnp.ones(4, bool)}
    assert "shared" not in batch if not alike else batch["shared"].shape == (4, 16)

    def of(adapter: Any) -> Any:
        return loss({"adapter": adapter, "base": base}, batch, jax.random.key(0))

    value, gradients = jax.jit(jax.value_and_grad(of))(start)
    assert float(value) == pytest.approx(float(wanted.detach()), abs=1e-4)
    moved = {n: p for n, p in model.named_parameters() if p.requires_grad}
    adapter_file.write(
        tmp_path / "g", gradients, found.modules, rank=4, alpha=8.0, dropout=0.0, base="", task=task
    )
    from safetensors.numpy import load_file

    ours = load_file(tmp_path / "g" / adapter_file.WEIGHTS)
    for name, parameter in moved.items():
        own = ours[name.replace(".default", "")]
        np.testing.assert_allclose(own, parameter.grad.numpy(), atol=1e-4 * np.abs(own).max() + 1e-6)

    rule = torch.optim.AdamW(moved.values(), lr=1e-2, weight_decay=0.0)
    rule.step()
    from pbr_jax.train.optimizers import optimizer

    mine = optimizer(told.training.optimizer, 1)
    updates, _ = mine.update(gradients, mine.init(start), start)
    stepped = jax.tree.map(lambda x, y: x + y, start, updates)
    adapter_file.write(
        tmp_path / "s", stepped, found.modules, rank=4, alpha=8.0, dropout=0.0, base="", task=task
    )
    after = load_file(tmp_path / "s" / adapter_file.WEIGHTS)
    for name, parameter in moved.items():
        np.testing.assert_allclose(after[name.replace(".default", "")], parameter.detach().numpy(), atol=1e-4)


@pytest.mark.long
def test_all_of_t5_is_trained_as_torch_trains_it(flan: Path):
    told, pairs = options(method="full"), made_up(4)
    found, _ = family(flan, told)
    model = transformers.T5ForConditionalGeneration.from_pretrained(flan).train()
    wanted = t5_torch_loss(model, pairs)
    wanted.backward()
    loss = generator._loss(found, 0.0)
    batch = arrays(found, pairs) | {"where": jnp.ones(4, bool)}
    value, gradients = jax.jit(jax.value_and_grad(lambda p: loss({"base": p}, batch, jax.random.key(0))))(
        found.params()
    )
    assert float(value) == pytest.approx(float(wanted.detach()), abs=1e-4)
    query = gradients["encoder"]["layers"]["query"]["kernel"][1]
    torch_query = model.encoder.block[1].layer[0].SelfAttention.q.weight.grad.numpy()
    np.testing.assert_allclose(query, torch_query, atol=1e-4 * np.abs(torch_query).max())
    shared = model.shared.weight.grad.numpy()
    np.testing.assert_allclose(gradients["embedding"], shared, atol=1e-4 * np.abs(shared).max())


@pytest.mark.long
@pytest.mark.parametrize("alike", [0, 20])
def test_padding_and_who_else_is_in_a_batch_change_no_loss(llama: Path, alike: int):
    told, pairs = options(), made_up(4, alike=alike)
    found, _ = family(llama, told)
    base = found.params()
    together = np.asarray(jax.jit(lambda b: found.nll(base, b, None))(arrays(found, pairs)))
    for pair, value in zip(pairs, together):
        alone = found.nll(base, arrays(found, [pair]), None)
        np.testing.assert_allclose(alone[0], value, atol=1e-5)


def train(
    path: Path, told: TunedGenerator, folder: Path, pairs: list[Pair] | None = None, tensor_parallel: int = 1
):
    found, mesh = family(path, told, tensor_parallel)
    return generator.train(found, made_up(40) if pairs is None else pairs, told, folder, seed=0, mesh=mesh)


@pytest.mark.long
@pytest.mark.parametrize("method", ["lora", "full"])
def test_it_learns_a_rule_and_says_what_it_learned_from(llama: Path, tmp_path: Path, method: str):
    told = options(method=method, epochs=8, selection=0.2)
    fitted = train(llama, told, tmp_path, made_up(200, users=40))
    lines = [line for line in fitted.metrics if "selection" in line]
    assert lines[-1]["selection"] > lines[0]["selection"] + 0.3
    assert (fitted.report["users"], fitted.report["pairs"], fitted.report["held_out"]) == (32, 160, 40)
    found = fitted.report["membership"]
    assert found["before"]["members_nll"] > found["after"]["members_nll"]
    assert 0.3 < found["before"]["auc"] < 0.7


@pytest.mark.long
def test_a_base_that_devices_share_and_a_batch_that_they_divide_give_the_same(llama: Path, tmp_path: Path):
    """8 devices for the rows, or 2 x 2 with the base divided, or parts one by one, as one device; dropout
    and beginnings that rows share included."""
    pairs = made_up(40, alike=20)
    one = train(llama, options(dropout=0.2, batch_size=8), tmp_path / "1", pairs)
    many = train(llama, options(dropout=0.2, batch_size=8, devices=8), tmp_path / "8", pairs)
    shared = train(llama, options(dropout=0.2, batch_size=8, devices=4), tmp_path / "4", pairs, 2)
    parts = train(llama, options(dropout=0.2, batch_size=8, accumulate=4), tmp_path / "parts", pairs)
    for other in (many, shared, parts):
        for a, b in zip(jax.tree.leaves(one.params), jax.tree.leaves(other.params), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)


def shares(tree: Any) -> list[float]:
    """Of each leaf of more than one number, the largest share that any device has."""
    return [
        max(shard.data.size for shard in leaf.addressable_shards) / leaf.size
        for leaf in jax.tree.leaves(tree)
        if leaf.size > 1
    ]


@pytest.mark.long
@pytest.mark.parametrize(("kind", "accumulate"), [("llama", 1), ("llama", 2), ("flan", 1)])
def test_all_weights_are_trained_in_shares_and_go_on_elsewhere(
    kind: str, accumulate: int, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: Any
):
    """On 8 devices, 4 of which share a model: parameters and the optimizer's state; then on 2, and on 1."""
    path: Path = request.getfixturevalue(kind)
    saved, save, pairs = list[Any](), loop.Checkpoints.save, made_up(24, alike=20)

    def saving(self: Any, step: int, state: Any, *more: Any) -> None:
        saved.append((shares(state), state.params))
        save(self, step, state, *more)

    monkeypatch.setattr(loop.Checkpoints, "save", saving)
    told: dict[str, Any] = {"method": "full", "batch_size": 8, "learning_rate": 1e-3, "epochs": 2}
    one = train(path, options(**told), tmp_path / "1", pairs)
    saved.clear()
    eight = train(path, options(**told, devices=8, accumulate=accumulate), tmp_path / "8", pairs, 4)
    assert max(max(found) for found, _ in saved) <= 1 / 3
    assert len(saved[0][0]) == 3 * len(jax.tree.leaves(one.params))  # with both moments
    half = {**told, "epochs": 1}
    train(path, options(**half, devices=8), tmp_path / "moved", pairs, 4)
    monkeypatch.setattr(loop.Checkpoints, "save", save)
    moved = train(path, options(**told, devices=2), tmp_path / "moved", pairs, 2)
    # Adam divides by the root of a mean of squares: where a gradient is near 0, rounding moves a weight more.
    for other in (eight, moved):
        for a, b in zip(jax.tree.leaves(one.params), jax.tree.leaves(other.params), strict=True):
            np.testing.assert_allclose(a, b, atol=5e-5)  # a step moves a weight by up to 1e-3


@pytest.mark.long
@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_step_gathers_weights_and_nothing_that_was_computed_of_its_rows(
    llama: Path, method: str, monkeypatch: Any
):
    """As for 4 x 2 accelerators, parameters fully divided: tokens stay where their rows are."""
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    told = options(method=method, devices=8)
    found, mesh = family(llama, told, 2)
    start, frozen, scale = generator._begun(found, told, 0)
    rule, loss = optimizer(told.training.optimizer, 10, ()), generator._loss(found, scale)
    shapes = steps.shapes(start(), rule)
    layout = sharding.fully_divided(shapes, found.rules, mesh) if method == "full" else None
    state = steps.laid_out(shapes, layout or sharding.replicated(mesh))
    batch = {**arrays(found, made_up(16, alike=72)), "where": jnp.ones(16, bool)}
    step = steps.compiled(loss, rule, mesh, layout=layout)
    compiled = jax.jit(step).lower(state, batch, jax.random.key(0), frozen).compile()
    (b, t), text = batch["ids"].shape, compiled.as_text() or ""
    gathers = re.findall(r" = f32\[([\d,]+)\]\S* all-gather\(", text)
    shapes = [tuple(map(int, shape.split(","))) for shape in gathers]
    assert (24, 32) in shapes  # the half of a gate that a device multiplies with
    assert not [shape for shape in shapes if b * t in shape or shape[:2] == (b, t)]


def test_a_frozen_base_lies_in_shares(llama: Path):
    found, _ = family(llama, options(devices=8), 2)
    assert shares(found.params()) == [1 / 8] * len(jax.tree.leaves(found.params()))


@pytest.mark.long
def test_t5s_dropout_does_not_know_how_a_batch_is_divided(flan: Path, tmp_path: Path):
    pairs = made_up(16)
    one = train(flan, options(dropout=0.3, batch_size=8), tmp_path / "1", pairs)
    parts = train(flan, options(dropout=0.3, batch_size=8, accumulate=4), tmp_path / "parts", pairs)
    none = train(flan, options(batch_size=8), tmp_path / "none", pairs)
    leaves = [jax.tree.leaves(fitted.params) for fitted in (one, parts, none)]
    for a, b in zip(*leaves[:2], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    assert any(np.abs(a - b).max() > 1e-4 for a, b in zip(leaves[0], leaves[2], strict=True))


@pytest.mark.long
def test_only_the_adapter_is_in_gradients_states_and_checkpoints(llama: Path, tmp_path: Path):
    fitted = train(llama, options(), tmp_path)
    assert set(fitted.params) == {"adapter"}
    written = sum(f.stat().st_size for f in (tmp_path / "checkpoints").rglob("*") if f.is_file())
    weights = sum(x.nbytes for x in jax.tree.leaves(causal_lm.load(llama)[1]))
    assert written < weights


def test_few_programs_are_compiled(llama: Path):
    """Widths are few, whatever lengths there are."""
    found, _ = family(llama, options())
    shapes = {
        tuple(sorted((name, x.shape) for name, x in found.arrays([pair]).items()))
        for pair in made_up(500, seed=3)
    }
    assert len(shapes) <= 4


def test_an_epoch_of_prompts_of_two_kinds_takes_few_programs():
    """As a generator's are by default: each question without and with documents, of real lengths."""
    draw = np.random.default_rng(0)
    kinds = [([7] * 16 + [8] * 24, 50, 110), ([7] * 16 + [9] * 40, 140, 320)]
    pairs = [
        Pair(
            (*begun, *draw.integers(10, 90, draw.integers(low, high)).tolist()),
            (5,) * int(draw.integers(12, 62)),
            "u",
        )
        for _ in range(270)
        for begun, low, high in kinds
    ]
    lengths = tuple(len(pair.prompt) + len(pair.target) for pair in pairs)
    batches = Batches(len(pairs), 8, 0, lengths)
    made = [
        generator._causal_arrays([pairs[i] for i in batches.rows(step).indices])
        for step in range(batches.steps)
    ]
    assert len({tuple((name, x.shape) for name, x in arrays.items()) for arrays in made}) <= 14
    padded = sum(arrays["ids"].size for arrays in made)
    real = sum(int((arrays["positions"] >= 0).sum()) for arrays in made)
    assert real / padded > 0.85


def test_rows_share_no_beginning_where_long_texts_are_read_otherwise():
    pairs = made_up(4, alike=20)
    assert generator._causal_arrays(pairs)["shared"].tolist() == [list(pairs[0].prompt[:16])] * 4
    longest = max(len(pair.prompt + pair.target) for pair in pairs) - 1
    assert "shared" in generator._causal_arrays(pairs, longest)
    assert "shared" not in generator._causal_arrays(pairs, longest - 1)
    alike = [Pair(pair.prompt[:20], pair.target, pair.user_id) for pair in pairs]
    assert generator._causal_arrays(alike)["shared"].shape == (
        4,
        16,
    )  # a prompt's last token is nobody else's


def test_users_who_choose_the_step_teach_nothing(llama: Path, tmp_path: Path):
    pairs = made_up(60, users=20)
    learned, held = generator._divided(pairs, 0.2, seed=1)
    assert not {p.user_id for p in learned} & {p.user_id for p in held}
    assert len({p.user_id for p in held}) == 8
    assert sorted(learned + held) == sorted(pairs)
    none = generator._divided(made_up(12, users=4), 0.2, seed=1)
    assert (len(none[0]), none[1]) == (12, [])


@pytest.mark.parametrize(
    ("users", "share", "held"), [(40, 0.1, 8), (40, 0.51, 20), (40, 0.9, 20), (15, 0.5, 0), (40, 0.0, 0)]
)
def test_eight_to_half_of_the_users_are_held_out(users: int, share: float, held: int):
    learned, apart = generator._divided(made_up(2 * users, users), share, 0)
    assert len({pair.user_id for pair in apart}) == held
    assert len(learned) == 2 * (users - held)


def test_nothing_to_learn_from_is_one_clear_line(llama: Path, tmp_path: Path):
    with pytest.raises(UserError, match="no training question has a target"):
        train(llama, options(), tmp_path, [])


KILLED = """
import os, signal, sys
from pathlib import Path
import jax
jax.config.update("jax_platforms", "cpu")
sys.path[:0] = {tests!r}
import test_generator as t
from pbr_jax.train import loop
save, seen = loop.Checkpoints.save, []
def saving(self, *arguments):
    save(self, *arguments)
    seen.append(arguments[0])
    if len(seen) == 3:
        self._manager.wait_until_finished()
        os.kill(os.getpid(), signal.SIGKILL)
loop.Checkpoints.save = saving
t.train(Path({path!r}), t.options(epochs=3, dropout=0.2, checkpoint_every=4), Path({folder!r}))
"""


@pytest.mark.long
def test_kill_9_and_again_gives_the_same_bits(llama: Path, tmp_path: Path):
    told = options(epochs=3, dropout=0.2, checkpoint_every=4)
    whole = train(llama, told, tmp_path / "whole")
    program = KILLED.format(
        tests=[*map(str, Path(__file__).parents[:2])], path=str(llama), folder=str(tmp_path / "cut")
    )
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    ended = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()[-2000:]
    again = train(llama, told, tmp_path / "cut")
    for a, b in zip(jax.tree.leaves(whole.params), jax.tree.leaves(again.params), strict=True):
        np.testing.assert_array_equal(a, b)
