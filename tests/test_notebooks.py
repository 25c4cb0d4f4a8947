"""Every notebook runs from top to bottom on the embedded data and models; none is committed with outputs."""

import os
from pathlib import Path

import pytest

NOTEBOOKS = sorted(Path(__file__).parents[1].joinpath("notebooks").glob("*.ipynb"))


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: None):
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "it has outputs; run make format"
    fewer = [cell for cell in notebook.cells if "limit=16" in cell.source]
    assert fewer, "no cell says how many questions are asked"
    for cell in fewer:
        cell.source = cell.source.replace("limit=16", "limit=2")
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert os.path.exists(tmp_path / "runs" / "notebook" / "dense" / "results.json")
