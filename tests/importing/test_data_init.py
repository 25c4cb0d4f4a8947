"""`data init` writes an example that runs as it stands."""

import csv
import re
import shlex
from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest

from pbr_jax import data
from pbr_jax.cli.main import main
from pbr_jax.config import Benchmark
from pbr_jax.importing import example

QUICK = ["--generate.max_new_tokens=2", "--eval.resamples=20"]


def test_the_table_is_what_it_says(tmp_path: Path) -> None:
    example.write(tmp_path / "new")
    with (tmp_path / "new" / "tickets.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert set(Counter(row["customer"] for row in rows).values()) == {12}
    assert len(rows) == len({row["ticket"] for row in rows}) == 96
    dates = [datetime.fromisoformat(row["created"]) for row in rows]
    assert sorted(set(dates)) == dates
    assert not [row for row in rows if re.search(r"[{}]", row["reply"])]
    for customer in {row["customer"] for row in rows}:
        own = [row for row in rows if row["customer"] == customer]
        assert len({row["question"] for row in own}) == 12
        assert set(Counter(row["topic"] for row in own).values()) == {3}
        assert len({row["reply"].split(",")[0] for row in own}) == 1  # the agent's greeting


@pytest.mark.long
def test_its_commands_run_as_they_stand(
    tmp_path: Path, tiny_models: dict[str, str], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["data", "init"]) == 0
    assert "try it: cd example && sh commands.sh" in capsys.readouterr().out
    monkeypatch.chdir(tmp_path / "example")
    script = Path("commands.sh").read_text().replace("\\\n", " ")
    commands = [shlex.split(line) for line in script.splitlines() if line.startswith("pbr-jax")]
    assert [command[1] for command in commands] == ["data", "data", "check", "run", "examples"]
    for _, *words in commands:
        fields = [*QUICK, *(f"--{name}={value}" for name, value in tiny_models.items())]
        short = [*fields, "--limit=10"] if words[0] == "check" else fields
        assert main([*words, *(short if words[0] in ("run", "check") else [])]) == 0
    told = capsys.readouterr().out
    assert "found     96 questions of 8 users, task of kind generation" in told
    assert "dev: 96 questions of 8 users; a question sees 0 to 11 of 88 documents; 96 with a target" in told
    assert "It cannot be told from 8 users: at least 10 are needed" in told
    assert "## Example 2 of 2" in told
    task = data.task(Benchmark(name="own", root="mine"))
    assert task.prompt.own.instruction == "Answer the next ticket."
    assert Path("mine/task.toml").read_text() == Path("task.toml").read_text()


def test_a_folder_that_holds_something_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["data", "init", str(tmp_path)]) == 2
    assert "wanted a new or an empty folder; name another" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
