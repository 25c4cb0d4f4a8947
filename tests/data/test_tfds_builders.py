"""The builder: every benchmark comes back from array_record as its reader gives it, without TensorFlow."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tensorflow_datasets as tfds

from pbr_jax import data
from pbr_jax.config import Benchmark
from pbr_jax.data import prepared, tfds_builders


def test_there_is_a_configuration_for_every_benchmark() -> None:
    assert list(tfds_builders.PbrJax.builder_configs) == list(data.BENCHMARKS)
    assert set(tfds_builders.PbrJax.RELEASE_NOTES) == {str(tfds_builders.PbrJax.VERSION)}


@pytest.fixture
def tweets(write_tweets) -> Path:
    return write_tweets({f"u{i}": ["über alles", "🙂"][: i % 3] for i in range(7)})


@pytest.mark.parametrize("by_root", [True, False])
def test_tfds_itself_builds_and_reads_it(by_root: bool, tweets: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"root": str(tweets)} if by_root else {}
    builder: Any = tfds.builder("pbr_jax/lamp_7", data_dir=tmp_path / "out", **options)
    config = tfds.download.DownloadConfig(manual_dir=None if by_root else tweets)
    builder.download_and_prepare(download_dir=tmp_path / "downloads", download_config=config)
    assert builder.info.splits["dev"].num_examples == 7
    assert builder.as_data_source("dev[2:4]")[0]["id"] == b"u2"
    read_only: Any = tfds.builder_from_directory(builder.data_dir)
    assert read_only.info.release_notes == tfds_builders.PbrJax.RELEASE_NOTES
    users = [json.loads(row["example"])["user_id"] for row in read_only.as_data_source("dev")]
    assert users == [f"u{i}" for i in range(7)]


@pytest.mark.parametrize(("size", "shards"), [(1, 7), (700, None), (1 << 30, 1)])
def test_a_large_split_is_cut_into_shards_and_stays_in_order(
    size: int, shards: int | None, tweets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tfds_builders, "SHARD_BYTES", size)
    benchmark = Benchmark(name="lamp_7", root=str(tweets))
    path = prepared.prepare(benchmark, tmp_path)
    files = sorted(file.name for file in path.glob("*array_record*"))
    assert len(files) == shards if shards else 1 < len(files) < 7
    assert files[-1].endswith(f"-{len(files) - 1:05}-of-{len(files):05}")
    assert list(prepared.examples(path, "dev")) == list(data.read(benchmark))


def test_names_of_splits_that_tfds_does_not_take_are_replaced() -> None:
    found = tfds_builders._names(["noise_0.0", "noise_0_0", "all", "all_", "é-1"])
    assert found == {
        "noise_0.0": "noise_0_0",
        "noise_0_0": "noise_0_0_",
        "all": "all_",
        "all_": "all__",
        "é-1": "é-1",
    }


WITHOUT_TENSORFLOW = """
import sys
from pbr_jax.config import Benchmark
from pbr_jax.data import prepared
path = prepared.prepare(Benchmark(name="lamp_7", root=sys.argv[1]), sys.argv[2])
print(path, len(list(prepared.examples(path, "dev"))), "tensorflow" in sys.modules)
"""


def test_no_tensorflow_is_needed_and_every_process_writes_the_same_bytes(
    tweets: Path, tmp_path: Path
) -> None:
    shards = []
    for name in ("first", "second"):
        command = [sys.executable, "-W", "error", "-c", WITHOUT_TENSORFLOW, str(tweets), str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        path, count, tensorflow = done.stdout.split()
        assert (count, tensorflow) == ("7", "False")
        shards.append([file.read_bytes() for file in sorted(Path(path).glob("*array_record*"))])
    assert shards[0] == shards[1]
