"""The page in headless Chromium, wide and narrow, light and dark: no error, request, scroll, fault of axe."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from pbr_jax.eval.report import report

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "report_browser.mjs"
NODE = Path(os.environ.get("PBR_JAX_NODE", "node_modules")).resolve()
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")

pytestmark = pytest.mark.long


@pytest.mark.skipif(not (shutil.which("node") and CHROMIUM), reason="needs node and Chromium")
@pytest.mark.skipif(
    not (NODE / "node_modules" / "axe-core").is_dir(),
    reason="needs PBR_JAX_NODE, a folder with axe-core and playwright-core from npm",
)
def test_reports_have_no_fault_in_a_browser(tmp_path: Path, write):
    key = np.random.default_rng(0)
    runs = []
    for i, name in enumerate(("zero_shot", "dense", "bm25 with a long name " * 4)):
        texts = [str(1 + j % 5) if key.random() < 0.3 * i else str(key.integers(1, 6)) for j in range(24)]
        runs.append(write(tmp_path / str(i), name, texts, categories=[f"c{j % 2}" for j in range(24)]))
    (tmp_path / "several.html").write_text(report(runs, "html"), encoding="utf-8")
    (tmp_path / "one.html").write_text(report(runs[:1], "html"), encoding="utf-8")
    pages = [str(tmp_path / name) for name in ("several.html", "one.html")]
    environment = {**os.environ, "NODE": str(NODE), "CHROMIUM": str(CHROMIUM)}
    done = subprocess.run(
        ["node", str(SCRIPT), "", *pages], capture_output=True, text=True, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len([json.loads(line) for line in done.stdout.splitlines()]) == 8
