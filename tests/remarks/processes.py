"""Processes that write remarks: one of two writers, and one that is killed at each of many moments.

The latter erases a remark in the end; that is killed, too.
"""

import json
import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from worlds import World

ROWING = "i row at night"  # is erased in the end
SAID = [
    ("r1", "ann", "the lake is closed"),
    ("r2", "bob", "the lake is closed"),
    ("r3", "eve", ROWING),
    ("r4", "ann", "false"),
    ("r5", "ann", "ann takes no tea"),
]


def write(folder: Path, name: str, count: int) -> None:
    """Remarks of seven users."""
    world = World(folder)
    for number in range(count):
        world.stores.observe(f"{name}{number % 7}", f"{name} remark {number}", f"{name}-{number}")


def say(folder: Path, acknowledged: Path) -> None:
    """All that is said, each acknowledged when it is done."""
    world = World(folder)
    world.stores.catch_up()
    for request, user, text in SAID:
        seen = world.stores.observe(user, text, request)
        with acknowledged.open("a") as file:
            file.write(json.dumps([request, seen.state, seen.version]) + "\n")
            file.flush()
            os.fsync(file.fileno())
    rowing = world.stores.log.remarks("request='r3'")[0]
    if rowing.text is not None:
        world.stores.erase(document=f"remark:{rowing.id}")
    assert ROWING.encode() not in world.bytes()


def state(folder: Path) -> dict[str, Any]:
    """What log and corpus hold, without moments."""
    world = World(folder)
    world.stores.catch_up()
    return {
        "remarks": [[r.request, r.state, r.version] for r in world.stores.log.remarks()],
        "events": [[e.version, e.op, e.store, e.document, e.text] for e in world.stores.history()],
        "seen": {user: world.seen(user) for user in ("ann", "bob", "cyd")},
    }


def apart(work: Callable[[], object], statement: int | None = None) -> int:
    """Works in a process of its own, which is killed when SQLite begins that many statements; its status, or
    the number of statements."""
    begun = 0
    connect = sqlite3.connect

    def count(_: str) -> None:
        nonlocal begun
        begun += 1
        if begun == statement:
            os.kill(os.getpid(), signal.SIGKILL)

    def traced(*args: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*args, **options)
        connection.set_trace_callback(count)
        return connection

    read, told = os.pipe()
    if not (child := os.fork()):
        sqlite3.connect = traced
        work()
        os.write(told, str(begun).encode())
        os._exit(0)
    os.close(told)
    _, status = os.waitpid(child, 0)
    with os.fdopen(read) as file:
        number = file.read()
    return int(number) if number else -status


def kills(root: Path, count: int) -> None:
    """Kills at moments that are spread over all statements; prints the states in which it was."""
    whole = root / "whole"
    whole.mkdir()
    World(whole)
    statements = apart(lambda: say(whole, whole / "told"))
    assert statements > count
    wanted, hit = state(whole), []
    final = {request: [state, version] for request, state, version in wanted["remarks"]}
    for number in range(count):
        folder = root / str(number)
        folder.mkdir()
        World(folder)
        status = apart(lambda: say(folder, folder / "told"), 1 + number * statements // count)  # noqa: B023
        assert status == -signal.SIGKILL, status
        log = folder / "corpus" / "remarks.sqlite"
        before = []
        if log.exists():
            found = state(folder)
            before = found["remarks"]
            events = [[*event[:4], None] if event[4] == ROWING else event for event in found["events"]]
            assert events == wanted["events"][: len(events)]
        told = folder / "told"
        there = {request: [state, version] for request, state, version in before}
        for line in told.read_text().splitlines() if told.exists() else ():
            request, was, version = json.loads(line)
            assert there[request] in ([was, version], final[request]), (number, line)
        hit.append(before[-1][1] if before else "nothing")
        say(folder, told)
        assert state(folder) == wanted, number
    print(json.dumps(hit))


if __name__ == "__main__":
    where, what, *rest = sys.argv[1:]
    if what == "kills":
        kills(Path(where), int(rest[0]))
    else:
        write(Path(where), what, int(rest[0]))
