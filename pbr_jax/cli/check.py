"""The command check: a verdict on data of one's own, or on any benchmark."""

import argparse
import sys

from pbr_jax.base import terminal
from pbr_jax.base.types import UserError
from pbr_jax.checking.check import PAGE
from pbr_jax.checking.check import check as checked
from pbr_jax.cli import flags
from pbr_jax.config import Benchmark, Config

_HELP = """\
usage: pbr-jax check FOLDER --out DIR [--minutes 10] [--any.config.field VALUE ...]

Tests whether showing users' own history to the language model helps, for which users, and by how much. It
compares a few systems on a sample of questions, which grows until the time is up. The result is a verdict in
words, with confidence intervals.

  FOLDER          your own data (pbr-jax data import); otherwise give --benchmark.name and --benchmark.root
  --out DIR       output folder for the runs, verdict.md, verdict.json and report.html
  --minutes M     target for the wall-clock time (10), in minutes. It can be exceeded, because the first round
                  is always finished. This round has 25 questions, or fewer (at least 10) if 25 would take
                  more than 1.5 times the time that is left"""


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
