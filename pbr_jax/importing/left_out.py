"""Records of a table that are not imported, counted by reason."""

from collections import Counter

from pbr_jax.base.types import UserError
from pbr_jax.data.records import RecordError

_SHOWN = 5  # faults that are told in full


class LeftOut:
    """Counts the records that a reader leaves out, and keeps the place of the first for each reason.

    `skip_bad`: records with a fault are left out too. Otherwise `refuse` tells all faults.
    """

    def __init__(self, *, skip_bad: bool = False) -> None:
        self.skip_bad = skip_bad
        self._counts: dict[str, int] = {}
        self._first: dict[str, str] = {}
        self._faults: list[str] = []
        self._faulty: Counter[str] = Counter()

    def fault(self, error: RecordError) -> None:
        """Leaves out a record that has a fault, or keeps the fault for `refuse`."""
        if self.skip_bad:
            self.add(error.reason, error.place)
            return
        if len(self._faults) < _SHOWN:  # what to do is told with the first of each reason
            text, known = str(error), error.reason in self._faulty
            self._faults.append((known and text.rpartition("; ")[0]) or text)
        self._faulty[error.reason] += 1

    def refuse(self) -> None:
        """Raises UserError where records have faults: it tells the first ones, and counts all by reason."""
        if self._faulty.total() == 1:
            raise UserError(self._faults[0])
        if self._faults:
            counts = ", ".join(f"{count} {reason}" for reason, count in self._faulty.items())
            first = " | ".join(self._faults)
            raise UserError(f"{first} | in all {counts}; correct them, or leave them out with --skip-bad")

    def add(self, reason: str, place: str) -> None:
        """Counts a record. `reason` names such records in the plural: "messages without a date"."""
        self._counts[reason] = self._counts.get(reason, 0) + 1
        self._first.setdefault(reason, place)

    @property
    def count(self) -> int:
        """The number of all records that were left out."""
        return sum(self._counts.values())

    def lines(self) -> tuple[str, ...]:
        """A line for each reason: the count, the reason, and the place of the first."""
        return tuple(
            f"{count} {reason}; the first is {self._first[reason]}" for reason, count in self._counts.items()
        )
