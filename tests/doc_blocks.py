"""The blocks of Markdown pages, and a reader who types them in an empty folder.

A comment on the line before a block says how it is tested: `<!-- not run here: REASON -->`, or
`<!-- only --dry here: REASON -->`.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pbr_jax.cli import flags
from pbr_jax.cli import main as cli
from pbr_jax.cli.main import main
from pbr_jax.sweeps import slurm

ROOT = Path(__file__).parents[1]
SMALL = {
    "--generate.max_new_tokens": "2",
    "--eval.resamples": "20",
    "--limit": "8",
    "--encoder.normalize": "yes",
}
_BLOCK = r"(?:^<!-- (not run|only --dry) here: ([^\n]+) -->\n)?^```([^\n]*)\n(.*?)^```$"
_SHELL = r"[|&;<>$`*]"


class Block(NamedTuple):
    """A block of a page: `mark` is "", "not run" or "only --dry"; `reason` says why."""

    line: int
    language: str
    text: str
    mark: str
    reason: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(text.count("\n", 0, found.start(3)) + 1, found[3], found[4], found[1] or "", found[2] or "")
        for found in re.finditer(_BLOCK, text, re.DOTALL | re.MULTILINE)
    ]


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """The commands of a block, and the lines shown under each. Under `$ ` stands what is typed; a block
    without is typed line by line, `\\` at the end continues, and what follows ` #` is a comment."""
    text = text.replace("\\\n", " ")
    if "$ " in text.splitlines()[0][:2]:
        for command in text.split("$ ")[1:]:
            first, *lines = command.splitlines()
            yield first, lines
        return
    for line in text.splitlines():
        if command := re.sub(r"(^|\s+)# .*", "", line).strip():
            yield command, []


def read_command(words: list[str]) -> None:
    """Raises UserError where `pbr-jax WORDS` names a command, a config or an option that is not there."""
    _, rest = cli.parser().parse_known_args(words)
    if words[0] in ("run", "sweep") and Path(rest[0]).suffix != ".py":
        program = flags.RUN if words[0] == "run" else flags.SWEEP
        flags.config(slurm.parameters(rest)[1], program)


def matches(shown: list[str], printed: str) -> bool:
    """Whether the lines stand there in this order; `...` stands for any lines."""
    pattern = "".join(r"(?:.*\n)*?" if line == "..." else re.escape(line) + "\n" for line in shown)
    return re.fullmatch(pattern, printed) is not None


def write_files(text: str) -> dict[str, Path]:
    """Writes the Python files that a page shows (their first line is `# name.py`) into this folder."""
    found = {}
    for name, source in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, flags=re.DOTALL):
        found[name] = Path(name)
        found[name].write_text(source, encoding="utf-8")
    return found


def type_command(command: str, models: dict[str, str], *, dry: bool = False) -> None:
    """Runs one command here; those that load models get small ones, and little to do."""
    words = shlex.split(command)
    if words[0] != "pbr-jax" or re.search(_SHELL, re.sub(r"'[^']*'|\"[^\"]*\"", "", command)):
        words = (
            [sys.executable, *words[1:]]
            if words[0] == "python"
            else ["bash", "-euo", "pipefail", "-c", command]
        )
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        subprocess.run(words, check=True, capture_output=True, text=True, env={**os.environ, "PATH": path})
        return
    if words[1] in ("run", "sweep", "check"):
        small = {**SMALL, **{f"--{name}": value for name, value in models.items()}}
        words += [f"{name}={value}" for name, value in small.items() if name not in words]
    try:
        code = main([*words[1:], *(["--dry"] if dry else [])])
    except SystemExit as ended:  # --help ends so
        code = ended.code
    assert code == 0, command
