"""Several processes, one a host, that make one run together.

Process 0 leads. It alone takes locks, chooses the stages to run, publishes artefacts and writes files.
The others follow: they wait for its orders, and take part where a stage is divided among processes. All of
them read the cache of process 0. Every process has a connection to process 0, which carries the orders; a
process that ends early closes it, and all others end too.
"""

import ctypes
import json
import os
import secrets
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import jax
from jax._src import distributed

from pbr_jax.base import terminal
from pbr_jax.base.files import cache_folder, private_folder, write_text
from pbr_jax.base.types import UserError
from pbr_jax.distributed import connections as peers
from pbr_jax.distributed.connections import Peer

_START = 60  # seconds in which all processes must have started
_SILENT = 60  # seconds after which JAX takes a process for dead that it hears nothing of
_VISIBLE = 30.0  # seconds in which a file that one host wrote must be seen by the others
_PATIENCE = 5.0  # seconds that process 0 waits until those have ended that it has told to
_FAILED = 2  # the exit code of a process that ends because another did
_MISTAKES = (LookupError, TypeError, ValueError, FileExistsError, FileNotFoundError, NotADirectoryError)

_SERVED: dict[str, Callable[[Any], Any]] = {}


class _State:
    """Of this process: its number among so many, those it is connected to, whether it works with them."""

    index = 0
    count = 1
    peers: tuple[Peer, ...] = ()
    together = False
    joined = False
    ended = False
    listeners: tuple[Thread, ...] = ()
    asking = threading.Lock()


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


# -- messages ------------------------------------------------------------------------------------------


def announce(order: Any) -> None:
    """An order of process 0 to all others, as JSON."""
    for peer in _State.peers if leads() else ():
        _say(peer, order)


def order() -> Any:
    """The next order of process 0; waits for it."""
    return _State.peers[0].said.get()


def gather(value: Any = None) -> list[Any]:
    """What every process gives, in their order; each waits until all have called."""
    if leads():
        found = [value, *(peer.said.get() for peer in _State.peers)]
        announce(found)
        return found
    _say(_State.peers[0], value)
    return order()


def serve(name: str, function: Callable[[Any], Any]) -> None:
    """Has process 0 answer `ask(name, value)` of the others by a function from JSON to JSON."""
    _SERVED[name] = function


def ask(name: str, value: Any) -> Any:
    """What process 0 answers. Raises UserError for what its function raises."""
    with _State.asking:
        _State.peers[0].write({"ask": name, "of": value})
        reply = _State.peers[0].replies.get()
    if "refused" in reply:
        raise UserError(reply["refused"])
    return reply["reply"]


def _reply(name: str, value: Any) -> dict[str, Any]:
    try:
        return {"reply": _SERVED[name](value)}
    except Exception as error:  # theirs to raise
        return {"refused": str(error) or type(error).__name__}


def _say(peer: Peer, value: Any) -> None:
    try:
        peer.write({"value": value})
    except OSError:  # the thread that listens to it ends this process
        time.sleep(_VISIBLE)


def _listen(peer: Peer) -> None:
    """Keeps what a peer says; ends this process when the peer has ended before its work was done."""
    reason = ""
    try:
        for line in peer.heard:
            message = json.loads(line)
            if "value" in message:
                peer.said.put(message["value"])
            elif "ask" in message:
                peer.write(_reply(message["ask"], message["of"]))
            elif "reply" in message or "refused" in message:
                peer.replies.put(message)
            elif message.get("finished"):
                return
            else:
                reason = message["failed"]
    except (OSError, ValueError):
        pass
    if not _State.ended:
        _end(reason or f"process {peer.number} has died")


def _end(reason: str) -> None:
    """Ends this process at once, as another one has; nothing that is written is left half-written."""
    _State.ended = True
    terminal.err(f"pbr-jax: error: {reason}, so all processes end; the same command continues from here")
    _tell({"failed": reason})
    _leave(_FAILED)


def failed(message: str, code: int, error: Exception | None = None) -> None:
    """Ends this process and, with this message, all others, where there are several. `error`: of ours,
    which is shown in full."""
    if several() and not _State.ended:
        _State.ended = True
        if error is not None:
            terminal.err("".join(traceback.format_exception(error)))
        _tell({"failed": f"process {_State.index} ended ({message})"})
        _leave(code)


def _leave(code: int) -> None:
    """Ends this process; process 0, with which JAX's service ends, after the others."""
    for listener in _State.listeners if leads() else ():
        if listener is not threading.current_thread():
            listener.join(_PATIENCE)
    os._exit(code)


def finished() -> None:
    """This process has done its work, and the others' ends do not matter to it any more."""
    _State.ended = True
    _tell({"finished": True})


def _tell(message: dict[str, Any]) -> None:
    for peer in _State.peers:
        with suppress(OSError):
            peer.write(message)


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
    _delay_aborts()
    late = threading.Timer(_START, _late)
    late.daemon = True
    late.start()
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
    known = distributed.global_state
    _State.index, _State.count = known.process_id or 0, known.num_processes or 1
    _State.joined = True
    jax.local_devices()  # JAX makes them where all processes ask for them
    if several():
        _connect(known.client, (known.coordinator_address or "").rsplit(":", 1)[0].strip("[]"))
        _check_cache()


def _late() -> None:
    """Ends this process, which waits in vain."""
    terminal.err(
        f"pbr-jax: error: after {_START} s not all processes have started; start them all at once, with one "
        "--coordinator, which all hosts must reach, and one number of --processes"
    )
    os._exit(_FAILED)


def _delay_aborts() -> None:
    """JAX aborts a process whose process 0 has gone. The signal's handler becomes `sleep`, which takes the
    signal's number for seconds; meanwhile the thread that listens to process 0 ends this process in order."""
    if os.name == "posix":
        library = ctypes.CDLL(None)
        library.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
        library.signal(signal.SIGABRT, ctypes.cast(library.sleep, ctypes.c_void_p))


def _connect(client: Any, host: str) -> None:
    """A connection of every process with process 0, whose port and password JAX's service tells."""
    if leads():
        password = secrets.token_hex()
        with peers.server() as server:
            client.key_value_set("pbr_jax/link", f"{server.getsockname()[1]} {password}")
            found: dict[int, Peer] = {}
            while len(found) < _State.count - 1:
                peer = peers.accepted(server.accept()[0], password)
                if peer is not None:
                    found[peer.number] = peer
        _State.peers = tuple(found[number] for number in sorted(found))
    else:
        port, password = client.blocking_key_value_get("pbr_jax/link", 1000 * _START).split()
        _State.peers = (peers.connected((host, int(port)), password, _State.index, _START),)
    _State.listeners = tuple(Thread(target=_listen, args=(peer,), daemon=True) for peer in _State.peers)
    for listener in _State.listeners:
        listener.start()


def _check_cache() -> None:
    """Raises UserError where a host does not see what process 0 writes into the cache."""
    folder = cache_folder()
    token = folder / f"hosts-{secrets.token_hex(8)}"
    if leads():
        private_folder(folder)
        write_text(token, token.name)
    places = gather(f"{socket.gethostname()}:{folder.absolute()}")
    name = gather(token.name)[0]
    seen = gather(_appears(folder / name))
    if leads():
        token.unlink()
    if not all(seen):
        blind = seen.index(False)
        raise UserError(
            f"process {blind}, whose cache is {places[blind]}, does not see that of process 0, {places[0]}; "
            "set PBR_JAX_CACHE to one folder that all hosts share"
        )


def published(path: Path, is_there: Callable[[], bool]) -> bool:
    """Whether something is at a path; waits until the disk shows what another process wrote there.

    Raises UserError where it does not within half a minute.
    """
    deadline = time.monotonic() + _VISIBLE
    while not (there := is_there()) and (_State.together or not leads()):
        if time.monotonic() > deadline:
            raise UserError(
                f"{path}, which another process wrote, is not seen here; share the folder with this host"
            )
        time.sleep(0.2)
    return there


def _appears(path: Path) -> bool:
    with suppress(UserError):
        return published(path, path.is_file)
    return False
