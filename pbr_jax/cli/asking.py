"""The commands on opened runs: ask, feedback, store log, store erase; and forget."""

import argparse
import json
import time
from typing import Any

from pbr_jax.base import terminal
from pbr_jax.base.files import replace_own
from pbr_jax.base.types import UserError
from pbr_jax.experiment import forgetting
from pbr_jax.experiment.evaluation import text_of
from pbr_jax.experiment.opening import open
from pbr_jax.remarks.judge import Script
from pbr_jax.remarks.living import Observed
from pbr_jax.remarks.log import Event
from pbr_jax.system import Reply

_LONGEST = 70  # characters of a text in the list of changes


def ask(options: argparse.Namespace) -> None:
    """Answers one question."""
    system, start = open(options.run), time.perf_counter()
    before = dict(system.tally.counts)
    reply = system.ask(options.user, options.query)
    if options.json:
        seconds = round(time.perf_counter() - start, 3)
        spent = {name: count - before.get(name, 0) for name, count in system.tally.counts.items()}
        run = {"run": str(options.run), "user": options.user, "question": options.query}
        terminal.out(json.dumps({**run, **_values(reply, spent), "seconds": seconds}))
        return
    terminal.out(reply.text)
    if reply.note:
        terminal.err(f"  note: {reply.note}")
    if reply.profile:
        terminal.err(f"  about the user: {reply.profile}")
    for candidate in reply.documents:
        begin = " ".join(candidate.document.text[:90].split())
        parts = "".join(f"  {name} {score:.3f}" for name, score in candidate.scores.items())
        terminal.err(f"  {candidate.score:8.3f}{parts}  {candidate.document.id}  {begin}")


def _values(reply: Reply, spent: dict[str, int]) -> dict[str, Any]:
    """A reply as JSON; tokens are None where the method that answers counts none, as `label` does."""
    return {
        "answer": reply.text,
        "documents": [*map(text_of, reply.documents)],
        "profile": reply.profile,
        "note": reply.note,
        "prompt_tokens": spent.get("generate_prompt_tokens"),
        "answer_tokens": spent.get("generate_answer_tokens"),
    }


def forget(options: argparse.Namespace) -> None:
    """Deletes a user, documents of a user, or documents before a date, everywhere within reach."""
    receipt = forgetting.forget(
        options.user or "",
        documents=options.document or (),
        before=options.before or "",
        runs=options.run or (),
        retrain=options.retrain,
        dry=options.dry,
    )
    if receipt.user and not (receipt.stages or receipt.runs or receipt.vectors or receipt.answers):
        terminal.err(f"nothing of user {receipt.user!r} was found; is the name as the data have it?")
    if options.out is not None:
        replace_own(options.out, receipt.text() + "\n", '"user"')
    terminal.out(receipt.text())


# -- remarks --------------------------------------------------------------------------------------------

_REMOVED = {
    "rollback": "store erase takes back a remark, or all remarks of a user",
    "approve": "a claim is applied once remarks.quorum users have made it; a config with remarks.quorum 1 "
    "needs no second user",
    "verify": "delete the other files of the run's corpus folder to have them made anew from remarks.sqlite",
}


def store_removed(options: argparse.Namespace, rest: list[str]) -> None:
    """Says what replaces an action that there was."""
    raise UserError(f"store {options.action} was removed; {_REMOVED[options.action]}")


def feedback(options: argparse.Namespace) -> None:
    """Submits a user's remark."""
    judge = None if options.judge is None else Script.read(options.judge)
    observed = open(options.run).observe(
        options.user, options.remark, request=options.request, judge=judge, dry=options.dry
    )
    terminal.out(_told(observed))


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


def store_log(options: argparse.Namespace) -> None:
    """Lists the changes that remarks have made."""
    remarks = open(options.run).remarks
    for event in remarks.history():
        terminal.out(_line(event))
    for claim, votes in remarks.waiting():
        terminal.out(
            f"claim {claim.id}: {votes} of {remarks.options.quorum} users; {claim.operation} "
            f"{claim.target or ''} {_short(claim.summary)}"
        )


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


def store_erase(options: argparse.Namespace) -> None:
    """Erases a remark, or all of a user."""
    count = open(options.run).remarks.erase(options.document, options.user)
    terminal.out(f"remarks erased, with what they made: {count}")
