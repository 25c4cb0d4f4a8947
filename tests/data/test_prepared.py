"""Prepared benchmarks: written whole or not at all, read from anywhere, served in batches that resume."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from full_disk import full_disk
from hypothesis import given, settings
from hypothesis import strategies as st

from pbr_jax import data
from pbr_jax.base.types import Document, Example, UserError
from pbr_jax.cli.main import main
from pbr_jax.config import Benchmark
from pbr_jax.data import prepared

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tweets(write_tweets) -> Benchmark:
    histories = {f"u{i:02}": ["one", "two", "three"][: i % 4] for i in range(11)}
    return Benchmark(name="lamp_7", root=str(write_tweets(histories)))


@pytest.fixture
def folder(tweets: Benchmark, tmp_path: Path) -> Path:
    """Eleven prepared examples."""
    return prepared.prepare(tweets, tmp_path / "prepared")


def message(call: Any, *arguments: Any, **options: Any) -> str:
    """The one line of the UserError that the call raises."""
    with pytest.raises(UserError) as error:
        call(*arguments, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    """What would change if a file were written again."""
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*")}


# --- prepare ---------------------------------------------------------------------------------------


def test_preparing_again_does_nothing(tweets: Benchmark, folder: Path, tmp_path: Path) -> None:
    before = contents(folder)
    assert prepared.prepare(tweets, tmp_path / "prepared") == folder
    assert contents(folder) == before


def test_other_files_are_never_taken_for_the_prepared_ones(
    tweets: Benchmark, folder: Path, tmp_path: Path
) -> None:
    outputs = Path(tweets.root) / "dev_outputs.json"
    outputs.write_text(outputs.read_text().replace("says hi", "says ho"))
    error = message(prepared.prepare, tweets, tmp_path / "prepared")
    assert f"{folder}: found lamp_7 prepared from other files than those in {tweets.root}" in error


def test_files_that_are_no_dataset_are_left_as_they_are(tweets: Benchmark, tmp_path: Path) -> None:
    """Where the dataset would go, and beside it, in a folder of official files."""
    path = Path(tweets.root) / "pbr_jax" / "lamp_7" / prepared.VERSION
    path.mkdir(parents=True)
    (path / "notes").write_text("mine")
    official = [file for file in Path(tweets.root).iterdir() if file.is_file()]
    before = contents(path) | {str(file): file.read_bytes() for file in official}
    assert "dataset_info.json: cannot be read" in message(prepared.prepare, tweets, tweets.root)
    assert contents(path) | {str(file): file.read_bytes() for file in official} == before


def test_what_holds_users_texts_is_private_whatever_the_umask(tweets: Benchmark, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir(mode=0o755)
    before = os.umask(0)
    try:
        for place in ("there", "new"):
            prepared.prepare(tweets, tmp_path / place)
    finally:
        os.umask(before)
    modes = {name: (tmp_path / name).stat().st_mode & 0o777 for name in ("new", "there", "there/pbr_jax")}
    assert modes == {"new": 0o700, "there": 0o755, "there/pbr_jax": 0o700}


def test_several_benchmarks_share_a_folder(tweets: Benchmark, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "nq").mkdir()
    (tmp_path / "nq" / "NQ-open.dev.jsonl").write_text('{"question": "who?", "answer": ["Ann"]}')
    prepared.prepare(Benchmark(name="nq_open", root=str(tmp_path / "nq")), tmp_path / "prepared")
    both = str(tmp_path / "prepared")
    assert len(list(data.read(Benchmark(name="lamp_7", root=both)))) == 11
    assert [example.target for example in data.read(Benchmark(name="nq_open", root=both))] == ["Ann"]
    error = message(prepared.examples, both, "dev")
    assert "found several prepared benchmarks (lamp_7, nq_open), wanted one" in error


def test_a_malformed_record_leaves_nothing(tweets: Benchmark, tmp_path: Path) -> None:
    questions = Path(tweets.root) / "dev_questions.json"
    records = json.loads(questions.read_text())
    del records[-1]["input"]
    questions.write_text(json.dumps(records))
    error = message(prepared.prepare, tweets, tmp_path / "prepared")
    assert "dev_questions.json: record 10 (id 'u10'), field 'input': found no such key" in error
    assert not [
        path for path in (tmp_path / "prepared").rglob("*") if prepared.VERSION in path.name and path.is_dir()
    ]


def test_a_split_without_examples_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "dev_questions.json").write_text("[]")
    (tmp_path / "dev_outputs.json").write_text('{"task": "LaMP_7", "golds": []}')
    benchmark = Benchmark(name="lamp_7", root=str(tmp_path))
    assert "found no example in the split dev" in message(prepared.prepare, benchmark, tmp_path / "out")
    assert "found no prepared dataset" in message(prepared.examples, tmp_path / "out", "dev")


KILLED = """
import os, signal, sys
from pbr_jax.config import Benchmark
from pbr_jax.data import prepared
write, count = prepared.to_json, 0

def to_json(example):
    global count
    count += 1
    if count == 6:
        os.kill(os.getpid(), signal.SIGKILL)
    return write(example)

prepared.to_json = to_json
prepared.prepare(Benchmark(name="lamp_7", root=sys.argv[1]), sys.argv[2])
"""


def test_a_killed_preparation_is_not_taken_for_finished_and_the_next_one_clears_it(
    tweets: Benchmark, tmp_path: Path
) -> None:
    out = tmp_path / "prepared"
    command = [sys.executable, "-c", KILLED, tweets.root, str(out)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == -signal.SIGKILL
    (left,) = (out / "pbr_jax" / "lamp_7").glob(".*.partial")
    assert list(left.iterdir())
    assert "found no prepared dataset" in message(prepared.examples, out, "dev")
    assert "found no prepared dataset" in message(prepared.examples, left, "dev")
    assert prepared.find(Benchmark(name="lamp_7", root=str(out))) is None
    path = prepared.prepare(tweets, out)
    assert not left.exists()
    assert list(prepared.examples(path, "dev")) == list(data.read(tweets))


def test_a_full_disk_is_one_line_and_leaves_nothing(
    tweets: Benchmark, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["--benchmark.name", "lamp_7", "--benchmark.root", tweets.root, "--out", str(tmp_path / "out")]
    with full_disk(20):
        assert main(["data", "prepare", *place]) == 2
    told = capsys.readouterr().err
    assert told.splitlines()[-1].startswith("pbr-jax: error: cannot write: ")
    assert "Traceback" not in told
    assert not list((tmp_path / "out").rglob("*array_record*"))
    assert not list((tmp_path / "out").rglob("*dataset_info*"))


def test_a_folder_that_cannot_be_made_is_one_line(tweets: Benchmark, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    error = message(prepared.prepare, tweets, tmp_path / "file" / "out")
    assert f"cannot write to {tmp_path / 'file' / 'out'}" in error


def test_wrong_names_and_roots_are_told_before_anything_is_made(tmp_path: Path) -> None:
    assert "did you mean lamp_7" in message(
        prepared.prepare, Benchmark(name="lamp7", root="."), tmp_path / "a"
    )
    nowhere = Benchmark(name="lamp_7", root=str(tmp_path / "none"))
    assert "found no such folder" in message(prepared.prepare, nowhere, tmp_path / "a")
    assert not (tmp_path / "a").exists()


# --- one example ------------------------------------------------------------------------------------

TEXTS = st.sampled_from(["", "\0", "e\u0301", "日本語", "🙂", "\r\n"]) | st.text(max_size=6)
TIMES = st.none() | st.floats(allow_nan=False)
TURNS = st.lists(st.integers(0, 2**31 - 1), max_size=3).map(tuple)
FIELDS = st.dictionaries(TEXTS, TEXTS, max_size=3)
DOCUMENTS = st.builds(Document, TEXTS, TEXTS, TEXTS, FIELDS, TIMES, TIMES, turns=TURNS)
MANY = st.lists(TEXTS, max_size=3).map(tuple)
GROUPS = st.lists(MANY, max_size=3).map(tuple)
EXAMPLES = st.builds(
    Example, TEXTS, TEXTS, TEXTS, TEXTS, st.none() | TEXTS, st.lists(DOCUMENTS, max_size=3).map(tuple),
    TIMES, GROUPS, TEXTS, st.booleans(), MANY, unit=TEXTS, options=MANY,
)  # fmt: skip


@given(EXAMPLES)
def test_any_example_comes_back_equal(example: Example) -> None:
    found = prepared.from_json(prepared.to_json(example).encode())
    assert found == example
    for one, other in zip(found.profile, example.profile):
        assert list(one.fields.items()) == list(other.fields.items())


# --- examples --------------------------------------------------------------------------------------


def test_an_unknown_split_gets_the_nearest_names(folder: Path) -> None:
    assert message(prepared.examples, folder, "devv").endswith("found no split 'devv'; did you mean dev?")
    assert message(prepared.examples, folder, "zzz").endswith("found no split 'zzz'; wanted one of dev")


def test_a_folder_of_another_kind_is_refused(tweets: Benchmark, tmp_path: Path) -> None:
    wanted = "wanted one that `pbr-jax data prepare --out FOLDER` wrote"
    for root in (Path(tweets.root), tmp_path / "none"):
        assert f"{root}: found no prepared dataset, {wanted}" in message(prepared.examples, root, "dev")


def test_data_of_another_version_is_refused(folder: Path) -> None:
    info = folder / "dataset_info.json"
    info.write_text(info.read_text().replace(f'"version": "{prepared.VERSION}"', '"version": "0.9.0"'))
    wanted = f"found version 0.9.0, wanted {prepared.VERSION}; prepare it again"
    assert wanted in message(prepared.examples, folder, "dev")
    assert wanted in message(data.read, Benchmark(name="lamp_7", root=str(folder)))


@pytest.mark.parametrize("size", [0, 100, -1])
def test_a_damaged_shard_is_one_line(size: int, folder: Path) -> None:
    (shard,) = folder.glob("*.array_record")
    shard.write_bytes(shard.read_bytes()[:size])
    for error in (message(lambda: list(prepared.examples(folder, "dev"))), message(served, folder)):
        assert f"{folder}: cannot be read" in error


@pytest.mark.parametrize("package", ["array_record", "grain"])
def test_a_missing_package_is_one_line(package: str, tweets: Benchmark, folder: Path) -> None:
    """In a process of its own: what is imported stays."""
    code = f"""
import sys
sys.modules[{package!r}] = None
from pbr_jax.config import Benchmark
from pbr_jax.data import prepared
from pbr_jax.base.types import Document, Example, UserError
try:
    if {package!r} == "grain":
        prepared.loader({str(folder)!r}, "dev", batch_size=1, seed=0)
    else:
        prepared.prepare(Benchmark(name="lamp_7", root={tweets.root!r}), {str(folder / "again")!r})
except UserError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"found no package {package}, wanted it")
    assert "pip install 'pbr-jax[data]'" in done.stdout


# --- as --benchmark.root ---------------------------------------------------------------------------


def test_a_prepared_folder_serves_as_root(tweets: Benchmark, folder: Path, tmp_path: Path) -> None:
    for root in (folder, tmp_path / "prepared"):
        benchmark = Benchmark(name="lamp_7", root=str(root))
        assert data.splits(benchmark) == ("dev",)
        assert list(data.read(benchmark, limit=3)) == list(data.read(tweets, limit=3))
        assert [file.parent for file in data.files(benchmark)] == [folder]
        assert data.validate(benchmark) == data.validate(tweets)


def test_users_are_named_for_the_training_split_that_is_asked_for(write_tweets, tmp_path: Path) -> None:
    for split in ("train", "dev", "test"):
        root = write_tweets({"a": ["one"], "b": []}, split)
    official = Benchmark(name="lamp_7", root=str(root))
    path = prepared.prepare(official, tmp_path / "prepared")
    for split in ("train", "dev", "test"):
        for training in ("train", "dev", "test"):
            asked = replace(official, split=split, training=training)
            assert list(data.read(replace(asked, root=str(path)))) == list(data.read(asked))
    assert [e.user_id for e in data.read(replace(asked, root=str(path)))] == ["test/a", "test/b"]


def test_clashes_of_names_are_refused_for_any_training_split(write_tweets, tmp_path: Path) -> None:
    write_tweets({"a": []}, "dev")
    root = write_tweets({"dev/a": []}, "test")
    path = prepared.prepare(Benchmark(name="lamp_7", root=str(root)), tmp_path / "prepared")
    clash = Benchmark(name="lamp_7", root=str(path), split="test", training="dev")
    assert "'dev/a', which a user of the training split may be called" in message(list, data.read(clash))
    questions = root / "dev_questions.json"
    questions.write_text(questions.read_text().replace('"id": "a"', '"id": "a", "user_id": "u"', 1))
    path = prepared.prepare(Benchmark(name="lamp_7", root=str(root)), tmp_path / "named")
    with pytest.raises(UserError, match="found questions that are users by themselves"):
        list(data.read(replace(clash, root=str(path))))


def test_a_root_with_another_benchmark_is_refused(folder: Path) -> None:
    error = message(data.read, Benchmark(name="lamp_5", root=str(folder)))
    assert f"{folder}: found lamp_7, wanted lamp_5; set --benchmark.name" in error


def test_an_unknown_split_of_a_prepared_root_is_refused(folder: Path) -> None:
    error = message(data.read, Benchmark(name="lamp_7", root=str(folder), split="train"))
    assert "found the splits dev, wanted 'train' in a folder that `pbr-jax data prepare` wrote" in error


def test_the_command_prepares_and_a_run_reads_it(
    tweets: Benchmark, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    place = ["--benchmark.name", "lamp_7", "--benchmark.root"]
    assert main(["data", "prepare", *place, tweets.root, "--out", str(tmp_path / "out")]) == 0
    path = capfd.readouterr().out.strip()
    assert path == str(tmp_path / "out" / "pbr_jax" / "lamp_7" / prepared.VERSION)
    predictions = []
    for name, root in (("official", tweets.root), ("prepared", path)):
        config = [
            str(ROOT / "configs" / "bm25.py"),
            "--generate.method",
            "none",
            "--out",
            str(tmp_path / name),
        ]
        assert main(["run", *config, *place, root]) == 0
        predictions.append((tmp_path / name / "predictions.jsonl").read_text())
    assert predictions[0] == predictions[1]


# --- loader ----------------------------------------------------------------------------------------


def served(folder: Path, **options: Any) -> list[list[str]]:
    """The ids of every batch."""
    options = {"batch_size": 4, "seed": 0} | options
    return [[example.id for example in batch] for batch in prepared.loader(folder, "dev", **options)]


IDS = [f"u{i:02}" for i in range(11)]


@pytest.mark.parametrize("batch_size", [1, 4, 11, 12])
def test_every_example_comes_once_an_epoch(batch_size: int, folder: Path) -> None:
    batches = served(folder, batch_size=batch_size, num_epochs=3)
    assert len(batches) == 3 * -(-11 // batch_size)
    ids = [id for batch in batches for id in batch]
    epochs = [ids[i * 11 : (i + 1) * 11] for i in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [IDS] * 3
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert IDS not in epochs


@settings(max_examples=8)
@given(st.integers(1, 13), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_processes_share_every_epoch_between_them(
    shared_folder: Path, processes: int, epochs: int, seed: int
) -> None:
    shares = [
        served(
            shared_folder,
            batch_size=2,
            seed=seed,
            num_epochs=epochs,
            process_index=i,
            process_count=processes,
        )
        for i in range(processes)
    ]
    flat = [[id for batch in share for id in batch] for share in shares]
    assert Counter(id for share in flat for id in share) == Counter(IDS * epochs)
    sizes = {len(share) // epochs for share in flat}
    assert max(sizes) - min(sizes) <= 1


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eleven questions with the ids of `IDS`, prepared once."""
    root = tmp_path_factory.mktemp("shared")
    records = [{"id": id, "input": f"say: {id}", "profile": []} for id in IDS]
    (root / "dev_questions.json").write_text(json.dumps(records))
    golds = [{"id": id, "output": "x"} for id in IDS]
    (root / "dev_outputs.json").write_text(json.dumps({"task": "LaMP_7", "golds": golds}))
    return prepared.prepare(Benchmark(name="lamp_7", root=str(root)), root / "prepared")


@pytest.mark.parametrize("taken", range(8))
def test_a_resumed_loader_goes_on_as_if_never_stopped(taken: int, shared_folder: Path) -> None:
    options = {"batch_size": 3, "seed": 7, "num_epochs": 2, "process_index": 1, "process_count": 2}
    whole = served(shared_folder, **options)
    assert len(whole) == 4
    batches = prepared.loader(shared_folder, "dev", **options)
    started = [[example.id for example in next(batches)] for _ in range(min(taken, 4))]
    state = json.loads(json.dumps(batches.get_state()))
    later = prepared.loader(shared_folder, "dev", **options)
    list(islice(later, taken % 3))  # wherever the new one stands
    later.set_state(state)
    assert started + [[example.id for example in batch] for batch in later] == whole


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0}, "batch_size is 0, want at least 1"),
        ({"num_epochs": 0}, "num_epochs is 0, want at least 1"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**32}, "seed is 4294967296"),
        ({"process_index": 2, "process_count": 2}, "process_index is 2, want a number from 0 to 1"),
        ({"process_index": -1}, "process_index is -1"),
    ],
)
def test_numbers_out_of_range_are_refused(options: dict[str, int], words: str, shared_folder: Path) -> None:
    assert words in message(served, shared_folder, **options)
