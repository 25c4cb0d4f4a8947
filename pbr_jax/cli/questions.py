"""The commands on single questions: show, ask and picture."""

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pbr_jax.base import terminal
from pbr_jax.base.files import refuse_unmarked, replace_own
from pbr_jax.base.types import UserError
from pbr_jax.eval.card_text import DOCUMENTS, QuestionCard
from pbr_jax.eval.cards import Card, cards, of_user
from pbr_jax.eval.folders import folders_of
from pbr_jax.eval.run_files import verified
from pbr_jax.eval.runs import read_run, run_labels
from pbr_jax.experiment.evaluation import told_of
from pbr_jax.experiment.opening import open
from pbr_jax.experiment.picture import picture
from pbr_jax.system import Reply

_PICTURE = "<!-- pbr_jax picture -->"  # what our own files begin with


def add(commands: Any) -> None:
    """Adds the commands to those of a parser."""
    show = commands.add_parser("show", help="show documents, scores, answers and metrics of single questions")
    show.add_argument("runs", type=Path, nargs="+", metavar="DIR", help="a run, or a folder of runs")
    which = show.add_mutually_exclusive_group(required=True)
    which.add_argument("--question", metavar="ID")
    which.add_argument("--user", metavar="ID", help="show the first questions of this user")
    show.add_argument(
        "--limit", type=int, default=3, metavar="N", help="maximum number of questions of the user (3)"
    )
    show.add_argument(
        "--documents",
        type=int,
        default=DOCUMENTS,
        metavar="N",
        help=f"number of documents of each run ({DOCUMENTS})",
    )
    show.add_argument("--prompt", action="store_true", help="also show the prompt that the model received")
    show.add_argument("--json", action="store_true", help="print one JSON object, with all documents")
    show.set_defaults(function=_show)

    ask = commands.add_parser("ask", help="answer one question of one user with a finished run")
    ask.add_argument("--run", type=Path, required=True, metavar="DIR")
    ask.add_argument("--user", required=True)
    ask.add_argument(
        "--json", action="store_true", help="print one JSON object: answer, documents, tokens, seconds"
    )
    ask.add_argument("query")
    ask.set_defaults(function=_ask)

    drawn = commands.add_parser("picture", help="plot a question of a finished run and the user's documents")
    drawn.add_argument("--run", type=Path, required=True, metavar="DIR")
    drawn.add_argument("--question", required=True, metavar="ID")
    drawn.add_argument("--out", type=Path, required=True, metavar="FILE.svg")
    drawn.set_defaults(function=_picture)


def _show(options: argparse.Namespace, rest: list[str]) -> int:
    _nothing_left(rest)
    for name in ("limit", "documents"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name} is {getattr(options, name)}, want at least 1")
    folders = folders_of(options.runs)
    asked = [options.question] if options.user is None else of_user(folders[0], options.user)
    ids = asked[: options.limit]
    by_run = {
        name: {card.id: card for card in cards(folder, ids)} for name, folder in _named(folders).items()
    }
    questions = [QuestionCard({name: own[id] for name, own in by_run.items()}) for id in ids]
    if options.json:
        told = [{name: _fields(card, options.prompt) for name, card in one.runs.items()} for one in questions]
        found = [{"id": id, "runs": runs} for id, runs in zip(ids, told, strict=True)]
        terminal.out(json.dumps({"questions": found, "of": len(asked)}))
        return 0
    for place, question in enumerate(questions):
        between = [terminal.Paragraph("")] if place else []
        card = question.paragraphs(documents=options.documents, prompt=options.prompt)
        terminal.page([*between, *card])
    if len(asked) > len(ids):
        terminal.err(f"{len(ids)} of {len(asked)} questions of user {options.user}; --limit N shows more")
    return 0


def _named(folders: list[Path]) -> dict[str, Path]:
    """Folders of runs by what the runs are called beside each other."""
    if len(folders) == 1:
        return {str(verified(folders[0])["system"]): folders[0]}
    return dict(zip(run_labels([read_run(folder) for folder in folders]), folders, strict=True))


def _fields(card: Card, prompt: bool) -> dict[str, Any]:
    return {name: value for name, value in asdict(card).items() if prompt or name != "messages"}


def _ask(options: argparse.Namespace, rest: list[str]) -> int:
    _nothing_left(rest)
    system, start = open(options.run), time.perf_counter()
    before = dict(system.tally.counts)
    reply = system.ask(options.user, options.query)
    if options.json:
        seconds = round(time.perf_counter() - start, 3)
        spent = {name: count - before.get(name, 0) for name, count in system.tally.counts.items()}
        run = {"run": str(options.run), "user": options.user, "question": options.query}
        terminal.out(json.dumps({**run, **_values(reply, spent), "seconds": seconds}))
        return 0
    terminal.out(reply.text)
    if reply.profile:
        terminal.err(f"  about the user: {reply.profile}")
    for candidate in reply.documents:
        begin = " ".join(candidate.document.text[:90].split())
        parts = "".join(f"  {name} {score:.3f}" for name, score in candidate.scores.items())
        terminal.err(f"  {candidate.score:8.3f}{parts}  {candidate.document.id}  {begin}")
    return 0


def _values(reply: Reply, spent: dict[str, int]) -> dict[str, Any]:
    """A reply as JSON; tokens are None where the method that answers counts none, as `label` does."""
    dated = [{} if c.document.time is None else {"time": c.document.time} for c in reply.documents]
    return {
        "answer": reply.text,
        "documents": [
            {**told_of(one), **time, "text": one.document.text}
            for one, time in zip(reply.documents, dated, strict=True)
        ],
        "profile": reply.profile,
        "prompt_tokens": spent.get("generate_prompt_tokens"),
        "answer_tokens": spent.get("generate_answer_tokens"),
    }


def _picture(options: argparse.Namespace, rest: list[str]) -> int:
    _nothing_left(rest)
    refuse_unmarked(options.out, _PICTURE)
    drawn = picture(options.run, options.question)
    replace_own(options.out, f"{_PICTURE}\n{drawn}\n", _PICTURE)
    terminal.out(options.out)
    return 0


def _nothing_left(rest: list[str]) -> None:
    if rest:
        raise UserError(f"unknown argument {rest[0]!r}; --help lists what there is")
