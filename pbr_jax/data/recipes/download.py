"""One file from the web: whole and checked."""

import hashlib
from pathlib import Path

from pbr_jax.base import terminal
from pbr_jax.base.locks import locked
from pbr_jax.base.types import UserError

_BLOCK = 1 << 20
_TIMEOUT = 60.0  # seconds without a byte


def download(address: str, path: Path, wanted: str | None = None) -> None:
    """Writes what is at `address` to `path`, unless a file with that hash, or with no known hash, is there.

    Raises UserError: no connection, an error of the server, another SHA-256 hash than `wanted`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_name(f"{path.name}.lock"), f"waiting for another process that downloads {path}"):
        if path.is_file() and wanted in (None, sha256(path)):
            return
        part = path.with_name(f"{path.name}.part")
        _fetch(address, part)
        if wanted is not None and (found := sha256(part)) != wanted:
            part.unlink()
            raise UserError(
                f"{address} has the SHA-256 {found[:12]}..., want {wanted[:12]}...: its authors changed it, "
                "or it was cut short; get the former version by hand and name its folder with --from"
            )
        part.replace(path)


def _fetch(address: str, part: Path) -> None:
    import httpx2

    plain = {"Accept-Encoding": "identity"}  # whose length is the file's
    try:
        with httpx2.stream("GET", address, headers=plain, follow_redirects=True, timeout=_TIMEOUT) as reply:
            if reply.status_code != 200:
                raise UserError(
                    f"{address} answers {reply.status_code}; get the file by hand and name its folder "
                    "with --from"
                )
            left = reply.headers.get("Content-Length", "")
            total = int(left) if left.isdigit() else None
            with part.open("wb") as file, terminal.bar(desc=part.stem, total=total, unit="B") as bar:
                for block in reply.iter_bytes(_BLOCK):
                    file.write(block)
                    bar.update(len(block))
    except httpx2.RequestError as error:
        raise UserError(
            f"{address} cannot be read ({type(error).__name__}); repeat the command, or get the file by hand "
            "and name its folder with --from"
        ) from error


def sha256(path: Path) -> str:
    """The hash of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
