"""How much memory of the devices a batch may take for keys and values."""

from collections.abc import Iterable
from typing import Any

SHARE = 4  # prompts that decode, what they begin with, and activations need as much each


def for_rows(devices: Iterable[Any], otherwise: int) -> int:
    """Bytes on each device that a batch's rows may take: a quarter of what is free where least is.

    Rounded down to a power of two: shapes of batches, and with them roundings, are then the same where a
    little more or less is free. `otherwise`: where a backend does not say what it has, such as a CPU.
    """
    stats = [device.memory_stats() for device in devices]
    if not all(each and {"bytes_limit", "bytes_in_use"} <= each.keys() for each in stats):
        return otherwise
    free = min(each["bytes_limit"] - each["bytes_in_use"] for each in stats)
    return 1 << max(free // SHARE, 1).bit_length() - 1
