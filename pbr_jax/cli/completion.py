"""`pbr-jax completion SHELL`: a script that completes commands, configs and fields, made by shtab."""

import argparse
import dataclasses
from collections.abc import Callable
from typing import Any

from pbr_jax import config as configs
from pbr_jax.base import terminal
from pbr_jax.base.types import UserError
from pbr_jax.config import SLOTS, Config
from pbr_jax.methods import METHODS

SHELLS = ("bash", "zsh", "tcsh")
_TAKE_FIELDS = ("run", "sweep", "ask", "check", "show")


def add(commands: Any, whole: Callable[[], argparse.ArgumentParser]) -> None:
    """Adds the command; `whole` makes the parser of all commands."""
    parser = commands.add_parser("completion", help="print a completion script for a shell")
    parser.add_argument("shell", choices=SHELLS)
    parser.set_defaults(function=lambda options, rest: _print(options, rest, whole()))


def _print(options: argparse.Namespace, rest: list[str], parser: argparse.ArgumentParser) -> int:
    import shtab

    if rest:
        raise UserError(f"unknown argument {rest[0]!r}; want one shell of {', '.join(SHELLS)}")
    for name, command in _commands(parser).items():
        if name in _TAKE_FIELDS:
            _add_fields(command)
    terminal.out(shtab.complete(parser, options.shell))
    return 0


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    return next(
        action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)
    )


def _add_fields(command: argparse.ArgumentParser) -> None:
    """The configs and every field, which `flags` reads without argparse."""
    taken = {flag for action in command._actions for flag in action.option_strings}
    if not any(not action.option_strings for action in command._actions):
        command.add_argument("config", nargs="?", choices=sorted(configs.listed()))
    for name in sorted(_fields()):
        if f"--{name}" not in taken:
            methods = _methods(name)
            command.add_argument(f"--{name}", choices=methods or None)


def _fields() -> set[str]:
    """The fields of the default config, and the options of every method."""
    of_methods = (
        f"{slot}.{field.name}" for slot in SLOTS for cls in METHODS[slot] for field in dataclasses.fields(cls)
    )
    return {*configs.names(Config()), *of_methods}


def _methods(name: str) -> list[str]:
    slot, _, last = name.partition(".")
    return [configs.name_of(cls) for cls in METHODS[slot]] if last == "method" and slot in SLOTS else []
