"""One file from the web: whole, checked, and continued where it was stopped."""

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from pbr_jax.base import terminal
from pbr_jax.base.locks import locked
from pbr_jax.base.types import UserError

if TYPE_CHECKING:
    import httpx2

_BLOCK = 1 << 20
_TIMEOUT = 60.0  # seconds without a byte


def download(address: str, path: Path, sha256: str | None = None) -> None:
    """Writes what is at `address` to `path`, unless a file with that hash, or with no known hash, is there.

    Raises UserError: no connection, an error of the server, another hash than `sha256`.
    """
    if _is_there(path, sha256):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_name(f"{path.name}.lock"), f"waiting for another process that downloads {path}"):
        if not _is_there(path, sha256):
            _download(address, path, sha256)


def _is_there(path: Path, sha256: str | None) -> bool:
    return path.is_file() and (sha256 is None or _hash(path) == sha256)


def _download(address: str, path: Path, sha256: str | None) -> None:
    part = path.with_name(f"{path.name}.part")
    _fetch(address, part)
    if sha256 is not None and (found := _hash(part)) != sha256:
        part.unlink()
        raise UserError(
            f"{address} has the SHA-256 {found[:12]}..., want {sha256[:12]}...: its authors changed it, or "
            "it was cut short; get the former version by hand and name its folder with --from"
        )
    os.replace(part, path)


def _fetch(address: str, part: Path) -> None:
    import httpx2

    have = part.stat().st_size if part.exists() else 0
    ask = {"Accept-Encoding": "identity"}  # of compressed bytes no part goes on where a file ends
    ask |= {"Range": f"bytes={have}-"} if have else {}
    try:
        with httpx2.stream("GET", address, headers=ask, follow_redirects=True, timeout=_TIMEOUT) as reply:
            if have and reply.status_code == 416:  # nothing is left of it, or it is another file by now
                part.unlink()
                return _fetch(address, part)
            if reply.status_code not in (200, 206):
                raise UserError(
                    f"{address} answers {reply.status_code}; get the file by hand and name its folder "
                    "with --from"
                )
            _write(reply, part, have if reply.status_code == 206 else 0)
    except httpx2.RequestError as error:
        raise UserError(
            f"{address} cannot be read ({type(error).__name__}); repeat the command to go on, or get the "
            "file by hand and name its folder with --from"
        ) from error


def _write(reply: "httpx2.Response", part: Path, have: int) -> None:
    left = reply.headers.get("Content-Length")
    total = have + int(left) if left and left.isdigit() else None
    with (
        part.open("ab" if have else "wb") as file,
        terminal.bar(desc=part.stem, total=total, initial=have, unit="B") as bar,
    ):
        for block in reply.iter_bytes(_BLOCK):
            file.write(block)
            bar.update(len(block))


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
