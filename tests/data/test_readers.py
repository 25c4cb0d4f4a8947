"""The public door: what is common to all benchmarks."""

import subprocess
import sys
from pathlib import Path

import pytest

from pbr_jax import data
from pbr_jax.base.types import UserError
from pbr_jax.config import Benchmark


def error_of(benchmark: Benchmark) -> str:
    """The one line that every function raises, before any example is asked for."""
    messages = set()
    for call in (data.read, data.files, data.validate):
        with pytest.raises(UserError) as error:
            call(benchmark)
        messages.add(str(error.value))
    (message,) = messages
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("LaMP-7", "did you mean lamp_7"),
        ("personbench", "did you mean personabench"),
        ("zzz", "wanted one of lamp_1"),
    ],
)
def test_an_unknown_benchmark_gets_the_nearest_names(name: str, hint: str) -> None:
    with pytest.raises(UserError, match=hint):
        data.task(Benchmark(name=name))
    assert hint in error_of(Benchmark(name=name, root="."))


def test_every_task_has_a_reader_that_says_what_it_expects(tmp_path: Path) -> None:
    for name in data.BENCHMARKS:
        assert data.task(Benchmark(name=name)).metrics
        error = error_of(Benchmark(name=name, root=str(tmp_path)))
        assert f"{tmp_path}: found no file of {name} here, wanted" in error
        assert error.endswith("set --benchmark.root")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    error = error_of(Benchmark(name="lamp_7", root=str(tmp_path / "none")))
    assert f"found no such folder {tmp_path / 'none'}, wanted for lamp_7 {{split}}_questions.json" in error
    assert "benchmark.root: found nothing" in error_of(Benchmark(name="lamp_7"))


def test_an_unknown_split_lists_those_that_are_there(tmp_path: Path) -> None:
    for split in ("train", "dev"):
        (tmp_path / f"{split}_questions.json").write_text("[]")
        (tmp_path / f"{split}_outputs.json").write_text('{"task": "LaMP_7", "golds": []}')
    benchmark = Benchmark(name="lamp_7", root=str(tmp_path), split="test")
    assert data.splits(benchmark) == ("train", "dev")
    with pytest.raises(UserError, match="found the splits train, dev, wanted 'test' in"):
        data.read(benchmark)
    with pytest.raises(UserError, match="found no example in the split train"):
        data.validate(benchmark)


def test_a_limit_below_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="limit: found 0, wanted at least 1"):
        data.read(Benchmark(name="lamp_7", root=str(tmp_path)), limit=0)


def test_importing_the_readers_loads_nothing_heavy() -> None:
    code = (
        "import sys, pbr_jax.data; print([m for m in ('jax', 'pyarrow', 'transformers') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pyarrow" not in shown
    assert "transformers" not in shown
