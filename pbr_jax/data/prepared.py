"""Benchmarks in array_record files: written once, read anywhere, shuffled and resumed by grain.

`prepare` writes a benchmark through its TensorFlow Datasets builder (`tfds_builders.py`), `examples` streams
it back, `loader` serves it in batches. All three need the extra `data`, none needs TensorFlow.

>>> prepared = prepare(Benchmark(name="lamp_7", root="LaMP_7"), "prepared")  # doctest: +SKIP
>>> batches = loader(prepared, "train", batch_size=32, seed=0)  # doctest: +SKIP
>>> first, state = next(batches), batches.get_state()  # doctest: +SKIP
"""

import contextlib
import difflib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pbr_jax.base.files import private_folder
from pbr_jax.base.locks import locked
from pbr_jax.base.types import Example, UserError
from pbr_jax.data import passages, tfds_folder, users
from pbr_jax.data.reader import Reader
from pbr_jax.data.records import Note
from pbr_jax.data.tfds_folder import VERSION, Folder, Rows
from pbr_jax.options import Benchmark

if TYPE_CHECKING:
    import grain

DATASET = "pbr_jax"  # TFDS's name of our builder


def prepare(benchmark: Benchmark, folder: str | Path) -> Path:
    """Writes all splits of a benchmark below `folder`; returns the folder of this dataset.

    Nothing is done where that stands already. The dataset appears by one rename, so an interrupted call
    leaves nothing that could be taken for finished, and the next one clears it away. UserError for
    whatever is wrong with the files, and for a dataset that was prepared from other ones.
    """
    from pbr_jax import data  # which reads what we prepare

    for name in ("tensorflow_datasets", "array_record", "importlib_resources"):
        tfds_folder.package(name)
    from pbr_jax.data.tfds_builders import PbrJax

    data.splits(benchmark)  # a wrong name or root is told before anything is made
    path = Path(folder) / DATASET / benchmark.name / VERSION
    try:
        private_folder(path.parent)  # TFDS's own files are as the umask says
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}; choose another --out") from error
    with locked(path.with_name(f"{VERSION}.lock")), tempfile.TemporaryDirectory() as downloads:
        if path.exists():
            return _same(path, benchmark)
        for left in path.parent.glob(f"incomplete.*_{VERSION}"):
            shutil.rmtree(left)
        builder = PbrJax(config=benchmark.name, root=benchmark.root, data_dir=str(folder))
        with contextlib.redirect_stdout(sys.stderr):  # TFDS tells there what it does
            builder.download_and_prepare(download_dir=downloads)
    return path


def _same(path: Path, benchmark: Benchmark) -> Path:
    from pbr_jax import data

    splits = (replace(benchmark, split=split) for split in data.splits(benchmark))
    if tfds_folder.load(path).metadata.get("source") != {s.split: data.fingerprint(s) for s in splits}:
        raise UserError(
            f"{path}: found {benchmark.name} prepared from other files than those in {benchmark.root}; "
            "remove that folder or choose another one to prepare into"
        )
    return path


def examples(folder: str | Path, split: str) -> Iterator[Example]:
    """The examples of a prepared split in the order of the official files, one at a time.

    `folder` is what `prepare` returned, or what it was given if one benchmark lies there. Users are named as
    `pbr_jax.data.read` names them where the training split is called "train". UserError at
    once for a folder without prepared data, one in the tfrecord format, and an unknown split.
    """
    return map(tfds_folder.example, _rows(_open(folder), split))


def loader(
    folder: str | Path,
    split: str,
    *,
    batch_size: int,
    seed: int,
    num_epochs: int | None = 1,
    process_index: int = 0,
    process_count: int = 1,
) -> "grain.DatasetIterator[list[Example]]":
    """Batches of a prepared split, in an order that the seed and the epoch settle.

    Every example comes once an epoch; an epoch's last batch may be smaller. `num_epochs` None goes on without
    end. Of several processes (`jax.process_index()`, `jax.process_count()`) each gets its share, which
    differ by one example at most. The iterator's `get_state()` is a JSON-able place in the stream: after
    `set_state` on a loader with the same arguments, in any process, the remaining batches come. UserError
    as in `examples`, and for numbers out of range.
    """
    for name, value in (("batch_size", batch_size), ("num_epochs", 1 if num_epochs is None else num_epochs)):
        if value < 1:
            raise UserError(f"{name} is {value}, want at least 1")
    if not 0 <= seed < 2**32:
        raise UserError(f"seed is {seed}, want a number from 0 to {2**32 - 1}")
    if not 0 <= process_index < process_count:
        raise UserError(f"process_index is {process_index}, want a number from 0 to {process_count - 1}")
    grain = tfds_folder.package("grain")
    shuffled = grain.MapDataset.source(_rows(_open(folder), split)).shuffle(seed)
    share = shuffled[process_index::process_count].map(tfds_folder.example)
    batches = share.batch(batch_size, batch_fn=list).repeat(num_epochs)
    ahead = grain.ReadOptions(num_threads=2, prefetch_buffer_size=2)
    return batches.to_iter_dataset(ahead).__iter__()


def find(benchmark: Benchmark) -> Folder | None:
    """The prepared dataset that the root holds, None where the root holds other files."""
    if not benchmark.root:
        return None
    folder = tfds_folder.find(benchmark.root, DATASET, benchmark.name)
    return folder if folder is not None and folder.dataset == DATASET else None


def _layout(benchmark: Benchmark) -> dict[str, tuple[Path, ...]]:
    folder = _of(benchmark)
    return {split: folder.shards[name] for split, name in _names(folder).items()}


def _question_users(benchmark: Benchmark) -> bool:
    return benchmark.split in _alone(_of(benchmark))


def _examples(benchmark: Benchmark, note: Note) -> Iterator[Example]:
    """The examples in the order of the official files; repairs were noted when these were read."""
    folder = _of(benchmark)
    for field in ("form", "inter_turns"):
        if (wanted := getattr(benchmark, field)) != (prepared := getattr(Benchmark, field)):
            raise UserError(
                f"{folder.path}: found {benchmark.name} prepared with benchmark.{field} {prepared!r}, wanted "
                f"{wanted!r}; set --benchmark.root to the released files"
            )
    found, alone = map(tfds_folder.example, _rows(folder, benchmark.split)), _alone(folder)
    if (known := passages.counterparts(benchmark)) is not None:
        found = map(known.joined, found)
    if benchmark.training == Benchmark().training:  # users were named for it
        return found
    if benchmark.split in alone and benchmark.training in set(_names(folder)) - alone:
        raise users.two_kinds(benchmark, folder.path)
    return (users.renamed(example, benchmark, alone, folder.path) for example in found)


def _alone(folder: Folder) -> frozenset[str]:
    """The splits whose questions are users by themselves."""
    return frozenset(folder.metadata.get("question_users", ()))


def _of(benchmark: Benchmark) -> Folder:
    folder = find(benchmark)
    if folder is None or folder.config != benchmark.name:
        found = folder.config if folder is not None else "no prepared dataset"
        raise UserError(f"{benchmark.root}: found {found}, wanted {benchmark.name}; set --benchmark.name")
    return folder


def _open(folder: str | Path) -> Folder:
    dataset = tfds_folder.find(folder, DATASET)
    if dataset is None or dataset.dataset != DATASET:
        what = "no prepared dataset" if dataset is None else f"the dataset {dataset.dataset}"
        raise UserError(f"{folder}: found {what}, wanted one that `pbr-jax data prepare --out FOLDER` wrote")
    return dataset


def _names(folder: Folder) -> dict[str, str]:
    """TFDS's name of each split by ours; UserError where the folder is not one that we read."""
    if folder.version != VERSION:
        raise UserError(f"{folder.path}: found version {folder.version}, wanted {VERSION}; prepare it again")
    names = folder.metadata.get("splits", {})
    if set(names.values()) != set(folder.shards):
        raise UserError(f"{folder.path}: found no metadata.json with its splits; copy the whole folder")
    return names


def _rows(folder: Folder, split: str) -> Rows:
    names = _names(folder)
    if split not in names:
        near = difflib.get_close_matches(split, names, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"wanted one of {', '.join(names)}"
        raise UserError(f"{folder.path}: found no split {split!r}; {hint}")
    return tfds_folder.rows(folder, names[split])


READER = Reader(
    expected="a folder that `pbr-jax data prepare` wrote",
    layout=_layout,
    examples=_examples,
    question_users=_question_users,
)
"""Reads a root that holds a prepared dataset, as the readers of official files read theirs."""
