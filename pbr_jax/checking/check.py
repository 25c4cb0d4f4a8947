"""The check: runs in rounds, and the verdict on the last round."""

import dataclasses
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pbr_jax import data
from pbr_jax.base.files import write_text
from pbr_jax.base.types import UserError
from pbr_jax.checking.looks import Look, look_at
from pbr_jax.checking.rounds import ANSWERED, CHOSEN, NAMES, OTHER, ROWS, Round, rounds
from pbr_jax.checking.verdict import Text, Verdict, single_gains, verdict
from pbr_jax.checking.words import blocks, title, told
from pbr_jax.config import Benchmark, Config, to_dict
from pbr_jax.eval.report import report
from pbr_jax.eval.runs import read_run
from pbr_jax.experiment.opening import plan_of
from pbr_jax.experiment.plan import Plan
from pbr_jax.methods import generate
from pbr_jax.text.lengths import cut_notes

PAGE, NUMBERS, REPORT = "verdict.md", "verdict.json", "report.html"
_SPOKEN = 10  # questions that are answered in the first round of answers
_SLOWER = 4.0  # an answer takes so many times as long as its likelihood, to plan that round by
_TEXTS, _LENGTH = 3, 300  # questions with the largest gains, and losses; characters of each text


def check(
    what: str | Path | Config, out: str | Path, minutes: float = 10.0, price: Sequence[float] | None = None
) -> Verdict:
    """Tests whether users' own history helps, on as many questions as `minutes` allow.

    Only questions of users who have a history at that time are asked; the others are counted.

    Args:
      what: a folder of the benchmark `own`, or a config whose benchmark, models and prompt are used.
      out: the folder for the runs, `verdict.md`, `verdict.json` and `report.html`.
      minutes: the target for wall-clock time. The first round, of 25 questions, always runs.
      price: of a million prompt tokens and of a million generated ones, in any currency.

    Raises UserError if nothing can be measured, because there is no history, or because there are neither
    answers to score nor relevant documents.
    """
    if not minutes > 0:
        raise UserError(f"minutes is {minutes:g}, want more than 0")
    start = time.monotonic()
    end = start + 60 * minutes
    base = what if isinstance(what, Config) else Config(benchmark=Benchmark(name="own", root=str(what)))
    folder, sample = Path(out), measured(base)
    total = sample.total - sample.cold
    *_, last = rounds(sample.config, ROWS, folder, total, end)
    taken = time.monotonic() - start
    speaks = sample.config.eval.likelihood == "on" and data.task(base.benchmark).kind != "retrieval"
    answers = _answers(_warm(base), folder / "answers", last, end) if speaks else None
    plan = plan_of(last.folders[CHOSEN])
    found = verdict(
        last.folders, plan.store.value, None if answers is None else answers.folders, _look(base, last)
    )
    notes = list(_notes(total, last))
    cut = (note for path in last.folders.values() for note in cut_notes(read_run(path).counts))
    notes += dict.fromkeys(note[0].upper() + note[1:] + "." for note in cut)
    if speaks and answers is None:
        notes.append(_no_answers(last, taken))
    found = dataclasses.replace(
        found,
        texts=_texts(plan, last, found.measure),
        cold=(sample.cold, sample.total),
        price=None if price is None else (price[0], price[1]),
        notes=(*found.notes, *notes),
        seconds=(time.monotonic() - start, 60 * minutes),
        data=Path(base.benchmark.root).resolve().name if base.benchmark.root else base.benchmark.name,
        folder=str(folder),
        flags=_flags(base),
    )
    found.write(folder / NUMBERS)
    write_text(folder / PAGE, told(found))
    write_text(folder / REPORT, _report(found, last))
    return found


def _report(found: Verdict, last: Round) -> str:
    """The page in HTML, with the report on all rows."""
    return report(
        [*last.folders.values()],
        "html",
        reference=OTHER,
        verdict=blocks(found),
        title=title(found),
        labels=NAMES,
    )


class Sample(NamedTuple):
    """The config of the first measurement, the number of questions, and how many have no history."""

    config: Config
    total: int
    cold: int


def _warm(base: Config) -> Config:
    """The config without the questions of users who have no history yet."""
    return dataclasses.replace(base, benchmark=dataclasses.replace(base.benchmark, cold_start="skip"))


def _look(base: Config, last: Round) -> Look:
    """Which look at these data this is."""
    own = base.benchmark.root if base.benchmark.name == "own" else ""
    identity = data.fingerprint(base.benchmark) if base.benchmark.root else base.benchmark.name
    return look_at(own, identity, {"config": to_dict(base), "data": identity, "questions": last.questions})


def _texts(plan: Plan, last: Round, measure: str) -> tuple[Text, ...]:
    """The questions with the largest gains over one other user's documents and with the largest losses; none
    where the config keeps no texts."""
    if not plan.config.keep_texts:
        return ()
    gains = single_gains({name: read_run(last.folders[name]) for name in (CHOSEN, OTHER)}, measure)
    order = sorted(gains, key=lambda name: -gains[name])
    chosen = dict.fromkeys([*order[:_TEXTS], *order[-_TEXTS:]])
    store, texts = plan.store.value, {}
    for example, ranking in zip(store.examples(), plan.ranked.value.read(store, store.examples())):
        if example.id in chosen:
            shown = ranking[0].document.text if ranking else ""
            question, target, document = map(_shorter, (example.input, example.target or "", shown))
            texts[example.id] = Text(question, target, document, gains[example.id])
    return tuple(texts[name] for name in chosen)


def _shorter(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LENGTH else f"{text[:_LENGTH]} …"


def measured(base: Config) -> Sample:
    """What is measured, on which questions; the data are read once.

    Likelihoods are measured if there are answers, otherwise retrieval.
    """
    total, cold, answered, judged, history = 0, 0, False, False, False
    for example in data.read(base.benchmark, base.limit):
        total += 1
        cold += not example.profile
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
    config = dataclasses.replace(_warm(base), generate=generate.Nothing(), eval=evaluation)
    return Sample(config, total, cold)


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
    needed = taken + _speaking(scored)
    return (
        "There was no time to write answers, so the task's metrics are not shown. Likelihoods "
        f"of all questions come first; --limit {scored.questions} --minutes {math.ceil(needed / 60)} would "
        "show them."
    )


def _notes(total: int, scored: Round) -> list[str]:
    if scored.questions == total:
        return []
    return [
        f"Measured on {scored.questions} of {total} questions, spread over users. Check again with more "
        "--minutes for more questions: what is measured stays in the cache."
    ]
