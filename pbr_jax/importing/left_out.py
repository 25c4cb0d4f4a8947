"""Records of a table that are not imported, counted by reason."""


class LeftOut:
    """Counts the records that a reader leaves out, and keeps the place of the first for each reason."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._first: dict[str, str] = {}

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
