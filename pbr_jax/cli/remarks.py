"""The commands on users' remarks: feedback, store log, store erase."""

import argparse
import time
from pathlib import Path
from typing import Any

from pbr_jax.base import terminal
from pbr_jax.base.types import UserError
from pbr_jax.experiment.opening import open
from pbr_jax.remarks.judge import Script
from pbr_jax.remarks.log import Event
from pbr_jax.remarks.stores import Observed

_LONGEST = 70  # characters of a text in the list of changes


def add(commands: Any) -> None:
    """Adds the commands to those of a parser."""
    feedback = commands.add_parser(
        "feedback", help="submit a user's remark, which is judged and can change what is retrieved"
    )
    feedback.add_argument("--run", type=Path, required=True, metavar="DIR")
    feedback.add_argument("--user", required=True)
    feedback.add_argument(
        "--request", metavar="ID", help="id of the request; a remark repeated with the same id counts once"
    )
    feedback.add_argument(
        "--judge", type=Path, metavar="FILE", help="JSON file of rules that judge instead of the model"
    )
    feedback.add_argument("--dry", action="store_true", help="show what would change, without saving it")
    feedback.add_argument("remark")
    feedback.set_defaults(function=_feedback)

    store = commands.add_parser("store", help="list or erase the changes made by remarks")
    actions = store.add_subparsers(required=True, metavar="{log,erase}")
    for name, function, help in (
        ("log", _log, "list the changes, and the claims that need more users"),
        ("erase", _erase, "erase a remark with its document, or everything from a user"),
    ):
        action = actions.add_parser(name, help=help)
        action.add_argument("--run", type=Path, required=True, metavar="DIR")
        action.set_defaults(function=function)
    what = action.add_mutually_exclusive_group(required=True)
    what.add_argument("--document", metavar="ID")
    what.add_argument("--user")
    for name in _REMOVED:
        actions.add_parser(name, add_help=False).set_defaults(function=_removed, action=name)


_REMOVED = {
    "rollback": "store erase takes back a remark, or all remarks of a user",
    "approve": "a claim is applied once remarks.quorum users have made it; a config with remarks.quorum 1 "
    "needs no second user",
    "verify": "delete the other files of the run's corpus folder to have them made anew from remarks.sqlite",
}


def _removed(options: argparse.Namespace, rest: list[str]) -> int:
    raise UserError(f"store {options.action} was removed; {_REMOVED[options.action]}")


def _feedback(options: argparse.Namespace, rest: list[str]) -> int:
    _nothing_left(rest)
    judge = None if options.judge is None else Script.read(options.judge)
    observed = open(options.run).observe(
        options.user, options.remark, request=options.request, judge=judge, dry=options.dry
    )
    terminal.out(_told(observed))
    return 0


def _told(seen: Observed) -> str:
    """One line on what became of a remark."""
    if seen.verdict is None:
        return f"{seen.state}: the remark tells nothing"
    judged = f"{seen.verdict}, {seen.route}, {seen.operation}"
    if seen.state == "applied":
        return f"applied: {judged} {seen.document} (version {seen.version})"
    if seen.claim is not None:
        return f"waiting: {judged}; claim {seen.claim} has {seen.votes} of {seen.quorum} users"
    return f"{seen.state}: {judged}" if seen.state != "refused" else f"refused: {seen.verdict}"


def _log(options: argparse.Namespace, rest: list[str]) -> int:
    _nothing_left(rest)
    remarks = open(options.run).remarks
    for event in remarks.history():
        terminal.out(_line(event))
    for claim, votes in remarks.waiting():
        terminal.out(
            f"claim {claim.id}: {votes} of {remarks.options.quorum} users; {claim.operation} "
            f"{claim.target or ''} {_short(claim.summary)}"
        )
    return 0


def _line(event: Event) -> str:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(event.at))
    if event.store is None:
        return f"{event.version}  {at}  {event.op}  (of a user who was erased)"
    where = f"user {event.store}" if event.store else "shared"
    instead = f" for {event.previous}" if event.previous else ""
    parts = [event.op, where, f"{event.document or 'all'}{instead}", f"({event.reason})"]
    if event.op in ("add", "modify"):
        parts.append("[erased]" if event.text is None else _short(event.text))
    # A name may hold line feeds, which would look like further changes.
    return f"{event.version}  {at}  " + "  ".join(" ".join(part.split()) for part in parts)


def _short(text: str | None) -> str:
    return " ".join((text or "").split())[:_LONGEST]


def _erase(options: argparse.Namespace, rest: list[str]) -> int:
    _nothing_left(rest)
    count = open(options.run).remarks.erase(options.document, options.user)
    terminal.out(f"remarks erased, with what they made: {count}")
    return 0


def _nothing_left(rest: list[str]) -> None:
    if rest:
        raise UserError(f"unknown argument {rest[0]!r}; --help lists what there is")
