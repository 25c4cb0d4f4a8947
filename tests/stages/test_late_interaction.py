"""Token vectors of all documents: row by row, and a killed attempt goes on where it was."""

from pathlib import Path

import numpy as np
import pytest

from pbr_jax.base.types import Document, Example
from pbr_jax.corpus.store import Store, build
from pbr_jax.stages import late_interaction as late
from pbr_jax.text.token_encoder import TokenEncoder, max_sims


@pytest.fixture
def store(tmp_path: Path) -> Store:
    profile = tuple(Document(f"d{i}", "u", "tea cats love " * (i % 4), {}) for i in range(11))
    build(tmp_path / "store.sqlite", [Example("q", "u", "tea", "in", "t", profile)])
    return Store(tmp_path / "store.sqlite")


class Mortal(TokenEncoder):
    """Dies after so many pieces."""

    life = 99

    def encode(self, texts, role):
        if not self.life:
            raise KeyboardInterrupt
        self.life -= 1
        return super().encode(texts, role)


def test_what_was_interrupted_goes_on_and_is_bit_equal(
    store: Store, tiny_models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(late, "_TOGETHER", 4)
    encoder = Mortal(tiny_models["encoder.model"])
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    late._embed(whole, store=store, encoder=encoder)
    encoder.life = 1
    with pytest.raises(KeyboardInterrupt):
        late._embed(broken, store=store, encoder=encoder)
    encoder.life = 2  # of three pieces one is there
    late._embed(broken, store=store, encoder=encoder)
    assert encoder.life == 0
    names = sorted(path.name for path in whole.iterdir())
    assert names == sorted(path.name for path in broken.iterdir())
    assert len(names) == 10
    assert all((whole / name).read_bytes() == (broken / name).read_bytes() for name in names)


def test_rows_are_the_encoders_within_half_precision(
    store: Store, tiny_models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(late, "_TOGETHER", 4)
    encoder = TokenEncoder(tiny_models["encoder.model"])
    late._embed(tmp_path, store=store, encoder=encoder)
    found = late.TokenVectors(tmp_path)
    wanted = encoder.encode([text for _, text in store.texts()], "document")
    assert found.means.shape == (11, 16)
    query = encoder.encode(["love tea"], "query")[0]
    for row, vectors in enumerate(wanted):
        np.testing.assert_allclose(found[row], vectors, atol=1e-3)
        mean = vectors.mean(0)
        np.testing.assert_allclose(found.means[row], mean / np.linalg.norm(mean), atol=1e-5)
    scores = found.max_sims(query, [7, 0, 10])
    np.testing.assert_allclose(scores, max_sims(query, [wanted[row] for row in (7, 0, 10)]), atol=5e-3)
    assert found.max_sims(query, []).shape == (0,)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux tells its memory maps")
def test_few_files_are_open_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Linux allows a process some 65,000 memory maps; a file is 1,024 texts."""
    monkeypatch.setattr(late, "_TOGETHER", 1)
    monkeypatch.setattr(late, "_OPEN", 3)
    texts = [f"{number}" for number in range(12)]
    late.keep(
        tmp_path, texts, len(texts), lambda some: [np.full((2, 4), float(text)) for text in some], "vectors"
    )
    kept = late.Ragged(tmp_path)
    for row in (*range(12), *range(12)):
        assert kept[row].tolist() == [[row] * 4] * 2
    assert Path("/proc/self/maps").read_text().count(f"{tmp_path}/vectors-") <= 3
