"""Compiled programs, of which a process holds only so many.

On a CPU each compiled program takes some fifty memory maps, and Linux gives a process 65,530 by default. A
long sweep in one process would come to where "LLVM compilation error: Cannot allocate memory" ends it.
"""

import sys
from pathlib import Path

_MAPS, _MOST = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")


def release(share: float = 0.4) -> bool:
    """Forgets all compiled programs once memory maps are taken to more than this share of what the system
    gives; whether it did. What is needed again comes from the compilation cache on disk.

    Called between runs. Does nothing where the system does not tell.
    """
    jax = sys.modules.get("jax")
    taken, most = maps(), _allowed()
    if jax is None or most is None or taken <= share * most:
        return False
    jax.clear_caches()
    return True


def maps() -> int:
    """Memory maps of this process; 0 where the system does not tell."""
    try:
        with _MAPS.open("rb") as file:
            return sum(1 for _ in file)
    except OSError:
        return 0


def _allowed() -> int | None:
    try:
        return int(_MOST.read_text())
    except (OSError, ValueError):
        return None
