"""The command check: a verdict on data of one's own, or on any benchmark."""

import argparse
import sys

from pbr_jax import flags, terminal
from pbr_jax.checking.check import PAGE
from pbr_jax.checking.check import check as checked
from pbr_jax.config import Benchmark, Config
from pbr_jax.types import UserError

_HELP = """\
usage: pbr-jax check FOLDER --out DIR [--minutes 10] [--any.config.field VALUE ...]

Whether showing users' own history to the language model helps, whom, and by how much: a few systems on a
sample of questions that grows while the minutes last, and a verdict in words with its intervals.

  FOLDER          data of your own (pbr-jax data import), or else --benchmark.name and --benchmark.root
  --out DIR       where the runs, verdict.md, verdict.json and report.html go
  --minutes M     wall-clock minutes, a target and no limit (10): a first round is always finished, of 25
                  questions, or of fewer, 10 at least, where 25 would take over 1.5 times its time"""


def check(options: argparse.Namespace, rest: list[str]) -> int:
    """Runs the command."""
    if any(word in ("-h", "--help") for word in rest):
        terminal.out(_HELP)
        sys.exit(0)
    folder = rest.pop(0) if rest and not rest[0].startswith("-") else None
    base = Config() if folder is None else Config(benchmark=Benchmark(name="own", root=folder))
    config = flags.parsed(rest, base, "pbr-jax check FOLDER --out DIR")
    if options.out is None:
        raise UserError("no output folder given; add --out DIR")
    checked(config, options.out, options.minutes)
    terminal.out((options.out / PAGE).read_text(encoding="utf-8"))
    return 0
