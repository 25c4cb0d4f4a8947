"""One command: the rounds of runs, and the verdict on the last one."""

import dataclasses
import time
from pathlib import Path

from pbr_jax import data
from pbr_jax.checking.rounds import ANSWERED, CHOSEN, NOTHING, ROWS, Round, rounds
from pbr_jax.checking.verdict import Verdict, verdict
from pbr_jax.checking.words import blocks, told
from pbr_jax.config import Benchmark, Config
from pbr_jax.eval.report import report
from pbr_jax.files import write_text
from pbr_jax.methods import generate
from pbr_jax.opening import plan_of
from pbr_jax.types import UserError

PAGE, NUMBERS, REPORT = "verdict.md", "verdict.json", "report.html"
_LIKELIHOOD = 0.7  # share of the time that likelihoods get, where answers are to be written after them
_SPOKEN = 10  # questions that are answered in the first round of answers
_SLOWER = 4.0  # an answer takes so many times as long as its likelihood, to plan that round by


def check(what: str | Path | Config, out: str | Path, minutes: float = 10.0) -> Verdict:
    """Whether the users' own history helps, measured on as many questions as `minutes` allow.

    Args:
      what: a folder of the benchmark `own`, or a config whose benchmark, models and prompt are taken.
      out: where runs, `verdict.md`, `verdict.json` and `report.html` go.
      minutes: wall-clock time that it should end in; a first round is always run, of 25 questions, or of as
        few as 10 where the machine is slow.

    Raises UserError where nothing can be measured: no history, or no answers to score and no relevant
    documents.
    """
    if not minutes > 0:
        raise UserError(f"minutes is {minutes:g}, want more than 0")
    start = time.monotonic()
    end = start + 60 * minutes
    base = what if isinstance(what, Config) else Config(benchmark=Benchmark(name="own", root=str(what)))
    folder, scored = Path(out), measured(base)
    total = sum(1 for _ in data.read(base.benchmark))
    total = total if base.limit is None else min(total, base.limit)
    speaks = scored.eval.likelihood == "on" and data.task(base.benchmark).kind != "retrieval"
    *_, last = rounds(scored, ROWS, folder, total, start + 60 * minutes * (_LIKELIHOOD if speaks else 1))
    answers = _answers(base, folder / "answers", last, end) if speaks else None
    store = plan_of(last.folders[CHOSEN]).store.value
    found = verdict(last.folders, store, None if answers is None else answers.folders)
    notes = (*found.notes, *_notes(total, last, answers, speaks=speaks))
    found = dataclasses.replace(found, notes=notes, seconds=(time.monotonic() - start, 60 * minutes))
    found.write(folder / NUMBERS)
    write_text(folder / PAGE, told(found))
    page = report([*last.folders.values()], "html", reference=NOTHING, verdict=blocks(found))
    write_text(folder / REPORT, page)
    return found


def measured(base: Config) -> Config:
    """The config with what is measured first: likelihoods where there are answers, else what is found."""
    answered = any(example.target is not None for example in data.read(base.benchmark))
    likely = "on" if answered else "off"
    retrieval = data.task(base.benchmark).kind == "retrieval"
    if not answered and not (retrieval and any(e.relevant for e in data.read(base.benchmark) if e.scored)):
        raise UserError(
            f"{base.benchmark.root}: found no answer to any question, wanted a `target` of some, or "
            "`relevant` documents and a task of kind retrieval"
        )
    if not any(example.profile for example in data.read(base.benchmark) if example.scored):
        raise UserError(
            f"{base.benchmark.root}: found no question with a history, wanted documents of its user from "
            "before; questions see earlier rows only, and with dates of whole days no row of their own day"
        )
    evaluation = dataclasses.replace(base.eval, likelihood=likely)
    return dataclasses.replace(base, generate=generate.Nothing(), eval=evaluation)


def _answers(base: Config, out: Path, scored: Round, end: float) -> Round | None:
    """The last round of answers that ends in time; None where there is none. Labels are scored."""
    total = scored.questions
    each = _SLOWER * scored.rate * len(ANSWERED) / len(ROWS)
    if time.monotonic() + each * min(_SPOKEN, total) > end:
        return None
    labelled = data.task(base.benchmark).kind in ("classification", "rating")
    if labelled and isinstance(base.generate, generate.Auto):
        base = dataclasses.replace(base, generate=generate.Label())
    *_, last = rounds(base, ANSWERED, out, total, end, first=_SPOKEN, what="answers")
    return last


def _notes(total: int, scored: Round, answers: Round | None, *, speaks: bool) -> list[str]:
    notes = []
    if scored.questions < total:
        notes.append(
            f"Measured on {scored.questions} of {total} questions, spread over users; --minutes M gives "
            "it more."
        )
    if speaks and answers is None:
        notes.append("There was no time to write answers, so the task's metrics are not shown.")
    return notes
