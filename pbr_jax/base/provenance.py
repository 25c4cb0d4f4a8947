"""What computes in this process: the commit of the package's source, and the versions of its libraries."""

import platform
import subprocess
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

_VERSIONED = ("pbr-jax", "jax", "jaxlib", "flax", "numpy", "tokenizers", "bm25s", "PyStemmer", "rouge-score")


def provenance() -> dict[str, Any]:
    """`commit` and `versions`; part of no key."""
    return {"commit": commit(), "versions": _versions()}


@lru_cache(maxsize=1)
def commit() -> str:
    """The commit of the package's source, "+" marking local changes; "" outside a checkout."""
    here = Path(__file__).parents[1]

    def git(*arguments: str) -> str:
        return subprocess.run(
            ("git", "-C", str(here), *arguments), capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # else the checkout around us is somebody else's
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _VERSIONED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
