"""Several processes, one a host, that make one run together.

Process 0 leads. It alone takes the locks of stages, chooses the stages to run, publishes artefacts and
writes the run's folder. The others follow: they wait for its orders, and take part where a stage is divided
among processes. All of them read and write one cache. Messages are JAX's collective operations, so a process
that ends makes the others' next operation fail.
"""

import json
import os
import secrets
import socket
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from pbr_jax.base import terminal
from pbr_jax.base.files import cache_folder, private_folder, write_text
from pbr_jax.base.types import UserError

_START = 60  # seconds in which all processes must have started
_SILENT = 60  # seconds after which JAX takes a process for dead that it hears nothing of
_PATIENCE = 5  # seconds in which the others can end in order before process 0, with which JAX ends them
_WAITING = 30 * 24 * 3600  # seconds that a CPU waits for another's part of a collective operation
_BLOCK = 1024  # bytes of a message are a multiple of it, so that few programs are compiled
VISIBLE = 30  # seconds in which a file that one host wrote must be seen by the others
_FAILED = 2  # the exit code of a process that ends because another did
_MISTAKES = (LookupError, TypeError, ValueError, FileExistsError, FileNotFoundError, NotADirectoryError)


class _State:
    """The number of this process, how many there are, and whether they make the present stage together."""

    index = 0
    count = 1
    together = False
    joined = False


def several() -> bool:
    """Whether this process is one of several that make a run together."""
    return _State.count > 1


def joined() -> bool:
    """Whether the processes under `jax.distributed` know of each other by `start`."""
    return _State.joined


def leads() -> bool:
    """Whether this process takes locks, publishes artefacts and writes files: the only one, or process 0."""
    return _State.index == 0


def count() -> int:
    """How many processes make the present stage together."""
    return _State.count if _State.together else 1


def index() -> int:
    """The number of this process among those."""
    return _State.index if _State.together else 0


@contextmanager
def together() -> Iterator[None]:
    """Inside all processes make one stage.

    Raises RuntimeError for errors by which one process alone would begin a damaged stage anew.
    """
    _State.together = True
    try:
        yield
    except _MISTAKES as error:
        if isinstance(error, UserError):
            raise
        raise RuntimeError(f"{type(error).__name__}: {error}") from error
    finally:
        _State.together = False


def share(size: int) -> slice:
    """The part of so many things that this process makes; all parts together are all of them, in order."""
    bounds = [size * number // count() for number in (index(), index() + 1)]
    return slice(*bounds)


def gather(value: Any = None) -> list[Any]:
    """What every process gives, as JSON, in their order. Each waits until all have called."""
    if not several():
        return [value]
    message = np.frombuffer(json.dumps(value).encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.int32(len(message)))
    padded = np.zeros(-(-sizes.max() // _BLOCK) * _BLOCK, np.uint8)
    padded[: len(message)] = message
    rows = multihost_utils.process_allgather(padded)
    return [json.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]


def order(value: Any = None) -> Any:
    """An order of process 0, which gives it. The others wait for it."""
    return gather(value)[0]


def failed(code: int, error: Exception | None = None) -> None:
    """Ends this process at once where there are several: else it would wait for the others to end.

    `error`: of the program, which is shown in full.
    """
    if several():
        if error is not None:
            terminal.err("".join(traceback.format_exception(error)))
        if leads():
            time.sleep(_PATIENCE)
        os._exit(code)


# -- the beginning -------------------------------------------------------------------------------------


def start(coordinator: str | None = None, processes: int | None = None, process: int | None = None) -> None:
    """Makes this process one of several; nothing of JAX may have been used before.

    Args:
      coordinator: address and port of process 0, which all hosts reach; None, like the other two: as the
        cluster's environment says (Slurm, Open MPI, Kubernetes, Cloud TPU).
      processes: how many there are.
      process: the number of this one, from 0.

    Ends this process where another one does not start within a minute. Raises UserError where they are not
    known, and where the hosts do not share the cache.
    """
    late = threading.Timer(_START, _late)
    late.daemon = True
    late.start()
    waiting = f"--xla_cpu_collective_timeout_seconds={_WAITING}"
    os.environ["XLA_FLAGS"] = f"{waiting} {os.environ.get('XLA_FLAGS', '')}"
    try:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.config.update("jax_enable_preemption_service", False)  # it would ignore SIGTERM
        jax.distributed.initialize(
            coordinator,
            processes,
            process,
            initialization_timeout=2 * _START,  # at which JAX would abort
            heartbeat_timeout_seconds=_SILENT,
        )
    except (ValueError, TypeError, RuntimeError) as error:
        raise UserError(
            f"the processes cannot be joined ({error}); start them by a cluster's launcher (Slurm, Open MPI, "
            "Kubernetes, Cloud TPU), or give each --coordinator HOST:PORT --processes N --process I"
        ) from error
    finally:
        late.cancel()
    _State.index, _State.count, _State.joined = jax.process_index(), jax.process_count(), True
    if several():
        _check_cache()


def _late() -> None:
    """Ends this process, which waits in vain."""
    terminal.err(
        f"pbr-jax: error: after {_START} s not all processes have started; start them all at once, with one "
        "--coordinator, which all hosts must reach, and one number of --processes"
    )
    os._exit(_FAILED)


def _check_cache() -> None:
    """Raises UserError where a host does not see what process 0 writes into the cache."""
    folder = cache_folder()
    token = folder / f"hosts-{secrets.token_hex(8)}"
    if leads():
        private_folder(folder)
        write_text(token, token.name)
    places = gather(f"{socket.gethostname()}:{folder.absolute()}")
    token = folder / order(token.name)
    deadline = time.monotonic() + VISIBLE
    while not all(seen := gather(token.is_file())) and order(time.monotonic() < deadline):
        time.sleep(0.2)
    if leads():
        token.unlink()
    if not all(seen):
        blind = seen.index(False)
        raise UserError(
            f"process {blind}, whose cache is {places[blind]}, does not see that of process 0, {places[0]}; "
            "set PBR_JAX_CACHE to one folder that all hosts share"
        )
