"""A disk that is full, sooner or later."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def full_disk(kilobytes: int) -> Iterator[None]:
    """The kernel refuses what would make a file larger than this, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (kilobytes << 10, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
