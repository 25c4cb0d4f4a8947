"""The memory of an import does not grow with its table."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "import_stream.py"
SMALL, LARGE = 10, 40  # MB
MARGIN = 40  # MB: the database's pages, and what allocators keep; the rows of the larger table need 100


@pytest.mark.long
@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_the_memory_of_an_import_does_not_grow_with_its_table(tmp_path: Path, form: str) -> None:
    spec = importlib.util.spec_from_file_location("import_stream", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    peaks = {}
    for megabytes in (SMALL, LARGE):
        path = tmp_path / f"{megabytes}.{form}"
        script.write(path, megabytes)
        assert path.stat().st_size > 0.9e6 * megabytes
        _, peaks[megabytes] = script.imported(path, tmp_path / str(megabytes))
        questions = (tmp_path / str(megabytes) / "dev.jsonl").read_bytes().count(b"\n")
        assert questions == sum(1 for _ in script.rows(megabytes))
    assert peaks[LARGE] < peaks[SMALL] + MARGIN
