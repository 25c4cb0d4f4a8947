"""The cores of a CPU as lanes.

A core that is busy with work of its own gets more done than cores that share every small operation of one
program (benchmarks/RESULTS.md).
"""

import functools
import os
from collections.abc import Callable
from typing import Any

import jax

from pbr_jax import terminal


def count() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def compiled(function: Callable[..., Any], one_core: bool, **options: Any) -> Any:
    """`jax.jit`, for one core where several programs run side by side."""
    compiler = {"xla_cpu_multi_thread_eigen": False} if one_core else None
    return jax.jit(announced(function), compiler_options=compiler, **options)


def announced(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function to compile, which says so: it is traced once for each program, just before."""

    @functools.wraps(function)
    def traced(*arguments: Any, **options: Any) -> Any:
        terminal.doing(f"compiling {function.__module__.rpartition('.')[2]}", slow=True)
        return function(*arguments, **options)

    return traced
