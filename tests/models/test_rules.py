"""Named tensors as parameters, assigned strictly both ways."""

import functools
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from jax import ShapeDtypeStruct

from pbr_jax.base.types import UserError
from pbr_jax.models.pretrained import Tensors
from pbr_jax.models.rules import Rule, assign, transpose

RULES = {
    r"embed\.weight": Rule("embed/table"),
    r"layer\.(?P<layer>\d+)\.(?P<part>up|down)\.weight": Rule("layers/{part}/kernel", transpose),
}


def wanted() -> dict:
    return {
        "embed": {"table": ShapeDtypeStruct((4, 2), np.float32)},
        "layers": {
            "up": {"kernel": ShapeDtypeStruct((2, 2, 3), np.float32)},
            "down": {"kernel": ShapeDtypeStruct((2, 3, 2), np.float32)},
        },
    }


def given_tensors() -> dict[str, np.ndarray]:
    shapes = {"embed.weight": (4, 2)}
    for layer in range(2):
        shapes |= {f"layer.{layer}.up.weight": (3, 2), f"layer.{layer}.down.weight": (2, 3)}
    return {n: np.random.default_rng(i).normal(size=s) for i, (n, s) in enumerate(shapes.items())}


def test_layers_are_stacked_and_transposed() -> None:
    tensors = given_tensors()
    params = assign(tensors, RULES, wanted())
    np.testing.assert_array_equal(params["embed"]["table"], tensors["embed.weight"].astype(np.float32))
    for layer in range(2):
        for part in ("up", "down"):
            kernel = params["layers"][part]["kernel"][layer]
            np.testing.assert_array_equal(
                kernel, tensors[f"layer.{layer}.{part}.weight"].T.astype(np.float32)
            )


def test_parameters_are_filled_and_put_one_after_another() -> None:
    """Each is put, and the tensors of the next are not read before."""
    events: list[str] = []
    given = given_tensors()
    readers = {
        name: functools.partial(lambda name: events.append(name) or given[name], name) for name in given
    }

    def put(path: str, array: np.ndarray) -> tuple[int, ...]:
        events.append(path)
        return array.shape

    params = assign(Tensors(readers), RULES, wanted(), put=put)
    assert params["layers"]["up"]["kernel"] == (2, 2, 3)
    assert list(dict.fromkeys(events)) == [  # type checks, which only tests make, read a tensor more
        "embed.weight", "embed/table",
        "layer.0.up.weight", "layer.1.up.weight", "layers/up/kernel",
        "layer.0.down.weight", "layer.1.down.weight", "layers/down/kernel",
    ]  # fmt: skip


def test_memory_holds_the_target_and_one_tensor() -> None:
    """Eight layers of 1 MB as float32 into bfloat16: 4 MB of target, and not 8 MB of tensors."""
    shape, layers = (512, 512), 8
    readers = {f"layer.{i}.up.weight": lambda: np.ones(shape, np.float32) for i in range(layers)}
    target = {"layers": {"up": {"kernel": ShapeDtypeStruct((layers, *shape), ml_dtypes.bfloat16)}}}
    tracemalloc.start()
    try:
        assign(Tensors(readers), RULES, target)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < (4 + 1.5) * 2**20


def test_all_problems_in_one_line() -> None:
    tensors = given_tensors()
    del tensors["layer.1.up.weight"]
    tensors["layer.2.up.weight"] = np.ones((3, 2))  # a layer more than the model has
    tensors["layer.0.down.weight"] = np.ones((3, 2))  # not transposed
    tensors["head.weight"] = np.ones(1)
    tensors["b.pooler"] = np.ones(1)
    with pytest.raises(UserError) as error:
        assign(tensors, RULES, wanted(), ignore=[r".*\.pooler"], source="weights of x")
    assert str(error.value) == (
        "weights of x do not fit the model of their config: "
        "wrong shape: layer.0.down.weight (2, 3) for layers/down/kernel (3, 2); "
        "missing: layers/up/kernel[1]; unused: head.weight, layer.2.up.weight"
    )


def test_two_tensors_for_one_place_and_two_rules_for_one_tensor() -> None:
    tensors = given_tensors() | {"embed.table": np.ones((4, 2))}
    rules = RULES | {r"embed\.table": Rule("embed/table"), r"layer\.0\.up.*": Rule("layers/up/kernel")}
    with pytest.raises(UserError, match=r"ambiguous: embed\.table, layer\.0\.up\.weight$"):
        assign(tensors, rules, wanted())


def test_a_place_without_any_tensor_is_missing() -> None:
    tensors = {name: t for name, t in given_tensors().items() if "up" not in name}
    with pytest.raises(UserError, match=r"missing: layers/up/kernel$"):
        assign(tensors, RULES, wanted())


def test_a_config_larger_than_the_weights_takes_no_memory() -> None:
    """Of 16,000 layers, or as wide as no tensor is; the message stays readable."""
    for path, shape in (("layers/up/kernel", (16_000, 2, 3)), ("embed/table", (10**9, 10**6))):
        target = wanted()
        place = target
        *parents, name = path.split("/")
        for parent in parents:
            place = place[parent]
        place[name] = ShapeDtypeStruct(shape, np.float32)
        tracemalloc.start()
        try:
            with pytest.raises(UserError, match=r"(missing|wrong shape): ") as error:
                assign(given_tensors(), RULES, target)
            assert tracemalloc.get_traced_memory()[1] < 20e6
        finally:
            tracemalloc.stop()
        assert len(str(error.value)) < 3000
