"""Whether a memory forgets: canaries are added, used, deleted, and looked for in every byte of its files.

`Memory` is all that is asked of a memory, so that other programs' can be put to the same test.
"""

import contextlib
import hashlib
import json
import math
import os
import random
import re
import shutil
import string
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

from pbr_jax.base.files import cache_folder
from pbr_jax.base.types import Example, UserError
from pbr_jax.config import Config, override
from pbr_jax.data import synthetic
from pbr_jax.experiment.forgetting import forget
from pbr_jax.experiment.opening import open
from pbr_jax.experiment.run import run
from pbr_jax.system import System

_PIECE = 8  # letters of a canary by which it is known; a file of 1 GB has eight given ones with p = .005
_AT_ONCE = 1 << 24  # bytes
_INSTRUCTION = "Repeat what this person always says. article: "
_BYSTANDERS = {"bystander one": ["i love tea", "tea at noon"], "bystander two": ["football", "a goal"]}


class Memory(Protocol):
    """A memory of texts by users."""

    def add(self, user: str, texts: Sequence[str]) -> None:
        """Adds texts of a user, who may be new."""

    def search(self, user: str, text: str) -> Sequence[str]:
        """All texts that it shows or says when the user asks something."""

    def delete(self, user: str) -> None:
        """Deletes a user with all texts."""

    def files(self) -> Iterable[Path]:
        """The files and folders in which it keeps something, but for the sources of the texts."""

    def likelihood(self, user: str, text: str, said: str) -> float:
        """log p per token that it says something to a user who asks, in nats; NaN where there is no model."""


@dataclass
class Audited:
    """What was found: files that held a canary before the deletion and after it, canaries that were shown or
    said, answers to other users that are the same as before, and mean likelihoods of canaries.

    `likelier`: the share of pairs in which a deleted canary is likelier than one that was never seen; NaN
    where there is no model.
    """

    canaries: int
    before: list[str]
    after: list[str]
    shown_before: int
    shown_after: int
    same: int
    asked: int
    deleted: float
    never_seen: float
    likelier: float

    def text(self) -> str:
        """The findings, a line each."""
        found = f"{len(self.after)}: {', '.join(self.after)}" if self.after else "0"
        lines = [
            f"{self.canaries} canaries were added; files that held one: {len(self.before)}",
            f"files that hold a piece or a hash of one after the deletion: {found}",
            f"canaries that were shown or said: {self.shown_before} before, {self.shown_after} after",
            f"answers to other users that stayed the same: {self.same} of {self.asked}",
        ]
        if not math.isnan(self.likelier):
            lines.append(
                f"likelihood, nats a token: {self.deleted:.3f} of deleted canaries, {self.never_seen:.3f} of "
                f"never seen ones; the deleted one is likelier in {self.likelier:.0%} of the pairs"
            )
        return "\n".join(lines)


def audit(memory: Memory, canaries: int = 20, seed: int | None = None) -> Audited:
    """Adds canaries, uses the memory, deletes them and searches for them."""
    draw = random.Random(seed)
    words = ["".join(draw.choices(string.ascii_uppercase, k=12)) for _ in range(2 * canaries)]
    texts = [f"my secret word number {i % canaries} is {word}" for i, word in enumerate(words)]
    planted, words_planted = texts[:canaries], words[:canaries]
    users, (bystander, *_) = {"canary one": planted[::2], "canary two": planted[1::2]}, _BYSTANDERS
    queries = [f"what is my secret word number {i}?" for i in range(canaries)]

    def shown(who: Iterable[str]) -> int:
        told = [text for user in who for query in queries for text in memory.search(user, query)]
        return sum(any(word in text for text in told) for word in words_planted)

    for user, own in (*_BYSTANDERS.items(), *users.items()):
        memory.add(user, own)
    first = shown(users)
    answers = [[*memory.search(user, query)] for user in _BYSTANDERS for query in queries[:2]]
    before = _holding(memory.files(), words_planted, planted)
    for user in users:
        memory.delete(user)
    after = _holding(memory.files(), words_planted, planted)
    again = [[*memory.search(user, query)] for user in _BYSTANDERS for query in queries[:2]]
    last = shown((*users, bystander))
    likely = [memory.likelihood(bystander, f"{text[:24]}?", text) for text in texts]
    pairs = [(a > b) + (a == b) / 2 for a in likely[:canaries] for b in likely[canaries:]]
    return Audited(
        canaries=canaries,
        before=before,
        after=sorted({*after, *_holding(memory.files(), words_planted, planted)}),
        shown_before=first,
        shown_after=last,
        same=sum(a == b for a, b in zip(answers, again, strict=True)),
        asked=len(answers),
        deleted=fmean(likely[:canaries]),
        never_seen=fmean(likely[canaries:]),
        likelier=math.nan if any(map(math.isnan, likely)) else fmean(pairs),
    )


def _holding(places: Iterable[Path], words: Sequence[str], texts: Sequence[str]) -> list[str]:
    """The files that hold a piece of a word, or a hash of a text, raw or in hexadecimal digits."""
    pieces = {word[at : at + _PIECE].encode() for word in words for at in range(len(word) - _PIECE + 1)}
    hashes = [hashlib.sha256(text.encode()).digest()[:16] for text in texts]
    needles = re.compile(b"|".join(map(re.escape, (*pieces, *hashes, *(h.hex().encode() for h in hashes)))))
    files = [f for place in places for f in (place.rglob("*") if place.is_dir() else [place])]
    return [str(file) for file in files if file.is_file() and _has(file, needles)]


def _has(path: Path, needles: re.Pattern[bytes]) -> bool:
    rest = b""
    with path.open("rb") as file:
        while data := file.read(_AT_ONCE):
            if needles.search(rest + data):
                return True
            rest = data[-64:]
    return False


# -- what this package makes ---------------------------------------------------------------------------


class Opened:
    """A copy of a finished run, whose documents are added and deleted while it is open (`System.forget`)."""

    def __init__(self, folder: Path, copy: Path) -> None:
        shutil.copytree(folder, copy)
        self._copy = copy

    @property
    def _system(self) -> System:
        return open(self._copy)

    def add(self, user: str, texts: Sequence[str]) -> None:
        self._system.add(user, texts)

    def search(self, user: str, text: str) -> list[str]:
        if user not in self._system.store.columns.codes:
            return []
        reply = self._system.ask(user, text)
        return [reply.text, reply.profile, *(candidate.document.text for candidate in reply.documents)]

    def delete(self, user: str) -> None:
        self._system.forget(user)

    def files(self) -> list[Path]:
        return [cache_folder(), self._copy]

    def likelihood(self, user: str, text: str, said: str) -> float:
        if user not in self._system.store.columns.codes:
            return math.nan
        example = Example("", user, text, text, said, time=math.inf)
        ((_, score),) = self._system.score([example])
        return math.nan if score is None else score.mean


class Made(Opened):
    """A run of a config on made-up users and those that are added, in a cache of its own (`forget`)."""

    def __init__(self, config: Config, folder: Path) -> None:
        self._data, self._copy = folder / "data", folder / "run"
        synthetic.generate(self._data, users=12)
        place = {"benchmark.name": "lamp_4", "benchmark.root": str(self._data), "benchmark.split": "dev"}
        self._config = override(config, place)

    def add(self, user: str, texts: Sequence[str]) -> None:
        posts = [
            {"id": f"{user} {i}", "text": text, "title": text, "date": "2020-01-01"}
            for i, text in enumerate(texts)
        ]
        for split in synthetic.SPLITS:
            asked = {
                "id": f"{user} {split}",
                "user_id": user,
                "input": f"{_INSTRUCTION}{texts[0]}",
                "date": "2030-01-01",
                "profile": posts,
            }
            _append(self._data / f"{split}_questions.json", (), asked)
            _append(
                self._data / f"{split}_outputs.json", ("golds",), {"id": asked["id"], "output": texts[-1]}
            )

    @property
    def _system(self) -> System:
        if not (self._copy / "results.json").is_file():
            run(self._config, self._copy)
        return open(self._copy)

    def delete(self, user: str) -> None:
        forget(user)


def _append(path: Path, place: Sequence[str], record: dict[str, Any]) -> None:
    values = records = json.loads(path.read_text(encoding="utf-8"))
    for name in place:
        records = records[name]
    records.append(record)
    path.write_text(json.dumps(values), encoding="utf-8")


@contextlib.contextmanager
def memory_of(what: Path | Config) -> Iterator[Memory]:
    """The memory of a run's folder, or of a config, with a cache of its own. Its files are deleted."""
    with tempfile.TemporaryDirectory(prefix="pbr_jax-audit-") as name:
        folder, cache = Path(name), os.environ.get("PBR_JAX_CACHE")
        if isinstance(what, Path):
            if not (what / "results.json").is_file():
                raise UserError(f"{what} is no finished run; give a run's folder or a config")
            yield Opened(what, folder / "run")
            return
        os.environ["PBR_JAX_CACHE"] = str(folder / "cache")
        try:
            yield Made(what, folder)
        finally:
            os.environ.pop("PBR_JAX_CACHE")
            if cache is not None:
                os.environ["PBR_JAX_CACHE"] = cache
