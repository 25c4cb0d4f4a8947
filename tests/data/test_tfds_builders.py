"""The builder: every benchmark comes back from array_record as its reader gives it, without TensorFlow."""

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tensorflow_datasets as tfds
import test_lamp
import test_longlamp
import test_longmemeval
import test_personabench

from pbr_jax import data
from pbr_jax.base.types import Example
from pbr_jax.config import Benchmark
from pbr_jax.data import prepared, synthetic, tfds_builders


def lamp(root: Path, name: str) -> None:
    """Both splits: dated questions of one user, an empty history, a withheld output."""
    first = test_lamp.question(name, "q0", user_id=5, date="2020-01-02")
    dated = [{**entry, "date": "2019-05"} for entry in first["profile"]]
    bare = test_lamp.question(name, "q1", user_id=5, profile=[])
    test_lamp.write(root, name, [{**first, "profile": dated}, bare])
    test_lamp.write(root, name, [test_lamp.question(name, "q2")], outputs={}, split="test")


def longlamp(root: Path, name: str) -> None:
    for split in ("train", "val"):
        lines = "".join(json.dumps(row) + "\n" for row in test_longlamp.rows(name, 3))
        (root / f"{split}.jsonl").write_text(lines)


def personabench(root: Path, name: str) -> None:
    test_personabench.make(root, ("noise_0.0", "noise_0.7"))


def longmemeval(root: Path, name: str) -> None:
    empty = test_longmemeval.question(
        "q2_abs", haystack_session_ids=[], haystack_dates=[], haystack_sessions=[]
    )
    test_longmemeval.write(root, test_longmemeval.question(), empty)


def generated(root: Path, name: str) -> None:
    synthetic.generate(root, users=12)


def nq_open(root: Path, name: str) -> None:
    lines = [{"question": "who?", "answer": ["Ann", "Bob"]}, {"question": "wo?", "answer": ["Zürich"]}]
    (root / "NQ-open.dev.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def web_questions(root: Path, name: str) -> None:
    (root / "devtest.json").write_text(json.dumps([{"qId": "w1", "qText": "who?", "answers": ["Ann"]}]))


OFFICIAL: dict[str, Callable[[Path, str], None]] = {
    **dict.fromkeys((f"lamp_{number}" for number in (1, 2, 3, 4, 5, 7)), lamp),
    **dict.fromkeys(("longlamp_abstract", "longlamp_review", "longlamp_topic"), longlamp),
    "personabench": personabench, "longmemeval": longmemeval, "synthetic": generated,
    "nq_open": nq_open, "web_questions": web_questions,
}  # fmt: skip


def of_all_splits(benchmark: Benchmark) -> dict[str, list[Example]]:
    return {split: list(data.read(replace(benchmark, split=split))) for split in data.splits(benchmark)}


@pytest.mark.parametrize("name", OFFICIAL)
def test_every_benchmark_comes_back_equal_and_in_order(name: str, tmp_path: Path) -> None:
    root = tmp_path / "official"
    root.mkdir()
    OFFICIAL[name](root, name)
    benchmark = Benchmark(name=name, root=str(root))
    path = prepared.prepare(benchmark, tmp_path / "prepared")
    found = of_all_splits(replace(benchmark, root=str(path)))
    assert found == of_all_splits(benchmark)
    assert found == {split: list(prepared.examples(path, split)) for split in found}


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


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "folder"),
    [
        pytest.param("lamp_7", "LaMP_7", marks=pytest.mark.long),
        pytest.param("lamp_4", "LaMP_4_huffpost", marks=pytest.mark.long),
        ("personabench", "personabench"),
        pytest.param("longmemeval", "longmemeval_like_locomo", marks=pytest.mark.long),
    ],
)
def test_real_benchmarks_come_back_equal(
    name: str, folder: str, real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first two dozen questions of every split."""
    benchmark = Benchmark(name=name, root=str(real_data / folder))
    monkeypatch.setattr(data, "read", functools.partial(data.read, limit=24))
    path = prepared.prepare(benchmark, tmp_path)
    found = {split: list(prepared.examples(path, split)) for split in data.splits(benchmark)}
    assert found == of_all_splits(benchmark)
    assert all(len(examples) == 24 for examples in found.values())
