"""The server's page in headless Chromium: by keyboard alone, wide and narrow, light and dark."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from memories import HISTORIES, Client, echoing

import pbr_jax

PAGE = Path(pbr_jax.__file__).parent / "serving" / "page.html"
NODE = Path(os.environ.get("PBR_JAX_NODE", "node_modules")).resolve()
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")

pytestmark = pytest.mark.usefixtures("fresh_cache")


def test_the_page_loads_nothing_and_writes_texts_as_texts():
    text = PAGE.read_text(encoding="utf-8")
    assert not re.search(r"https?:|@import|url\(|innerHTML|document\.write|eval\(", text)


@pytest.mark.long
@pytest.mark.skipif(not (shutil.which("node") and CHROMIUM), reason="needs node and Chromium")
@pytest.mark.skipif(
    not (NODE / "node_modules" / "axe-core").is_dir(),
    reason="needs PBR_JAX_NODE, a folder with axe-core and playwright-core from npm",
)
def test_the_page_works_by_keyboard_in_every_view(
    write_tweets: Callable[..., Path],
    tiny_models: dict[str, str],
    serve: Callable[..., Client],
    tmp_path: Path,
):
    encoder: Any = {"encoder.model": tiny_models["encoder.model"]}
    with echoing(write_tweets(HISTORIES), **encoder) as config:
        client = serve(pbr_jax.open(config))
        environment = {**os.environ, "NODE": str(NODE), "CHROMIUM": str(CHROMIUM)}
        command = ["node", str(Path(__file__).with_name("page.mjs")), f"http://127.0.0.1:{client.port}/"]
        shots = os.environ.get("PBR_JAX_SHOTS")
        done = subprocess.run(
            [*command, *([shots] if shots else [])],
            capture_output=True,
            text=True,
            env=environment,
            timeout=400,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    views = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(view["width"], view["colorScheme"]) for view in views] == [
        (width, scheme) for width in (1280, 390) for scheme in ("light", "dark")
    ]
    for view in views:
        added = f"<b>added</b> at {view['width']} {view['colorScheme']}"
        assert view["before"] == view["after"] == HISTORIES["ann"]
        assert view["added"] == [*HISTORIES["ann"], added]
        assert "i love tea" in view["personal"]
        assert "i love tea" not in view["plain"]
        assert set(HISTORIES["ann"]) <= set(view["shown"])
        assert all(re.search(r"score -?\d", line) for line in view["why"])
        assert (view["errors"], view["foreign"], view["faults"]) == ([], [], [])
        assert view["scroll"] <= 0
