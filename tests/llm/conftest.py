from pathlib import Path

import pytest
import servers


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    """The folder of a small model over bytes."""
    path = tmp_path_factory.mktemp("tiny")
    servers.write_tiny(path)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where the cache of answers is, not yet there."""
    return tmp_path / "cache" / "llm.sqlite"
