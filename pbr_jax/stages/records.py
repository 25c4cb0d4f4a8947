"""What stages keep of questions: a record each, written and read by the question's id."""

import copy
import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

from pbr_jax.base import terminal
from pbr_jax.base.files import written
from pbr_jax.base.types import Example
from pbr_jax.pipeline import Tally
from pbr_jax.stages.run import CHUNK, chunks, line, metered, read_tally, write_tally

_START = '{"id": '


class Records:
    """The records in a stage's folder. They stay on disk, and are read as they are asked for."""

    file: ClassVar[str]

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def keep(cls, folder: Path, records: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Writes pairs of a question's id and its record, whole or not at all."""
        with written(folder / cls.file) as file:
            file.writelines(line({"id": id, **record}) for id, record in records)

    @classmethod
    def make(
        cls,
        folder: Path,
        work: Callable[..., Iterable[Mapping[str, Any]]],
        tally: Tally,
        *columns: Iterable[Any],
        label: str,
        total: int | None = None,
        size: int = CHUNK,
    ) -> None:
        """Makes the record of each question, and keeps them with the tally and the counts of requests.

        Args:
          work: takes a function that advances the progress bar and a chunk of each column, and returns the
            records of the chunk's questions.
          columns: the questions, and what else `work` reads of each.
          label: of the progress bar, which counts to `total`.
          size: the number of questions in a chunk.
        """

        def made(advance: Callable[[int], Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
            for chunk in chunks(zip(*columns, strict=True), size):
                some = [list(column) for column in zip(*chunk, strict=True)]
                with metered(folder):
                    records = list(work(advance, *some))
                for example, record in zip(some[0], records, strict=True):
                    yield example.id, record

        with terminal.bar(desc=label, total=total) as bar:
            cls.keep(folder, made(bar.update))
        write_tally(tally, folder)

    def of(self, ids: Container[str]) -> Self:
        """The records of some of the questions, which are then all that it has."""
        found = copy.copy(self)
        vars(found)["_places"] = {id: place for id, place in self._places.items() if id in ids}
        return found

    @property
    def tally(self) -> Tally:
        """What was counted and timed when the records were made."""
        return read_tally(self._folder)

    def records(self, examples: Iterable[Example]) -> Iterator[dict[str, Any]]:
        """The record of each of these questions, which must be exactly those of the file, in their order.

        Raises RuntimeError for an id that is missing, stands in the file alone, or comes twice.
        """
        places = dict(self._places)
        with (self._folder / self.file).open("rb") as file:
            for example in examples:
                place = places.pop(example.id, None)
                if place is None:
                    known = "comes twice" if example.id in self._places else f"is not in {self.file}"
                    raise RuntimeError(f"question {example.id!r} {known} ({self._folder})")
                file.seek(place)
                yield json.loads(file.readline())
        if places:
            raise RuntimeError(
                f"{self.file} has question {next(iter(places))!r}, which is not asked for ({self._folder})"
            )

    @cached_property
    def _places(self) -> dict[str, int]:
        """Where each question's line begins, in bytes."""
        places: dict[str, int] = {}
        decode, place = json.JSONDecoder().raw_decode, 0
        with (self._folder / self.file).open("rb") as file:
            for text in file:
                id, _ = decode(text.decode("utf-8"), len(_START))
                if id in places:
                    raise RuntimeError(f"question {id!r} comes twice in {self.file} ({self._folder})")
                places[id] = place
                place += len(text)
        return places
