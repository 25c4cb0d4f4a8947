"""From the words of a command line to a config: a config file, methods, and any field of the config."""

import contextlib
import dataclasses
import io
import re
import sys
import typing
from pathlib import Path

import tyro

from pbr_jax import config as configs
from pbr_jax.base import terminal
from pbr_jax.base.types import UserError
from pbr_jax.config import SLOTS, Config, ConfigFile
from pbr_jax.options import Options, hints, names_of, options_in

RUN = "pbr-jax run CONFIG --out DIR"
SWEEP = "pbr-jax sweep CONFIG --out DIR"

_OPTIONS = {
    RUN: """\
  --out DIR       output folder: new, empty, or of the same run, to continue it
  --overwrite     replace another run's files in DIR
  --dry [--cost]  only print the stages and which are done [with prompts, tokens, FLOPs]
  --distributed   run as one of several processes, one per host, started by Slurm, Open MPI, Kubernetes or
                  Cloud TPU; otherwise add --coordinator HOST:PORT --processes N --process I to each""",
    SWEEP: """\
  --out DIR               folder for the runs' folders; several processes can share it
  --list, --dry           only print a command line for each run, or its stages and which are done
  --index I, --shard I/N  only do the I-th run, or the I-th of N parts, counted from 0
  --max-parallel J        number of runs at a time, each in its own process
  --launcher submitit     submit Slurm jobs: [--jobs N] [--slurm.partition P] [--slurm.time MINUTES] ...""",
}
_TITLES = "Value error|Invalid choice|Unrecognized options|Missing argument"  # of tyro's boxes
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
    words = ["--help" if word == "--help-all" else word for word in words]
    return file, parsed(words, file.config, program, file.path)


def _positional(words: list[str]) -> str | None:
    """CONFIG: the first word, or, after flags, the first that ends in .py."""
    if words and not words[0].startswith("-"):
        return words[0]
    return next((word for word in words if word.endswith(".py") and not word.startswith("-")), None)


def _short_help(program: str, config: Config) -> str:
    rows = ((name, configs.value_of(config, name)) for name in _OFTEN)
    fields = "\n".join(f"  --{name:22}{value}" for name, value in rows)
    methods = "\n".join(f"  {slot + '.method':22}{' '.join(_names(slot))}" for slot in SLOTS)
    return (
        f"usage: {program} [options] [--FIELD VALUE ...]\n\n"
        "CONFIG is a Python file, or a name listed by `pbr-jax configs`.\n\n"
        f"{_OPTIONS[program]}\n\ncommon fields, with their current values:\n{fields}\n\n"
        f"methods:\n{methods}\n\n--help-all lists every field of the chosen methods."
    )


def _names(slot: str) -> list[str]:
    from pbr_jax.methods import METHODS

    return [configs.name_of(cls) for cls in METHODS[slot]]


def parsed(words: list[str], default: Config, program: str, file: Path | None = None) -> Config:
    """The default with `--field.name VALUE` overrides: methods first, then their options.

    As by `configs.override`, another method is told by `system` unless that is given too. `file`: the config
    file that the default is of.
    """
    words, before = _joined(words), default
    chosen, words = _chosen(words)
    default = configs.choose(default, chosen, file)
    default, words = _opened(default, words)
    given = [word[2:].partition("=") for word in words if word.startswith("--")]
    known = set(configs.names(default))
    for name, _, _ in given:
        if name != "help" and name.replace("-", "_") not in known:
            raise configs.unknown(name, default)
    words = _by_place(_spelled_out(words, default), default)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            found = tyro.cli(
                Config,
                args=words,
                default=default,
                prog=program,
                use_underscores=True,
                config=[tyro.conf.FlagConversionOff, tyro.conf.AvoidSubcommands],
            )
    except SystemExit as error:
        if error.code in (0, None):
            raise
        text = " ".join(re.sub(r"\x1b\[[0-9;]*m|[─│╭╮╰╯]|-{8,}", " ", printed.getvalue()).split())
        text = re.sub(rf"^({_TITLES})|(Argument helptext|For full helptext).*", "", text)
        text = re.sub(r"^Error parsing (?!--)[\w.]+: ", "", text.strip())  # what `check` says needs no frame
        raise UserError(text or "the command line could not be read") from error
    if program == RUN:  # the rows of a sweep may cut documents
        _check_passages([name.replace("-", "_") for name, _, _ in given], found)
    is_named = any(name == "system" for name, _, _ in given)
    return found if is_named else configs.named(found, before, configs.overridden(before, found))


def _check_passages(given: list[str], config: Config) -> None:
    """Raises UserError for an option of passages where documents stay whole."""
    for name in given:
        section, _, last = name.rpartition(".")
        of_passages = (section == "corpus" and last != "chunk") or name == "prompt.show" or last == "over"
        if of_passages and not config.corpus.active:
            raise UserError(
                f"{name} has no effect, since corpus.chunk is none and documents stay whole; add "
                f"--corpus.chunk words (or sentences, turns), or leave --{name} out"
            )


def _chosen(words: list[str]) -> tuple[dict[str, str | list[str]], list[str]]:
    """The methods that words name, by their fields, and the words without those of several methods."""
    chosen: dict[str, str | list[str]] = {}
    left: list[str] = []
    names: list[str] | None = None  # of the members whose field was the last
    for word in words:
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--"):
            (left if names is None else names).append(word)
            continue
        names = None
        if name in configs.CHOSEN and not name.endswith(".method"):
            chosen[name] = names = value.split()
            continue
        if name in configs.CHOSEN and equals:
            chosen[name] = value
        left.append(word)
    return chosen, left


def _by_place(words: list[str], default: Config) -> list[str]:
    """Words with members by their places, as for tyro: `--retrieve.of.bm25.b` as `--retrieve.of.0.b`."""
    for slot in (default.retrieve, default.select):
        of = f"--{slot.section}.of."
        for place, name in enumerate(names_of(getattr(slot, "of", ()))):
            words = [word.replace(f"{of}{name}.", f"{of}{place}.", 1) for word in words]
    return words


def _opened(default: Config, words: list[str]) -> tuple[Config, list[str]]:
    """The default with the options that may be none, such as select.llm, as far as a word names a field of
    theirs or asks for help; without those that a word sets to none, which words are left out."""
    for field in dataclasses.fields(default):
        owner = getattr(default, field.name)
        for name, hint in hints(type(owner)).items() if isinstance(owner, Options) else ():
            kind, flag = options_in(hint), f"--{field.name}.{name}"
            if kind is None or hint is kind:
                continue
            if f"{flag}=none" in map(str.lower, words):
                words = [word for word in words if word.lower() != f"{flag}=none"]
                owner = dataclasses.replace(owner, **{name: None})
            elif getattr(owner, name) is None and any(
                word == "--help" or word.replace("-", "_").startswith(f"__{flag[2:]}.") for word in words
            ):
                owner = dataclasses.replace(owner, **{name: kind()})
        default = dataclasses.replace(default, **{field.name: owner})
    return default, words


def _joined(words: list[str]) -> list[str]:
    """`--field value` as one word, `--field=value`, in which the value may begin with dashes."""
    found: list[str] = []
    for word in words:
        last = found[-1] if found else ""
        if last.startswith("--") and "=" not in last and last != "--help" and not word.startswith("--"):
            found[-1] = f"{last}={word}"
        else:
            found.append(word)
    return found


def _spelled_out(words: list[str], default: Config) -> list[str]:
    """Switches and none as tyro reads them: `--llm.offline`, alone or with on or true, is
    `--llm.offline=True`, and `--generator.limit none` is `--generator.limit=None`."""
    switches = {name for name in configs.names(default) if isinstance(configs.value_of(default, name), bool)}
    found = []
    for word in words:
        flag, equals, value = word.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        if flag.startswith("--") and name in switches:
            on = _SWITCHED.get(value.lower()) if equals else True
            if on is None:
                raise UserError(f"{name} is {value!r}, want on or off")
            word = f"{flag}={on}"
        elif value.lower() == "none" and _may_be_none(default, name):
            word = f"{flag}=None"
        found.append(word)
    return found


def _may_be_none(default: Config, name: str) -> bool:
    """Whether a field takes None, and no text that could be spelled so."""
    *parents, last = name.split(".")
    owner = type(configs.value_of(default, ".".join(parents)) if parents else default)
    parts = typing.get_args(typing.get_type_hints(owner)[last])
    texts = {text for part in parts for text in typing.get_args(part)}
    return type(None) in parts and str not in parts and "none" not in texts


_SWITCHED = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}
