"""From the words of a command line to a config: a config file, methods, and any field of the config."""

import contextlib
import dataclasses
import itertools
import sys
import typing
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, Literal

import tyro

from pbr_jax import config as configs
from pbr_jax.base import terminal
from pbr_jax.base.types import UserError
from pbr_jax.config import SLOTS, Config, ConfigFile
from pbr_jax.config.schema import entries
from pbr_jax.methods import METHODS
from pbr_jax.options import Options, hints, options_in

RUN = "pbr-jax run CONFIG --out DIR"
SWEEP = "pbr-jax sweep CONFIG --out DIR"

_OPTIONS = {
    RUN: """\
  --out DIR       output folder: new, empty, or of the same run, to continue it
  --overwrite     replace another run's files in DIR
  --dry [--cost]  only print the stages and which are done [with prompts, tokens, FLOPs]
  --dry --topology v5e:2x4  compile the run's programs for a TPU slice that you do not have
  --distributed   one of several processes, one a host [--coordinator HOST:PORT --processes N --process I]""",
    SWEEP: """\
  --out DIR               folder for the runs' folders; several processes can share it
  --list, --dry           only print each run's command, or stages [--topology v5e:2x4 as for `run`]
  --index I, --shard I/N  only do the I-th run, or the I-th of N parts, counted from 0
  --max-parallel J        number of runs at a time, each in its own process
  --launcher submitit     submit Slurm jobs: [--jobs N] [--slurm.partition P] [--slurm.time MINUTES] ...""",
}
_OFTEN = (
    "benchmark.name", "benchmark.root", "benchmark.split", "benchmark.passages", "limit", "seed",
    "collaboration", "encoder.model", "llm.model", "expand.method", "neighbours.method", "neighbours.m",
    "retrieve.method", "retrieve.k", "corpus.chunk", "select.method", "select.k", "prompt.max_tokens",
    "prompt.show", "prompt.profile", "generate.method", "eval.likelihood", "stream.size", "stream.order",
)  # fmt: skip


def config(words: list[str], program: str) -> tuple[ConfigFile, Config]:
    """The config file, and its config with the command line's overrides; --help prints and exits."""
    words = list(words)
    helped = next((word for word in words if word in ("-h", "--help", "--help-all")), None)
    name = _positional(words)
    if name is None and not helped:
        raise UserError(f"no config given; want {program}, for example dense (pbr-jax configs lists them)")
    file = ConfigFile(Path("CONFIG"), Config(), None)
    if name is not None:
        words.remove(name)
        file = configs.load(configs.found(name))
    if helped in ("-h", "--help"):
        terminal.out(_short_help(program, file.config))
        sys.exit(0)
    config = parsed([word for word in words if word != "--help-all"], file.config, program, file.path)
    if helped:
        form = [tyro.conf.FlagConversionOff, tyro.conf.AvoidSubcommands]
        start = _opened(config)
        tyro.cli(Config, args=["--help"], default=start, prog=program, use_underscores=True, config=form)
    return file, config


def _positional(words: list[str]) -> str | None:
    """CONFIG: the first word, or, after flags, the first that ends in .py."""
    if words and not words[0].startswith("-"):
        return words[0]
    return next((word for word in words if word.endswith(".py") and not word.startswith("-")), None)


def _short_help(program: str, config: Config) -> str:
    values = configs.values(config)
    fields = "\n".join(f"  --{name:22}{values[name]}" for name in _OFTEN)
    methods = "\n".join(
        f"  {slot + '.method':22}{' '.join(map(configs.name_of, METHODS[slot]))}" for slot in SLOTS
    )
    return (
        f"usage: {program} [options] [--FIELD VALUE ...]\n\n"
        "CONFIG is a Python file, or a name listed by `pbr-jax configs`.\n\n"
        f"{_OPTIONS[program]}\n\ncommon fields, with their current values:\n{fields}\n\n"
        f"methods:\n{methods}\n\n--help-all lists every field of the chosen methods."
    )


def _opened(config: Config) -> Config:
    """The config with options in the place of those that may be none and are."""
    for section, owner in vars(config).items():
        for name, hint in hints(type(owner)).items() if isinstance(owner, Options) else ():
            if getattr(owner, name) is None and (kind := options_in(hint)):
                owner = dataclasses.replace(owner, **{name: kind()})
        config = dataclasses.replace(config, **{section: owner})
    return config


def parsed(words: Sequence[str], default: Config, program: str, file: Path | None = None) -> Config:
    """The default with `--field.name VALUE` overrides: methods first, then their options.

    As by `configs.override`, another method is told by `system` unless that is given too. `file`: the config
    file that the default is of.
    """
    texts: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            flag, equals, value = word[2:].partition("=")
            name = flag.replace("-", "_")
            texts[name] = [value] if equals else []
        elif name:
            texts[name].append(word)
        else:
            raise UserError(f"unknown argument {word!r}; want {program}, and --FIELD VALUE for its fields")
    overrides: dict[str, Any] = {}
    for name in configs.CHOSEN:
        if name in texts:
            chosen = " ".join(texts.pop(name)).split()
            overrides[name] = _value(name, chosen, str) if name.endswith(".method") else chosen
    start = configs.choose(default, overrides, file, texts)
    given = {name: _value(name, values, _hint(name, start)) for name, values in texts.items()}
    config = configs.override(default, {**overrides, **given}, file)
    if program == RUN and not config.corpus.active:  # the rows of a sweep may cut documents
        _refuse_passages(texts)
    return config


def _hint(name: str, config: Config) -> Any:
    """The type of a field. Raises UserError if there is none of this name."""
    for known, hint, _ in entries(config, opened=True):
        if known == name:
            return hint
    raise configs.unknown(name, config)


def _value(name: str, texts: Sequence[str], hint: Any) -> Any:
    """A field's value from the words that were given for it, by the field's type. `configs.override` tells
    what is wrong with a text that is no such value."""
    kinds = typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        inner = itertools.chain([kind for kind in kinds if kind is not Ellipsis], itertools.repeat(kinds[0]))
        return [_value(name, [text], kind) for text, kind in zip(texts, inner)]
    kinds = (hint,) if typing.get_origin(hint) is Literal or not kinds else kinds
    if not texts and bool in kinds:
        return True
    if len(texts) != 1:
        raise UserError(f"{name} has {len(texts)} values{f' {texts}' * bool(texts)}, want one")
    (text,) = texts
    named = {str(one): one for kind in kinds for one in typing.get_args(kind)}
    if text in named:
        return named[text]
    if NoneType in kinds and text.lower() == "none":
        return None
    if bool in kinds:
        if text.lower() not in _SWITCHED:
            raise UserError(f"{name} is {text!r}, want on or off")
        return _SWITCHED[text.lower()]
    for kind in (int, float):
        if kind in kinds:
            with contextlib.suppress(ValueError):
                return kind(text)
    return text


_SWITCHED = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}


def _refuse_passages(names: Iterable[str]) -> None:
    """Raises UserError for an option of passages, as documents stay whole."""
    for name in names:
        section, _, last = name.rpartition(".")
        if (section == "corpus" and last != "chunk") or name == "prompt.show" or last == "over":
            raise UserError(
                f"{name} has no effect, since corpus.chunk is none and documents stay whole; add "
                f"--corpus.chunk words (or sentences, turns), or leave --{name} out"
            )
