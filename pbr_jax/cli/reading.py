"""The commands that read finished runs: report, examples, show, picture and export."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from pbr_jax.base import terminal
from pbr_jax.base.files import refuse_unmarked, replace_own
from pbr_jax.base.types import UserError
from pbr_jax.eval import report as reports
from pbr_jax.eval.cards import QuestionCard, cards, of_user
from pbr_jax.eval.run_files import folders_of, verified
from pbr_jax.eval.runs import read_run, run_labels
from pbr_jax.experiment import questions
from pbr_jax.exporting import export as exporting

# What our own files begin with, so that nobody else's is overwritten.
_PICTURE = "<!-- pbr_jax picture -->"
_REPORT = {
    "md": "<!-- pbr_jax report -->",
    "html": '<meta name="generator" content="pbr_jax report">',
    "latex": "% pbr_jax report",
    "csv": ",".join(reports.CSV),
}


def report(options: argparse.Namespace) -> None:
    """Compares runs in one table."""
    text = reports.report(
        options.runs,
        options.format,
        all_metrics=options.all,
        reference=options.reference,
        part=options.over,
        questions=options.questions,
        rows=options.rows or (),
    )
    if options.out is None:
        terminal.out(text)
        return
    marker = _REPORT[options.format]
    place = text.index("<head>\n") + len("<head>\n") if options.format == "html" else 0
    written = f"{text}\n" if text.startswith(marker) else f"{text[:place]}{marker}\n{text[place:]}\n"
    replace_own(options.out, written, marker)
    terminal.out(options.out)


def examples(options: argparse.Namespace) -> None:
    """Shows questions in full."""
    terminal.out(questions.examples(options.runs, options.count))


def show(options: argparse.Namespace) -> None:
    """Shows what runs ranked and answered for single questions."""
    for name in ("limit", "documents"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name} is {getattr(options, name)}, want at least 1")
    folders = folders_of(options.runs)
    of_this_user = [options.question] if options.user is None else of_user(folders[0], options.user)
    ids = of_this_user[: options.limit]
    by_run = {
        name: {card.id: card for card in cards(folder, ids)} for name, folder in _named(folders).items()
    }
    shown = [QuestionCard({name: own[id] for name, own in by_run.items()}) for id in ids]
    if options.json:
        values = [
            {"id": id, "runs": {name: asdict(card) for name, card in one.runs.items()}}
            for id, one in zip(ids, shown, strict=True)
        ]
        for card in () if options.prompt else (card for one in values for card in one["runs"].values()):
            del card["messages"]
        terminal.out(json.dumps({"questions": values, "of": len(of_this_user)}))
        return
    for place, question in enumerate(shown):
        between = [terminal.Paragraph("")] if place else []
        card = question.paragraphs(documents=options.documents, prompt=options.prompt)
        terminal.page([*between, *card])
    if len(of_this_user) > len(ids):
        terminal.err(
            f"{len(ids)} of {len(of_this_user)} questions of user {options.user}; --limit N shows more"
        )


def _named(folders: list[Path]) -> dict[str, Path]:
    """Folders of runs by what the runs are called beside each other."""
    if len(folders) == 1:
        return {str(verified(folders[0])["system"]): folders[0]}
    return dict(zip(run_labels([read_run(folder) for folder in folders]), folders, strict=True))


def picture(options: argparse.Namespace) -> None:
    """Draws a question among the user's documents."""
    refuse_unmarked(options.out, _PICTURE)
    drawn = questions.picture(options.run, options.question)
    replace_own(options.out, f"{_PICTURE}\n{drawn}\n", _PICTURE)
    terminal.out(options.out)


def export(options: argparse.Namespace) -> None:
    """Exports a run in a format of other programs."""
    terminal.out(
        exporting.export(options.run, options.out, options.format, slot=options.slot, blocks=options.blocks)
    )
