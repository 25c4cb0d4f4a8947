"""Folders of TensorFlow Datasets, made by hand: found, listed, refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from pbr_jax.base.types import UserError
from pbr_jax.data import tfds_folder


def make(path: Path, name: str = "squad", **changes: Any) -> Path:
    """The descriptions that TFDS writes, without the shards."""
    splits = [{"name": "train", "shardLengths": ["3", "4"]}, {"name": "validation", "shardLengths": ["1"]}]
    info = {"name": name, "version": path.name, "fileFormat": "array_record", "splits": splits, **changes}
    path.mkdir(parents=True)
    (path / "dataset_info.json").write_text(json.dumps(info))
    return path


def error_of(root: Path, dataset: str = "squad") -> str:
    with pytest.raises(UserError) as error:
        tfds_folder.find(root, dataset)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_shards_of_every_split_are_listed_in_order(tmp_path: Path) -> None:
    folder = tfds_folder.load(make(tmp_path / "1.0.0"))
    assert {split: [shard.name for shard in shards] for split, shards in folder.shards.items()} == {
        "train": ["squad-train.array_record-00000-of-00002", "squad-train.array_record-00001-of-00002"],
        "validation": ["squad-validation.array_record-00000-of-00001"],
    }
    assert (folder.path, folder.dataset) == (tmp_path / "1.0.0", "squad")


def test_a_data_dir_leads_to_the_newest_version(tmp_path: Path) -> None:
    for version in ("2.0.0", "10.0.0", "9.9.9"):
        make(tmp_path / "squad" / version)
    found = tfds_folder.find(tmp_path, "squad")
    assert found is not None
    assert found.path.name == "10.0.0"


def test_a_data_dir_leads_to_the_one_configuration(tmp_path: Path) -> None:
    path = make(tmp_path / "squad" / "v1.1" / "3.0.0", configName="v1.1")
    found = tfds_folder.find(tmp_path, "squad")
    assert found is not None
    assert found.path == path
    make(tmp_path / "squad" / "v2.0" / "3.0.0", configName="v2.0")
    assert "found several configurations of squad (v1.1, v2.0), wanted one" in error_of(tmp_path)


def test_an_unfinished_version_and_other_datasets_are_not_found(tmp_path: Path) -> None:
    make(tmp_path / "squad" / "incomplete.AB12CD_1.0.0")
    make(tmp_path / "trivia_qa" / "1.0.0", name="trivia_qa")
    assert tfds_folder.find(tmp_path, "squad") is None
    assert tfds_folder.find(tmp_path / "none", "squad") is None


@pytest.mark.parametrize("form", ["tfrecord", "parquet", None])
def test_another_file_format_is_refused(tmp_path: Path, form: str | None) -> None:
    path = make(tmp_path / "1.0.0", **({"fileFormat": form} if form else {}))
    if form is None:  # as old versions of TFDS write it
        info = json.loads((path / "dataset_info.json").read_text())
        del info["fileFormat"]
        (path / "dataset_info.json").write_text(json.dumps(info))
    error = error_of(path)
    assert f"found the file format {form or 'tfrecord'}, wanted array_record" in error
    assert "file_format='array_record'" in error


@pytest.mark.parametrize("text", ["", "{", "[]", "\x80"])
def test_a_damaged_description_is_refused(tmp_path: Path, text: str) -> None:
    path = make(tmp_path / "1.0.0") / "dataset_info.json"
    path.write_bytes(text.encode("latin-1"))
    assert str(path) in error_of(path.parent)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = tfds_folder.load(make(tmp_path / "1.0.0"))
    folder.shards["train"][0].write_bytes(b"")
    with pytest.raises(UserError, match=r"squad-train.array_record-00001-of-00002: found no such file"):
        tfds_folder.rows(folder, "train")


def test_a_missing_package_names_the_command_that_installs_it() -> None:
    with pytest.raises(UserError, match=r"found no package pbr_none, .* pip install 'pbr-jax\[data\]'"):
        tfds_folder.package("pbr_none")
