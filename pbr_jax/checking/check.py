"""One command: the rounds of runs, and the verdict on the last one."""

import dataclasses
from pathlib import Path

from pbr_jax import data
from pbr_jax.checking.rounds import CHOSEN, rounds
from pbr_jax.checking.verdict import Verdict, verdict
from pbr_jax.checking.words import told
from pbr_jax.config import Benchmark, Config
from pbr_jax.files import write_text
from pbr_jax.methods import generate
from pbr_jax.opening import plan_of
from pbr_jax.types import UserError

PAGE, NUMBERS = "verdict.md", "verdict.json"


def check(what: str | Path | Config, out: str | Path, minutes: float = 10.0) -> Verdict:
    """Whether the users' own history helps, measured on as many questions as `minutes` allow.

    Args:
      what: a folder of the benchmark `own`, or a config whose benchmark, models and prompt are taken.
      out: where runs, `verdict.md` and `verdict.json` go.
      minutes: wall-clock time that is aimed at; the first round of 25 questions is always run.

    Raises UserError where nothing can be measured: no answers to score and no relevant documents.
    """
    if minutes <= 0:
        raise UserError(f"--minutes is {minutes:g}, want more than 0")
    base = what if isinstance(what, Config) else Config(benchmark=Benchmark(name="own", root=str(what)))
    folder = Path(out)
    base = measured(base)
    total = sum(1 for _ in data.read(base.benchmark))
    *_, last = rounds(base, folder, total, 60 * minutes)
    found = verdict(last.folders, plan_of(last.folders[CHOSEN]).store.value)
    found = dataclasses.replace(found, notes=(*found.notes, *_notes(total, last.questions)))
    found.write(folder / NUMBERS)
    write_text(folder / PAGE, told(found))
    return found


def measured(base: Config) -> Config:
    """The config with what is measured: likelihoods where there are answers, else what is found."""
    answered = any(example.target is not None for example in data.read(base.benchmark))
    likely = "on" if answered else "off"
    retrieval = data.task(base.benchmark).kind == "retrieval"
    if not answered and not (retrieval and any(e.relevant for e in data.read(base.benchmark) if e.scored)):
        raise UserError(
            f"{base.benchmark.root}: found no answer to any question, wanted a `target` of some, or "
            "`relevant` documents and a task of kind retrieval"
        )
    evaluation = dataclasses.replace(base.eval, likelihood=likely)
    return dataclasses.replace(base, generate=generate.Nothing(), eval=evaluation)


def _notes(total: int, questions: int) -> list[str]:
    if questions == total:
        return []
    return [f"Measured on {questions} of {total} questions, spread over users; --minutes gives it more."]
