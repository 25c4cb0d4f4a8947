"""`pbr-jax completion SHELL`: a script that completes commands, configs and fields, made by shtab."""

import argparse
import dataclasses

import shtab

from pbr_jax import config as configs
from pbr_jax.base import files, terminal
from pbr_jax.cli import main as cli
from pbr_jax.config import SLOTS, Config
from pbr_jax.methods import METHODS


def completion(options: argparse.Namespace) -> None:
    """Prints the script."""
    parser = cli.parser()
    commands = next(a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    for name in ("run", "sweep", "ask", "check", "show"):
        _add_fields(commands[name])
    terminal.out(shtab.complete(parser, options.shell))


def _add_fields(command: argparse.ArgumentParser) -> None:
    """The configs and every field, which `flags` reads without argparse."""
    taken = {flag for action in command._actions for flag in action.option_strings}
    if not any(not action.option_strings for action in command._actions):
        command.add_argument("config", nargs="?", choices=sorted(files.packaged_configs()))
    of_methods = {
        f"{slot}.{item.name}" for slot in SLOTS for cls in METHODS[slot] for item in dataclasses.fields(cls)
    }
    for name in sorted({*configs.values(Config()), *of_methods}):
        slot, _, field = name.partition(".")
        methods = METHODS[slot] if field == "method" and slot in SLOTS else ()
        if f"--{name}" not in taken:
            command.add_argument(f"--{name}", choices=[*map(configs.name_of, methods)] or None)
