"""The tutorial from a check to a deletion, typed as it stands, with small models and a free port."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from doc_blocks import ROOT, blocks, commands, type_command

PAGE = ROOT / "docs" / "tutorials" / "serve_and_forget.md"
TEXT = b"row on the lake every Sunday"
USER = b"c-104"


def holding(word: bytes, *folders: Path) -> list[str]:
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return [str(path) for path in files if word in path.read_bytes()]


@pytest.mark.long
def test_ten_commands_check_serve_and_forget(here: Path, tiny_models: dict[str, str]):
    pytest.importorskip("fastapi", reason="pip install 'pbr-jax[serve]'")
    if shutil.which("curl") is None or "--json" not in subprocess.getoutput("curl --help all"):
        pytest.skip("curl 7.82 or later is not installed")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    typed = [command for block in blocks(PAGE) for command, _ in commands(block.text)]
    assert len(typed) == 10
    *checking, serving, add, search, ask, delete, forget, audit = (c.replace("8000", port) for c in typed)
    places = here / "checks", Path(os.environ["PBR_JAX_CACHE"])
    for command in checking:
        type_command(command, tiny_models)

    def typed_in_shell(curl: str) -> Any:
        done = subprocess.run(shlex.split(curl), capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    words = [sys.executable, "-m", "pbr_jax", *shlex.split(serving)[1:]]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        assert any(re.match("serving dense on ", line) for line in server.stderr)
        added = typed_in_shell(add)["documents"]
        assert [one["text"] for one in added] == ["I row on the lake every Sunday."]
        for found in (typed_in_shell(search), typed_in_shell(ask)):
            assert [one["id"] for one in found["documents"]] == [added[0]["id"]]
        assert holding(TEXT, *places)
        assert typed_in_shell(delete)["deleted"] == {"documents": 1, "remarks": 0}
        assert holding(TEXT, *places) == []
        server.send_signal(signal.SIGINT)
    stores = [path for path in places[1].glob("data/*/store.sqlite") if USER in path.read_bytes()]
    assert stores
    type_command(forget, tiny_models)
    assert json.loads((here / "forgotten.json").read_text())["user"] == USER.decode()
    assert holding(USER, here / "checks") == [str(here / "checks" / "first" / "report.html")]
    assert [path for path in places[1].glob("data/*/store.sqlite") if USER in path.read_bytes()] == []
    type_command(audit, tiny_models)
