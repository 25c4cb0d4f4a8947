"""The command export: a finished run in the format of another program."""

import argparse
from pathlib import Path
from typing import Any, get_args

from pbr_jax.base import terminal
from pbr_jax.base.types import UserError
from pbr_jax.exporting.export import Format, export


def add(commands: Any) -> None:
    """Adds the command's parser."""
    parser = commands.add_parser("export", help="export a finished run in a format of other programs")
    parser.add_argument("run", type=Path, metavar="DIR", help="a finished run")
    parser.add_argument(
        "--format",
        choices=get_args(Format),
        required=True,
        help="rankings (trec, ranx), tables of predictions and rankings (csv, parquet), the tuned encoder "
        "(sentence-transformers), the tuned generator's LoRA adapter (adapter), the state of a method that "
        "learned from the run's stream (state)",
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FOLDER", help="output folder, which must not exist yet"
    )
    parser.add_argument("--slot", help="for state: slot of the method, such as retrieve")
    parser.add_argument(
        "--blocks", type=int, metavar="N", help="for state: the state after the first N blocks"
    )
    parser.set_defaults(function=_export)


def _export(options: argparse.Namespace, rest: list[str]) -> int:
    if rest:
        raise UserError(f"unknown argument {rest[0]!r}; --help lists what there is")
    out = export(options.run, options.out, options.format, slot=options.slot, blocks=options.blocks)
    terminal.out(out)
    return 0
