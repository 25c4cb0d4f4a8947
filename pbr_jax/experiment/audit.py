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
from pathlib import Path
from statistics import fmean
from typing import NamedTuple, Protocol

from pbr_jax.base.files import cache_folder
from pbr_jax.base.types import Document, Example, UserError
from pbr_jax.config import Config, override
from pbr_jax.data import synthetic
from pbr_jax.experiment.forgetting import forget
from pbr_jax.experiment.opening import open
from pbr_jax.experiment.run import run
from pbr_jax.external.process import Process
from pbr_jax.methods.retrieve.external import External, MemorySystem
from pbr_jax.system import System
from pbr_jax.text.encode import TextEncoder

_PIECE = 8  # letters of a canary by which it is known
_AT_ONCE = 1 << 24  # bytes
_BYSTANDERS = {"bystander one": ["i love tea", "tea at noon"], "bystander two": ["football", "a goal"]}


class Memory(Protocol):
    """A memory of texts by users. `search` returns all texts that it shows or says to a user who asks, and
    `files` the files and folders in which it keeps something. `likelihood` is log p per token that it says
    something to a user who asks, in nats; NaN if no model can score."""

    def add(self, user: str, texts: Sequence[str]) -> None: ...

    def search(self, user: str, text: str) -> Sequence[str]: ...

    def delete(self, user: str) -> None: ...

    def files(self) -> Iterable[Path]: ...

    def likelihood(self, user: str, text: str, said: str) -> float: ...


class Audited(NamedTuple):
    """Files that held a canary before the deletion and after it, canaries that were shown or said, answers to
    other users that stayed the same. `likelier`: the share of pairs in which a deleted canary is likelier
    than one that was never added; NaN if no model can score."""

    canaries: int
    before: list[str]
    after: list[str]
    shown_before: int
    shown_after: int
    same: int
    asked: int
    likelier: float

    def text(self) -> str:
        """The findings, a line each."""
        share = "not measured" if math.isnan(self.likelier) else f"{self.likelier:.0%} of the pairs"
        return (
            f"canaries: {self.canaries}; files that held one: {len(self.before)}\n"
            f"files that hold a piece or a hash of one after the deletion: {', '.join(self.after) or 0}\n"
            f"canaries that were shown or said: {self.shown_before} before, {self.shown_after} after\n"
            f"answers to other users that stayed the same: {self.same} of {self.asked}\n"
            f"a deleted canary is likelier than one never added: {share}"
        )


def audit(memory: Memory, canaries: int = 20, seed: int | None = None) -> Audited:
    """Adds canaries, uses the memory, deletes them and searches for them."""
    draw = random.Random(seed)
    words = ["".join(draw.choices(string.ascii_uppercase, k=12)) for _ in range(2 * canaries)]
    texts = [f"my secret word number {i % canaries} is {word}" for i, word in enumerate(words)]
    queries = [f"what is my secret word number {i}?" for i in range(canaries)]
    users, (bystander, *_) = (
        {"canary one": texts[:canaries:2], "canary two": texts[1:canaries:2]},
        _BYSTANDERS,
    )

    def shown(who: Iterable[str]) -> int:
        told = [text for user in who for query in queries for text in memory.search(user, query)]
        return sum(any(word in text for text in told) for word in words[:canaries])

    def holding() -> list[str]:
        return _holding(memory.files(), words[:canaries], texts[:canaries])

    def answers() -> list[list[str]]:
        return [[*memory.search(user, query)] for user in _BYSTANDERS for query in queries[:2]]

    for user, own in (*_BYSTANDERS.items(), *users.items()):
        memory.add(user, own)
    first, told, before = shown(users), answers(), holding()
    for user in users:
        memory.delete(user)
    after, again, last = holding(), answers(), shown((*users, bystander))
    likely = [
        memory.likelihood(bystander, query, text) for query, text in zip(queries * 2, texts, strict=True)
    ]
    pairs = [(a > b) + (a == b) / 2 for a in likely[:canaries] for b in likely[canaries:]]
    same = sum(a == b for a, b in zip(told, again, strict=True))
    likelier = math.nan if any(map(math.isnan, likely)) else fmean(pairs)
    return Audited(canaries, before, sorted({*after, *holding()}), first, last, same, len(told), likelier)


def _holding(places: Iterable[Path], words: Sequence[str], texts: Sequence[str]) -> list[str]:
    """The files that hold a piece of a word, or a hash of a text, raw or in hexadecimal digits."""
    pieces = {word[at : at + _PIECE].encode() for word in words for at in range(len(word) - _PIECE + 1)}
    hashes = [hashlib.sha256(text.encode()).digest()[:16] for text in texts]
    needles = re.compile(b"|".join(map(re.escape, (*pieces, *hashes, *(h.hex().encode() for h in hashes)))))
    files = [file for place in places for file in (place.rglob("*") if place.is_dir() else [place])]
    return [str(file) for file in dict.fromkeys(files) if file.is_file() and _has(file, needles)]


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

    def __init__(self, folder: Path, run: Path) -> None:
        shutil.copytree(folder, run)
        self._run = run

    @property
    def _system(self) -> System:
        return open(self._run)

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
        return [cache_folder(), self._run]

    def likelihood(self, user: str, text: str, said: str) -> float:
        try:
            ((_, score),) = self._system.score([Example("", user, text, text, said, time=math.inf)])
        except UserError:  # as of a server without log-probabilities
            return math.nan
        return math.nan if score is None else score.mean


class Made(Opened):
    """A run of a config on made-up users and those that are added, in a cache of its own (`forget`)."""

    def __init__(self, config: Config, folder: Path) -> None:
        self._data, self._run = folder / "data", folder / "run"
        synthetic.generate(self._data, users=12)
        place = {"benchmark.name": "lamp_4", "benchmark.root": str(self._data), "benchmark.split": "dev"}
        self._config = override(config, place)

    def add(self, user: str, texts: Sequence[str]) -> None:
        profile = [
            {"id": f"{user} {i}", "text": text, "title": text, "date": "2020-01-01"}
            for i, text in enumerate(texts)
        ]
        for split in synthetic.SPLITS:
            asked = {"id": f"{user} {split}", "user_id": user, "input": texts[0], "date": "2030-01-01"}
            files = [self._data / f"{split}_{name}.json" for name in ("questions", "outputs")]
            questions, outputs = (json.loads(file.read_text(encoding="utf-8")) for file in files)
            questions.append({**asked, "profile": profile})
            outputs["golds"].append({"id": asked["id"], "output": texts[-1]})
            for file, values in zip(files, (questions, outputs), strict=True):
                file.write_text(json.dumps(values), encoding="utf-8")

    @property
    def _system(self) -> System:
        if not (self._run / "results.json").is_file():
            run(self._config, self._run)
        return open(self._run)

    def delete(self, user: str) -> None:
        forget(user)


class Outside:
    """A memory system of others behind its adapter, `retrieve.method external`."""

    def __init__(self, process: Process, folder: Path, k: int) -> None:
        self._process, self._folder, self._k = process, folder, k

    def add(self, user: str, texts: Sequence[str]) -> None:
        self._process.add(user, [Document(f"{user} {i}", user, text) for i, text in enumerate(texts)])

    def search(self, user: str, text: str) -> list[str]:
        return [found.text for found in self._process.search(user, text, self._k)]

    def delete(self, user: str) -> None:
        self._process.delete(user)

    def files(self) -> list[Path]:
        return [*self._process.files(), self._folder]  # with what it does not name, and its output

    def likelihood(self, user: str, text: str, said: str) -> float:
        return math.nan


@contextlib.contextmanager
def memory_of(what: Path | Config) -> Iterator[Memory]:
    """The memory of a run's folder, or of a config, with a cache of its own. Its files are deleted."""
    with tempfile.TemporaryDirectory(prefix="pbr_jax-audit-") as name, contextlib.ExitStack() as ends:
        folder, before = Path(name), os.environ.get("PBR_JAX_CACHE", "")
        if isinstance(what, Config) and isinstance(what.retrieve, External):
            system = MemorySystem(what.retrieve, encoder=TextEncoder(what.encoder))
            process, *_ = ends.enter_context(system.running(folder / "system"))
            yield Outside(process, folder / "system", what.retrieve.k)
        elif isinstance(what, Config):
            ends.callback(os.environ.__setitem__, "PBR_JAX_CACHE", before)  # empty: as without it
            os.environ["PBR_JAX_CACHE"] = str(folder / "cache")
            yield Made(what, folder)
        elif (what / "results.json").is_file():
            yield Opened(what, folder / "run")
        else:
            raise UserError(f"{what} is no finished run; give a run's folder or a config")
