"""The benchmark of growth prepares whatever its systems read."""

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "growth.py"


@pytest.mark.parametrize(("systems", "imported"), [(["luf"], [200, 7]), (["import", "luf"], [200])])
def test_the_data_of_every_size_are_imported_before_a_system_reads_them(
    systems: list[str], imported: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    spec = importlib.util.spec_from_file_location("growth", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    growth = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(growth)
    measured: list[tuple[str, int]] = []
    monkeypatch.setattr(growth, "models", lambda folder: None)
    monkeypatch.setattr(growth, "table", lambda folder, sizes: None)
    monkeypatch.setattr(growth, "measured", lambda system, folder, size: measured.append((system, size)))
    words = ["growth.py", "--users", "7", "--documents", "2", "--systems", *systems]
    monkeypatch.setattr(sys, "argv", [*words, "--folder", str(tmp_path)])
    growth.main()
    assert measured == [*(("import", size) for size in imported), *((system, 7) for system in systems)]
