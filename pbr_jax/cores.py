"""The cores of a CPU as lanes.

A core that is busy with work of its own gets more done than cores that share every small operation of one
program (benchmarks/RESULTS.md).
"""

import os
from collections.abc import Callable
from typing import Any

import jax


def count() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def compiled(function: Callable[..., Any], one_core: bool, **options: Any) -> Any:
    """`jax.jit`, for one core where several programs run side by side."""
    compiler = {"xla_cpu_multi_thread_eigen": False} if one_core else None
    return jax.jit(function, compiler_options=compiler, **options)
