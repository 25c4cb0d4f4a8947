"""Benchmarks in array_record files: written once, read anywhere, shuffled and resumed by grain.

`prepare` writes one file for each split, `examples` streams it back, `loader` serves it in batches. A record
is an example as JSON. All three need the extra `data`. `dataset_info.json` says what was prepared.

>>> prepared = prepare(Benchmark(name="lamp_7", root="LaMP_7"), "prepared")  # doctest: +SKIP
>>> batches = loader(prepared, "train", batch_size=32, seed=0)  # doctest: +SKIP
>>> first, state = next(batches), batches.get_state()  # doctest: +SKIP
"""

import difflib
import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pbr_jax.base import terminal
from pbr_jax.base.files import new_folder, parse_json, private_folder, write_text
from pbr_jax.base.locks import locked
from pbr_jax.base.types import Document, Example, UserError
from pbr_jax.data import passages, users
from pbr_jax.data.reader import Reader
from pbr_jax.data.records import Note
from pbr_jax.data.tfds_folder import INFO, Rows, package, read_info, readable
from pbr_jax.options import Benchmark

if TYPE_CHECKING:
    import grain

DATASET = "pbr_jax"
VERSION = "5.0.0"  # raise it whenever a reader makes other examples of the same files

_Info = dict[str, Any]  # what dataset_info.json holds


def prepare(benchmark: Benchmark, folder: str | Path) -> Path:
    """Writes all splits of a benchmark below `folder`; returns the folder of this dataset.

    Nothing is done where that stands already. The dataset appears by one rename, so an interrupted call
    leaves nothing that could be taken for finished, and the next one clears it away. UserError for
    whatever is wrong with the files, and for a dataset that was prepared from other ones.
    """
    from pbr_jax import data  # which reads what we prepare

    package("array_record.python.array_record_module")
    splits = [replace(benchmark, split=split) for split in data.splits(benchmark)]
    path = Path(folder) / DATASET / benchmark.name / VERSION
    try:
        private_folder(path.parent)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}; choose another --out") from error
    with locked(path.with_name(f"{VERSION}.lock")):
        source = {split.split: data.fingerprint(split) for split in splits}
        if path.exists():
            if _read(path)["source"] != source:
                raise UserError(
                    f"{path}: found {benchmark.name} prepared from other files than those in "
                    f"{benchmark.root}; remove that folder or choose another one to prepare into"
                )
            return path
        for left in path.parent.glob(f".{VERSION}.*.partial"):
            shutil.rmtree(left)
        with new_folder(path) as partial:
            for split in splits:
                _write(_file(partial, split.split), data.read(split), split)
            alone = [split.split for split in splits if data.question_users(split)]
            info = {"name": DATASET, "configName": benchmark.name, "version": VERSION}
            write_text(partial / INFO, json.dumps({**info, "source": source, "question_users": alone}))
    return path


def _write(path: Path, examples: Iterator[Example], benchmark: Benchmark) -> None:
    """Writes the examples of a split. Raises UserError where there are none."""
    count = 0
    try:
        writer = package("array_record.python.array_record_module").ArrayRecordWriter
        with closing(writer(str(path), "group_size:1")) as file:
            for example in terminal.bar(examples, desc=f"{benchmark.split} examples"):
                file.write(to_json(example).encode())
                count += 1
    except RuntimeError as error:  # of the C++ library that writes it
        raise UserError(f"cannot write: {error}; free some space or choose another --out") from error
    if not count:
        raise UserError(
            f"{benchmark.root}: found no example in the split {benchmark.split}; take it as released"
        )


def to_json(example: Example) -> str:
    """An example as JSON."""
    return json.dumps(asdict(example), ensure_ascii=False)


def from_json(record: bytes) -> Example:
    """The inverse of `to_json`."""
    values = parse_json(record)
    values["profile"] = tuple(
        Document(**{**one, "span": tuple(one["span"]), "turns": tuple(one["turns"])})
        for one in values["profile"]
    )
    values["relevant"] = tuple(map(tuple, values["relevant"]))
    values |= {name: tuple(values[name]) for name in ("alternatives", "options")}
    return Example(**values)


def examples(folder: str | Path, split: str) -> Iterator[Example]:
    """The examples of a prepared split in the order of the official files, one at a time.

    `folder` is what `prepare` returned, or what it was given if one benchmark lies there. Users are named as
    `pbr_jax.data.read` names them where the training split is called "train". UserError at
    once for a folder without prepared data, and an unknown split.
    """
    return map(from_json, _rows(_open(folder), split))


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
    grain = package("grain")
    shuffled = grain.MapDataset.source(_rows(_open(folder), split)).shuffle(seed)
    share = shuffled[process_index::process_count].map(from_json)
    batches = share.batch(batch_size, batch_fn=list).repeat(num_epochs)
    ahead = grain.ReadOptions(num_threads=2, prefetch_buffer_size=2)
    return batches.to_iter_dataset(ahead).__iter__()


def find(benchmark: Benchmark) -> Path | None:
    """The folder of the prepared dataset that the root holds, None where the root holds other files."""
    return _found(Path(benchmark.root), benchmark.name) if benchmark.root else None


def _found(root: Path, benchmark: str = "*") -> Path | None:
    """The folder of a dataset's newest version. Raises UserError where several benchmarks leave a choice."""
    if (root / INFO).is_file():
        return root if read_info(root).get("name") == DATASET else None
    versions = [info.parent for info in root.glob(f"{DATASET}/{benchmark}/[0-9]*/{INFO}")]
    if len(several := sorted({path.parent.name for path in versions})) > 1:
        raise UserError(
            f"{root}: found several prepared benchmarks ({', '.join(several)}), wanted one; "
            "name the folder of one of them"
        )
    return max(versions, key=lambda path: path.name) if versions else None


def _open(folder: str | Path) -> Path:
    if (path := _found(Path(folder))) is None:
        raise UserError(
            f"{folder}: found no prepared dataset, wanted one that `pbr-jax data prepare --out FOLDER` wrote"
        )
    return path


def _of(benchmark: Benchmark) -> tuple[Path, _Info]:
    path = find(benchmark)
    assert path is not None
    if (found := read_info(path).get("configName")) != benchmark.name:
        raise UserError(f"{path}: found {found}, wanted {benchmark.name}; set --benchmark.name")
    return path, _read(path)


def _read(path: Path) -> _Info:
    """What a folder of ours holds. Raises UserError where another version wrote it."""
    if (info := read_info(path)).get("version") != VERSION:
        raise UserError(f"{path}: found version {info.get('version')}, wanted {VERSION}; prepare it again")
    return info


def _file(path: Path, split: str) -> Path:
    return path / f"{split}.array_record"


def _rows(path: Path, split: str) -> Rows:
    splits = _read(path)["source"]
    if split not in splits:
        near = difflib.get_close_matches(split, splits, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"wanted one of {', '.join(splits)}"
        raise UserError(f"{path}: found no split {split!r}; {hint}")
    source = package("array_record.python.array_record_data_source").ArrayRecordDataSource
    with readable(path):
        return Rows(source(str(_file(path, split))), path)


def _layout(benchmark: Benchmark) -> dict[str, tuple[Path, ...]]:
    path, info = _of(benchmark)
    return {split: (_file(path, split),) for split in info["source"]}


def _question_users(benchmark: Benchmark) -> bool:
    return benchmark.split in _of(benchmark)[1]["question_users"]


def _examples(benchmark: Benchmark, note: Note) -> Iterator[Example]:
    """The examples in the order of the official files; repairs were noted when these were read."""
    path, info = _of(benchmark)
    for field in ("form", "inter_turns"):
        if (wanted := getattr(benchmark, field)) != (prepared := getattr(Benchmark, field)):
            raise UserError(
                f"{path}: found {benchmark.name} prepared with benchmark.{field} {prepared!r}, wanted "
                f"{wanted!r}; set --benchmark.root to the released files"
            )
    found, alone = map(from_json, _rows(path, benchmark.split)), frozenset(info["question_users"])
    if (known := passages.counterparts(benchmark)) is not None:
        found = map(known.joined, found)
    if benchmark.training == Benchmark().training:  # users were named for it
        return found
    if benchmark.split in alone and benchmark.training in set(info["source"]) - alone:
        raise users.two_kinds(benchmark, path)
    return (users.renamed(example, benchmark, alone, path) for example in found)


READER = Reader(
    expected="a folder that `pbr-jax data prepare` wrote",
    layout=_layout,
    examples=_examples,
    question_users=_question_users,
)
"""Reads a root that holds a prepared dataset, as the readers of official files read theirs."""
