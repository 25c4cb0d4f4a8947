"""The TensorFlow Datasets (TFDS) builder of our benchmarks: one class, a configuration for each of them.

    tfds.builder("pbr_jax/lamp_7", data_dir=OUT, root=FOLDER).download_and_prepare()

Nothing is downloaded: FOLDER holds the official files, which the readers of `pbr_jax.data` stream; without
`root`, TFDS's `manual_dir` is taken. Needs the extra `data` and never TensorFlow.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds
from tensorflow_datasets.core import example_serializer

from pbr_jax import data
from pbr_jax.base import terminal
from pbr_jax.base.types import UserError
from pbr_jax.data.tfds_folder import VERSION, written
from pbr_jax.options import Benchmark

SHARD_BYTES = 256 << 20  # of records before they are compressed

_Record = tuple[int, bytes]


class PbrJax(tfds.core.GeneratorBasedBuilder):
    """Examples of a personalized benchmark, in the order of its files."""

    VERSION = tfds.core.Version(VERSION)
    RELEASE_NOTES = {  # noqa: RUF012
        "3.0.0": "An example is one text, in JSON.",
    }
    MANUAL_DOWNLOAD_INSTRUCTIONS = "The benchmark's official files under their official names."
    BUILDER_CONFIGS = [  # noqa: RUF012
        tfds.core.BuilderConfig(name=name, description=f"The benchmark {name}.") for name in data.BENCHMARKS
    ]

    def __init__(self, *, root: str = "", file_format: str = "array_record", **options: Any) -> None:
        """`root` is where the benchmark's files lie; `options` are TFDS's `data_dir`, `config`, `version`."""
        self._root = root
        super().__init__(file_format=file_format, **options)

    def _info(self) -> tfds.core.DatasetInfo:
        self._notes = tfds.core.MetadataDict()  # metadata.json, filled when the files have been looked at
        return tfds.core.DatasetInfo(
            builder=self,
            description="Questions of users, each with the history that the user had when asking.",
            features=tfds.features.FeaturesDict(dict.fromkeys(("id", "example"), tfds.features.Text())),
            metadata=self._notes,
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, dict[str, Any]]]]:
        self._root = self._root or str(dl_manager.manual_dir)
        benchmark = Benchmark(name=str(self.builder_config_name), root=self._root)
        splits = [replace(benchmark, split=split) for split in data.splits(benchmark)]
        names = _names(split.split for split in splits)
        self._notes.update(
            splits=names,
            source={split.split: data.fingerprint(split) for split in splits},
            question_users=[split.split for split in splits if data.question_users(split)],
        )
        return {names[split.split]: self._generate_examples(split) for split in splits}

    def _generate_examples(self, benchmark: Benchmark) -> Iterator[tuple[int, dict[str, Any]]]:
        examples = terminal.bar(data.read(benchmark), desc=f"{benchmark.split} examples")
        for position, example in enumerate(examples):
            yield position, {"id": example.id, "example": written(example)}

    def _generate_splits(self, dl_manager: Any, download_config: Any) -> list[tfds.core.SplitInfo]:
        """Writes all splits; TFDS's own method gathers a split in memory and then needs TensorFlow."""
        return [self._write(name, rows) for name, rows in self._split_generators(dl_manager).items()]

    def _write(self, split: str, rows: Iterable[tuple[int, dict[str, Any]]]) -> tfds.core.SplitInfo:
        template, writer = self._get_filename_template(split_name=split), self._example_writer()
        records, shards = self._records(rows), []
        lengths: list[list[int]] = []
        for first in records:
            lengths.append([])
            shards.append(Path(self.data_dir) / f"{split}.{len(shards)}")
            try:
                writer.write(shards[-1], _shard(first, records, lengths[-1]))
            except RuntimeError as error:  # of the C++ library that writes it
                raise UserError(f"cannot write: {error}; free some space or choose another --out") from error
        if not shards:
            raise UserError(f"{self._root}: found no example in the split {split}; take it as released")
        for index, shard in enumerate(shards):  # only now their number is known, which their names contain
            shard.rename(template.sharded_filepath(shard_index=index, num_shards=len(shards)))
        return tfds.core.SplitInfo(
            name=split,
            shard_lengths=[len(shard) for shard in lengths],
            num_bytes=sum(map(sum, lengths)),
            filename_template=template,
        )

    def _records(self, rows: Iterable[tuple[int, dict[str, Any]]]) -> Iterator[_Record]:
        """The rows as bytes, the same in every process, so that the data's hash is too."""
        form: Any = self.info.features
        serializer = example_serializer.ExampleSerializer(form.get_serialized_info())
        for position, row in rows:
            record = serializer.get_tf_example(form.encode_example(row))
            yield position, record.SerializeToString(deterministic=True)


def _shard(first: _Record, rest: Iterator[_Record], lengths: list[int]) -> Iterator[_Record]:
    """The records of one shard; `lengths` is told the bytes of each."""
    size = 0
    for record in chain([first], rest):
        lengths.append(len(record[1]))
        yield record
        if (size := size + lengths[-1]) >= SHARD_BYTES:
            return


def _names(splits: Iterable[str]) -> dict[str, str]:
    """TFDS's names of our splits: letters, digits, "_" and "-", and not "all"."""
    names: dict[str, str] = {}
    for split in splits:
        name = re.sub(r"[^\w-]", "_", split)
        while name == "all" or name in names.values():
            name += "_"
        names[split] = name
    return names
