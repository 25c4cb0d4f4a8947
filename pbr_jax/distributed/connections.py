"""Connections between the processes of a run (`hosts`): lines of JSON in both directions."""

import json
import secrets
import socket
import threading
from queue import SimpleQueue
from typing import IO, Any

_LONGEST = 200  # characters of a greeting


class Peer:
    """A process at the other end: its number, what it says, line by line, and what was said, in order.

    `said` are its values, `replies` what it has answered.
    """

    def __init__(self, number: int, heard: IO[str], told: IO[str]) -> None:
        self.number, self.heard, self._told = number, heard, told
        self.said: SimpleQueue[Any] = SimpleQueue()
        self.replies: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self._lock = threading.Lock()

    def write(self, message: dict[str, Any]) -> None:
        """Tells it something. Raises OSError where the connection is closed."""
        with self._lock:
            self._told.write(json.dumps(message) + "\n")
            self._told.flush()

    def close(self) -> None:
        """Closes the connection."""
        self.heard.close()
        self._told.close()


def server() -> socket.socket:
    """Where others can connect to, at a port that the system chooses."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", 0), family=family, dualstack_ipv6=both)


def connected(place: tuple[str, int], password: str, number: int, seconds: float) -> Peer:
    """Process 0, which is told the number of this one."""
    heard, told = _files(socket.create_connection(place, seconds))
    told.write(f"{password} {number}\n")
    told.flush()
    return Peer(0, heard, told)


def accepted(connection: socket.socket, password: str) -> Peer | None:
    """The process that has connected; None for a stranger."""
    heard, told = _files(connection)
    given, _, number = heard.readline(_LONGEST).strip().partition(" ")
    if secrets.compare_digest(given.encode(), password.encode()):
        return Peer(int(number), heard, told)
    heard.close()
    told.close()
    return None


def _files(connection: socket.socket) -> tuple[IO[str], IO[str]]:
    """Lines that come and that go; a host that has lost its power is found out within half a minute."""
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    with connection:
        return connection.makefile("r", encoding="utf-8"), connection.makefile("w", encoding="utf-8")
