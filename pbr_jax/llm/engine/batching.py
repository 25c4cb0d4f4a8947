"""Which rows are read together, and the few shapes that they are padded to."""

from collections.abc import Iterator, Sequence

import numpy as np

from pbr_jax.models.attention import QUERY_BLOCK

SWAPPED, CHOICE = 4, 24  # last rows of a batch that may be others, and among how many
EMPTY = 0.02  # of what a batch holds: so much is left empty before others are looked for
OVERHEAD = 64  # tokens: as much as a batch costs beside its own


def fill(
    order: Sequence[int],
    lengths: Sequence[int],
    paths: Sequence[np.ndarray],
    tokens: int,
    rows: int,
    slots: int,
    *,
    step: int | None = None,
) -> Iterator[list[int]]:
    """Batches of rows, each row in one of them; a row that is beyond a limit stands alone.

    Args:
      order: of the rows, which batches follow.
      lengths: tokens of each row.
      paths: slots that stand before each row; those that not all of a batch begin with are copied for it.
      tokens: that a batch holds at most.
      rows: that it holds at most.
      slots: that it copies, or makes, at most.
      step: batches are computed as if they held a multiple of so many tokens. For rows in falling order of
        length: the last ones of a batch may then be later ones, so that little of that is empty.
    """
    waiting = list(order)
    while waiting:
        batch = _first(waiting, lengths, paths, tokens, rows, slots)
        if step is not None and 1 < len(batch) < len(waiting):
            fuller = _fuller(waiting, len(batch), lengths, tokens, step)
            batch = fuller if _copied(fuller, lengths, paths) <= slots else batch
        yield batch
        taken = set(batch)
        waiting = [member for member in waiting if member not in taken]


def _first(
    waiting: Sequence[int],
    lengths: Sequence[int],
    paths: Sequence[np.ndarray],
    tokens: int,
    rows: int,
    slots: int,
) -> list[int]:
    """As many of the first that wait as the limits allow."""
    batch: list[int] = []
    total = widest = longest = shared = 0
    for member in waiting:
        more, path = lengths[member], paths[member]
        shared = agree(paths[batch[0]], path, min(shared, len(path))) if batch else len(path)
        total, widest, longest = total + more, max(widest, more), max(longest, len(path))
        copied = (len(batch) + 1) * (widest + longest - shared)
        if batch and (total > tokens or len(batch) == rows or copied > slots):
            break
        batch.append(member)
    return batch


def _fuller(waiting: Sequence[int], count: int, lengths: Sequence[int], tokens: int, step: int) -> list[int]:
    """The first `count` that wait; where they leave much empty, the last of them exchanged for as many
    others with which a token costs less, if there are such among a sample of those that wait. Rows are as
    many as before, none is longer, and tokens are at most a step fewer: shapes stay few."""
    plain = list(waiting[:count])
    whole = sum(lengths[member] for member in plain)
    if -whole % step <= EMPTY * whole:
        return plain
    kept = plain[: max(1, count - SWAPPED)]
    others = waiting[len(kept) :: max(1, (len(waiting) - len(kept)) // CHOICE)]
    total, most = sum(lengths[member] for member in kept), count - len(kept)
    # last[n, s]: where among the others n of them that have s tokens end; -1: there are none.
    last = np.full((most + 1, tokens - total + 1), -1, np.int32)
    last[0, 0] = 0
    for place, member in enumerate(others):
        more = lengths[member]
        if more < last.shape[1]:
            new = (last[:-1, : last.shape[1] - more] >= 0) & (last[1:, more:] < 0)
            last[1:, more:][new] = place
    (sums,) = np.nonzero(last[most] >= 0)
    held = np.append(whole, total + sums[total + sums > whole - step])
    best = int(np.argmin((-(-held // step) * step + OVERHEAD) / held))
    if not best:
        return plain
    s, exchanged = int(held[best]) - total, list[int]()
    for n in range(most, 0, -1):
        exchanged.append(others[last[n, s]])
        s -= lengths[exchanged[-1]]
    return kept + exchanged[::-1]


def _copied(members: Sequence[int], lengths: Sequence[int], paths: Sequence[np.ndarray]) -> int:
    own = [paths[member] for member in members]
    return len(members) * (max(lengths[member] for member in members) + max(map(len, own)) - common(own))


def common(paths: Sequence[np.ndarray]) -> int:
    """How many slots all paths begin with."""
    if not paths:
        return 0
    first, most = paths[0], min(map(len, paths))
    for path in paths[1:]:
        if path is not first:
            most = agree(first, path, most)
    return most


def agree(first: np.ndarray, second: np.ndarray, most: int) -> int:
    """Of at most so many first entries, how many are equal."""
    differ = np.flatnonzero(first[:most] != second[:most])
    return int(differ[0]) if len(differ) else most


def size(count: int, floor: int = 1) -> int:
    """The bucket of a count: a power of two, or three quarters of one, not below `floor`; 0 stays 0."""
    if count == 0:
        return 0
    whole = power(count, floor)
    return whole * 3 // 4 if whole >= 4 and max(count, floor) <= whole * 3 // 4 else whole


def width(count: int, floor: int) -> int:
    """The bucket of a row's tokens: attention takes them by blocks of `QUERY_BLOCK`, or more in long rows."""
    wanted = max(count, floor)
    return -(-wanted // QUERY_BLOCK) * QUERY_BLOCK if 128 < wanted <= 512 else size(count, floor)


def power(count: int, floor: int) -> int:
    """A power of two that is not below count and floor; 0 stays 0."""
    return 1 << (max(count, floor) - 1).bit_length() if count else 0


def bucket(count: int, floor: int) -> int:
    """The finer bucket of a length: a multiple of an eighth of its power of two, at least of `floor`."""
    step = max(floor, 2 ** (count.bit_length() - 1) // 8)
    return -(-count // step) * step
