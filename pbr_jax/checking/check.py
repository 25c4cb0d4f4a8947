"""The check: runs in rounds, and the verdict on the last round."""

import dataclasses
import math
import time
from pathlib import Path

from pbr_jax import data
from pbr_jax.base.files import write_text
from pbr_jax.base.types import UserError
from pbr_jax.checking.rounds import ANSWERED, CHOSEN, NAMES, NOTHING, ROWS, Round, rounds
from pbr_jax.checking.verdict import Verdict, verdict
from pbr_jax.checking.words import blocks, title, told
from pbr_jax.config import Benchmark, Config
from pbr_jax.eval.report import report
from pbr_jax.experiment.opening import plan_of
from pbr_jax.methods import generate

PAGE, NUMBERS, REPORT = "verdict.md", "verdict.json", "report.html"
_LIKELIHOOD = 0.7  # share of the time that likelihoods get, where answers are to be written after them
_SPOKEN = 10  # questions that are answered in the first round of answers
_SLOWER = 4.0  # an answer takes so many times as long as its likelihood, to plan that round by


def check(what: str | Path | Config, out: str | Path, minutes: float = 10.0) -> Verdict:
    """Tests whether users' own history helps, on as many questions as `minutes` allow.

    Args:
      what: a folder of the benchmark `own`, or a config whose benchmark, models and prompt are used.
      out: the folder for the runs, `verdict.md`, `verdict.json` and `report.html`.
      minutes: the target for wall-clock time. The first round always runs, with 25 questions, or with fewer
        (at least 10) if 25 would take too long.

    Raises UserError if nothing can be measured, because there is no history, or because there are neither
    answers to score nor relevant documents.
    """
    if not minutes > 0:
        raise UserError(f"minutes is {minutes:g}, want more than 0")
    start = time.monotonic()
    end = start + 60 * minutes
    base = what if isinstance(what, Config) else Config(benchmark=Benchmark(name="own", root=str(what)))
    folder, (scored, total) = Path(out), measured(base)
    speaks = scored.eval.likelihood == "on" and data.task(base.benchmark).kind != "retrieval"
    *_, last = rounds(scored, ROWS, folder, total, start + 60 * minutes * (_LIKELIHOOD if speaks else 1))
    taken = time.monotonic() - start
    answers = _answers(base, folder / "answers", last, end) if speaks else None
    store = plan_of(last.folders[CHOSEN]).store.value
    found = verdict(last.folders, store, None if answers is None else answers.folders)
    notes = list(_notes(total, last))
    if speaks and answers is None:
        notes.append(_no_answers(last, taken))
    found = dataclasses.replace(
        found,
        notes=(*found.notes, *notes),
        seconds=(time.monotonic() - start, 60 * minutes),
        data=Path(base.benchmark.root).resolve().name if base.benchmark.root else base.benchmark.name,
        folder=str(folder),
        flags=_flags(base),
    )
    found.write(folder / NUMBERS)
    write_text(folder / PAGE, told(found))
    page = report(
        [*last.folders.values()],
        "html",
        reference=NOTHING,
        verdict=blocks(found),
        title=title(found),
        labels=NAMES,
    )
    write_text(folder / REPORT, page)
    return found


def measured(base: Config) -> tuple[Config, int]:
    """The config with the first measurement, and the number of questions; the data are read once.

    Likelihoods are measured if there are answers, otherwise retrieval.
    """
    total, answered, judged, history = 0, False, False, False
    for example in data.read(base.benchmark):
        total += 1
        answered = answered or example.target is not None
        judged = judged or (example.scored and bool(example.relevant))
        history = history or (example.scored and bool(example.profile))
    if not answered and not (judged and data.task(base.benchmark).kind == "retrieval"):
        raise UserError(
            f"{base.benchmark.root}: found no answer to any question, wanted a `target` of some, or "
            "`relevant` documents and a task of kind retrieval"
        )
    if not history:
        raise UserError(
            f"{base.benchmark.root}: found no question with a history, wanted documents of its user from "
            "before; questions see earlier rows only, and with dates of whole days no row of their own day"
        )
    evaluation = dataclasses.replace(base.eval, likelihood="on" if answered else "off")
    config = dataclasses.replace(base, generate=generate.Nothing(), eval=evaluation)
    return config, total if base.limit is None else min(total, base.limit)


def _flags(base: Config) -> tuple[str, ...]:
    """The flags of a command on the same data with a model that is the reader's own, or the one given."""
    model = "FOLDER" if base.llm.model == Config().llm.model else base.llm.model
    root = ("--benchmark.root", base.benchmark.root) if base.benchmark.root else ()
    return ("--benchmark.name", base.benchmark.name, *root, "--llm.model", model)


def _answers(base: Config, out: Path, scored: Round, end: float) -> Round | None:
    """The last round of answers that ends in time; None where there is none. Labels are scored."""
    total = scored.questions
    if time.monotonic() + _speaking(scored) > end:
        return None
    labelled = data.task(base.benchmark).kind in ("classification", "rating")
    if labelled and isinstance(base.generate, generate.Auto):
        base = dataclasses.replace(base, generate=generate.Label())
    *_, last = rounds(base, ANSWERED, out, total, end, first=_SPOKEN, what="answers")
    return last


def _speaking(scored: Round) -> float:
    """Seconds that the first round of answers is planned to take."""
    return _SLOWER * scored.rate * len(ANSWERED) / len(ROWS) * min(_SPOKEN, scored.questions)


def _no_answers(scored: Round, taken: float) -> str:
    """What is said where there was no time for answers; `taken`: seconds of the likelihoods."""
    needed = max(_speaking(scored) / (1 - _LIKELIHOOD), taken + _speaking(scored))
    return (
        "There was no time to write answers, so the task's metrics are not shown. At the speed of this check "
        f"--minutes {math.ceil(needed / 60)} would show them."
    )


def _notes(total: int, scored: Round) -> list[str]:
    if scored.questions == total:
        return []
    return [
        f"Measured on {scored.questions} of {total} questions, spread over users. Check again with more "
        "--minutes for more questions: what is measured stays in the cache."
    ]
