"""Vectors by content: one text, one encoding, whoever asks; killed, raced, erased and appended to."""

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from pbr_jax.base.types import Document, Example, UserError
from pbr_jax.corpus.store import Store, build
from pbr_jax.corpus.vectors import Vectors, VectorStore, complete, digest, erase


class Letters:
    """An encoder whose vectors are a hash of the text, and that counts what it encodes."""

    dim = 3

    def __init__(self, key: str = "letters") -> None:
        self.key, self.encoded = key, []

    def vectors_key(self, role: str) -> str:
        return hashlib.sha256(f"{self.key} {role}".encode()).hexdigest()

    def encode(self, texts: Sequence[str], *, role: str = "document") -> np.ndarray:
        self.encoded += texts
        return wanted(texts)


def wanted(texts: Sequence[str]) -> np.ndarray:
    digests = b"".join(hashlib.sha256(text.encode()).digest()[:6] for text in texts)
    return np.frombuffer(digests, np.uint16).reshape(-1, 3).astype(np.float32) + 1


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "vectors"


def histories(count: int, start: int = 0) -> tuple[Document, ...]:
    return tuple(Document(f"d{i}", "u", f"text {i}") for i in range(start, start + count))


def store_of(path: Path, documents: tuple[Document, ...]) -> Store:
    build(path, [Example("q", "u", "query", "in", "t", documents)])
    return Store(path)


TEXTS = [f"text {i}" for i in range(10)]


def test_each_text_is_encoded_once_for_all(tmp_path: Path) -> None:
    first = Letters()
    kept = VectorStore(first)
    np.testing.assert_array_equal(kept.read(kept.places(TEXTS)), wanted(TEXTS))
    again = Letters()
    other = VectorStore(again)
    np.testing.assert_array_equal(other.read(other.places(TEXTS[::-1])), wanted(TEXTS)[::-1])
    assert (first.encoded, again.encoded) == (TEXTS, [])
    other.places(["new", "text 3", "new"])
    assert again.encoded == ["new"]
    np.testing.assert_array_equal(kept.read(kept.places(["new"])), wanted(["new"]))
    assert "new" not in first.encoded
    for key, role in (("letters", "query"), ("others", "document")):
        apart = Letters(key)
        VectorStore(apart, role).places(TEXTS)  # type: ignore[arg-type]
        assert apart.encoded == TEXTS


def test_another_limit_encodes_nothing_and_a_new_document_one_text(tmp_path: Path) -> None:
    encoder = Letters()
    whole = store_of(tmp_path / "a", histories(9))
    complete(whole, VectorStore(encoder), "embed")
    part = store_of(tmp_path / "b", histories(5, start=2))
    fewer = Vectors(part, VectorStore(encoder))
    complete(part, VectorStore(encoder), "embed")
    texts = [text for _, text in part.texts()]
    np.testing.assert_array_equal(fewer[:], wanted(texts))
    np.testing.assert_array_equal(fewer[[3, 0]], wanted([texts[3], texts[0]]))
    np.testing.assert_array_equal(fewer[2], wanted(texts[2:3])[0])
    assert fewer[[]].shape == (0, 3)
    assert len(encoder.encoded) == 9


def test_a_living_store_is_followed(tmp_path: Path) -> None:
    encoder, path = Letters(), tmp_path / "living"
    store = store_of(tmp_path / "made", histories(4)).copy_to(path)
    vectors = Vectors(store, VectorStore(encoder))
    assert vectors.shape == (4, 3)
    np.testing.assert_array_equal(vectors[:], wanted(TEXTS[:4]))
    (row,) = store.append([Document("new", "u", "a new text")])
    assert vectors.shape == (row + 1, 3)
    np.testing.assert_array_equal(vectors[[row, 1]], wanted(["a new text", "text 1"]))
    assert encoder.encoded == [*TEXTS[:4], "a new text"]
    store.delete("u", ["d2"])
    afresh = Vectors(store, VectorStore(encoder))[:]
    np.testing.assert_array_equal(afresh[[0, row]], wanted(["text 0", "a new text"]))
    np.testing.assert_array_equal(afresh[2], np.zeros(3))
    assert len(encoder.encoded) == 5


def test_erased_vectors_leave_no_byte_and_are_noticed(tmp_path: Path, cache: Path) -> None:
    encoder, other = Letters(), Letters("other")
    store = store_of(tmp_path / "a", histories(6))
    vectors = Vectors(store, VectorStore(encoder))
    complete(store, VectorStore(other), "embed")
    np.testing.assert_array_equal(vectors[:], wanted(TEXTS[:6]))
    traces = [digest("text 3"), wanted(["text 3"]).astype("<f4").tobytes()]

    def found() -> int:
        content = [path.read_bytes() for path in cache.rglob("*") if path.is_file()]
        return sum(trace in data for trace in traces for data in content)

    assert found() == 4
    assert erase(["text 3", "never seen"]) == 2
    assert found() == 0
    encoder.encoded.clear()
    np.testing.assert_array_equal(vectors[:], wanted(TEXTS[:6]))  # it is still there: its text is
    assert encoder.encoded == ["text 3"]
    afresh = Letters()
    np.testing.assert_array_equal(Vectors(store, VectorStore(afresh))[:], wanted(TEXTS[:6]))
    assert afresh.encoded == []


def test_a_text_is_found_again_after_an_erasure_that_was_killed_halfway(cache: Path) -> None:
    encoder = Letters()
    VectorStore(encoder).places(TEXTS)
    (file,) = cache.rglob("vectors.f32")
    with file.open("r+b") as stream:  # the vector is gone, its digest not yet
        stream.seek(2 * 12)
        stream.write(np.full(3, np.nan, "<f4").tobytes())
    assert erase(["text 2"]) == 1
    kept = VectorStore(encoder)
    np.testing.assert_array_equal(kept.read(kept.places(TEXTS)), wanted(TEXTS))


def test_what_a_dead_writer_left_is_cut_off(cache: Path) -> None:
    VectorStore(Letters()).places(TEXTS[:4])
    (vectors,), (names,) = cache.rglob("vectors.f32"), cache.rglob("digests")
    with vectors.open("ab") as one, names.open("ab") as other:
        one.write(bytes(5 * 12 + 7))  # vectors without digests, the last one cut
        other.write(b"half")
    again = Letters()
    kept = VectorStore(again)
    np.testing.assert_array_equal(kept.read(kept.places(TEXTS)), wanted(TEXTS))
    assert again.encoded == TEXTS[4:]
    assert vectors.stat().st_size == 10 * 12
    os.truncate(vectors, 3 * 12)
    with pytest.raises(UserError, match="is shorter than its 10 digests need; delete"):
        VectorStore(Letters()).places(["new"])


def test_a_broken_encoder_leaves_nothing(cache: Path) -> None:
    class Broken(Letters):
        def encode(self, texts: Sequence[str], *, role: str = "document") -> np.ndarray:
            return np.full((len(texts), 3), np.nan, np.float32)

    with pytest.raises(UserError, match="NaN or infinity for a text"):
        VectorStore(Broken()).places(["a"])
    kept = VectorStore(Letters())
    np.testing.assert_array_equal(kept.read(kept.places(["a"])), wanted(["a"]))


SCRIPT = """
import sys, time
from pathlib import Path
from test_content_vectors import Letters, TEXTS
from pbr_jax.corpus import vectors as module
kept = module.VectorStore(Letters())
kept.places(TEXTS[:3])
where = sys.argv[1]
def stop(*_):
    print("there", flush=True); time.sleep(60)
if where == "encoding":
    kept.encoder.encode = lambda texts, role: stop()
elif where == "appending":  # vectors are written, digests are not
    write = module._write
    module._write = lambda path, pieces: stop() if path.name == "digests" else write(path, pieces)
else:
    write = module._write
    module._write = lambda path, pieces: stop() if path.name == "digests" else write(path, pieces)
    module.erase(TEXTS[:1])
kept.places(TEXTS[:6])
"""


def start(where: str) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}"}
    return subprocess.Popen([sys.executable, "-c", SCRIPT, where], stdout=subprocess.PIPE, env=environment)


@pytest.mark.skipif(os.name != "posix", reason="kill -9 is a signal of POSIX systems")
@pytest.mark.parametrize("where", ["encoding", "appending", "erasing"])
def test_killed_processes_leave_right_vectors(where: str) -> None:
    with start(where) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"there\n"
        process.send_signal(signal.SIGKILL)
    again = Letters()
    kept = VectorStore(again)
    if where == "erasing":
        assert np.isnan(kept.read(kept.places(TEXTS[:1]))).all()
        assert erase(TEXTS[:1]) == 1
        kept = VectorStore(again)
    np.testing.assert_array_equal(kept.read(kept.places(TEXTS)), wanted(TEXTS))
    assert again.encoded == (TEXTS[:1] + TEXTS[3:] if where == "erasing" else TEXTS[3:])


RACER = """
import sys
from test_content_vectors import Letters, VectorStore, np, wanted
encoder = Letters()
kept = VectorStore(encoder)
numbers = np.random.default_rng(int(sys.argv[1])).integers(0, 300, (60, 20))
for some in numbers.tolist():
    texts = [f"text {i}" for i in some]
    np.testing.assert_array_equal(kept.read(kept.places(texts)), wanted(texts))
print(len(encoder.encoded))
"""


def test_two_processes_at_once_encode_each_text_once() -> None:
    environment = os.environ | {"PYTHONPATH": f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}"}
    racers = [
        subprocess.Popen([sys.executable, "-c", RACER, str(i)], stdout=subprocess.PIPE, env=environment)
        for i in range(2)
    ]
    counts = [int(racer.communicate()[0]) for racer in racers]
    texts = {i for seed in range(2) for i in np.random.default_rng(seed).integers(0, 300, (60, 20)).ravel()}
    assert sum(counts) == len(texts)
