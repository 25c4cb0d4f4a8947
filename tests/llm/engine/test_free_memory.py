"""How much a batch may take, from what devices say that they have free."""

from types import SimpleNamespace
from typing import Any

import jax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from pbr_jax.llm.engine import prefill
from pbr_jax.models import causal_lm, sharding
from pbr_jax.models.causal_lm_config import CausalLMConfig
from pbr_jax.models.rope import Rope

GIB = 2**30


def device(limit: int | None, used: int = 0) -> Any:
    stats = None if limit is None else {"bytes_limit": limit, "bytes_in_use": used, "num_allocs": 3}
    return SimpleNamespace(memory_stats=lambda: stats)


@pytest.mark.parametrize(
    ("devices", "wanted"),
    [
        ([(60 * GIB, GIB // 2)], 8 * GIB),
        ([(60 * GIB, GIB)], 8 * GIB),  # a little less is free, the same batches
        ([(60 * GIB, 30 * GIB)], 4 * GIB),
        ([(60 * GIB, GIB), (60 * GIB, 55 * GIB)], GIB),  # where least is free
        ([(12 * GIB, 12 * GIB - 3)], 1),
        ([(12 * GIB, 13 * GIB)], 1),
        ([(None, 0)], 777),
        ([(60 * GIB, 0), (None, 0)], 777),
    ],
)
def test_a_batch_may_take_a_quarter_of_what_is_free(devices, wanted):
    assert prefill.for_rows([device(*each) for each in devices], 777) == wanted
    odd = SimpleNamespace(memory_stats=lambda: {"bytes_in_use": 5})
    assert prefill.for_rows([odd], 777) == 777


def engine(most: int, **options: Any) -> prefill.PrefillEngine:
    config = CausalLMConfig(
        vocab_size=5, width=16, mlp_width=16, num_layers=3, num_heads=4, num_kv_heads=2, head_width=8,
        context=99, rope=Rope(width=8),
    )  # fmt: skip
    model = causal_lm.causal_lm(config)
    return prefill.PrefillEngine(model.apply, model.init(jax.random.key(0)), config, memory=most, **options)


def test_a_cpu_does_not_say_and_takes_the_given_number():
    slot = 384  # keys and values in 3 layers, 2 heads of width 8, float32
    assert jax.devices()[0].memory_stats() is None
    assert engine(100 * slot).room(1) == 100
    assert engine(100 * slot).room(30) == 3
    assert engine(slot - 1).room(30) == 1


def test_a_device_that_says_is_believed(monkeypatch):
    asked = []

    def free(devices: Any, otherwise: int, rows: Any = prefill.for_rows) -> int:
        asked.append((list(devices), otherwise))
        return rows([device(4 * 2**14 + 1)], otherwise)

    monkeypatch.setattr(prefill, "for_rows", free)
    assert engine(384).room(1) == 2**14 // 384
    assert asked == [([jax.devices()[0]], 384)]


@pytest.mark.parametrize(("axis", "times"), [("model", 2), (None, 1)])
def test_heads_on_two_devices_leave_room_for_twice_as_much(axis, times):
    mesh = sharding.mesh(model=2)

    def heads(place: int) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*[None] * place, axis))

    assert engine(384 * 10, heads=heads).room(1) == 10 * times
