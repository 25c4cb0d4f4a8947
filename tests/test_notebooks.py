"""Every notebook runs from top to bottom on data and models that the package has; none has outputs."""

import os
import re
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# Sizes that a notebook assigns at its beginning, and smaller ones for this test. `make notebooks` runs all.
SMALLER = {
    "04_cfrag": ("QUESTIONS, EPOCHS = 32, 3", "QUESTIONS, EPOCHS = 12, 1"),
    "12_own_loop": ("STEPS, TUNING = 60, 8", "STEPS, TUNING = 8, 2"),
    "06_purple": ("TRAIN, DEV, EPOCHS = 48, 32, 12", "TRAIN, DEV, EPOCHS = 16, 12, 2"),
}

sys.path.insert(0, str(ROOT / "docs"))
import prose  # noqa: E402  # pyright: ignore[reportMissingImports]


def cells(path: Path, kind: str) -> list[str]:
    notebook = nbformat.read(path, as_version=4)
    return [cell.source for cell in notebook.cells if cell.cell_type == kind]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_a_title_plain_prose_and_no_output(path: Path):
    told, code = cells(path, "markdown"), cells(path, "code")
    assert re.match(r"# \S", told[0])
    assert prose.faults("\n\n".join(told)) == []
    assert not any(cell.get("outputs") for cell in nbformat.read(path, as_version=4).cells), "run make format"
    assert code[0] == cells(NOTEBOOKS[0], "code")[0], "notebooks begin with the same cell, which installs"
    assert not re.search(r"\bpip\b|\bjaxlib\b", "".join(code[1:]))


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working directory and the cache of all notebooks, as where one person opens one after another."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "notebooks"
    (folder / "here").mkdir(parents=True, exist_ok=True)
    return folder


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(
    path: Path, tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch, weights: None
):
    from nbclient import NotebookClient

    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("PBR_JAX_CACHE", str(shared / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    notebook = nbformat.read(path, as_version=4)
    if path.stem in SMALLER:
        whole, smaller = SMALLER[path.stem]
        (sizes,) = (cell for cell in notebook.cells if whole in cell.source.splitlines())
        sizes.source = sizes.source.replace(whole, smaller)
    resources = {"metadata": {"path": str(shared / "here")}}
    NotebookClient(notebook, timeout=1800, resources=resources).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [output.text for output in outputs if "IProgress" in output.get("text", "")]
