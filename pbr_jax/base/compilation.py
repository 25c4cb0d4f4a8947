"""The cores of a CPU as lanes.

A core that is busy with work of its own gets more done than cores that share every small operation of one
program (benchmarks/RESULTS.md).
"""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from pbr_jax.base import terminal
from pbr_jax.base.files import private_folder


def count() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def compiled(function: Callable[..., Any], one_core: bool, **options: Any) -> Any:
    """`jax.jit`, for one core where several programs run side by side.

    Then LLVM's first level of optimisation is used: programs compile in four fifths of the time, and are
    as fast, since their time goes into products of matrices, which are compiled already.
    """
    compiler: dict[str, bool | int] | None = {"xla_cpu_multi_thread_eigen": False} if one_core else None
    if compiler and not jax.config.read("jax_disable_most_optimizations"):
        compiler["xla_backend_optimization_level"] = 1
    return jax.jit(announced(function), compiler_options=compiler, **options)


def enable_compilation_cache(folder: Path) -> None:
    """Keep compiled programs in `folder`, for this process and the next ones.

    Where the user has chosen a folder (JAX_COMPILATION_CACHE_DIR), in that one.
    """
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        private_folder(folder)
        jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def announced(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function to compile, which says so: it is traced once for each program, just before."""

    @functools.wraps(function)
    def traced(*arguments: Any, **options: Any) -> Any:
        terminal.doing(f"compiling {function.__module__.rpartition('.')[2]}", slow=True)
        return function(*arguments, **options)

    return traced
