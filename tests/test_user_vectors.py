"""What an opened run says of its users: as vectors, and in clusters."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.cluster import HDBSCAN
from sklearn.metrics import adjusted_rand_score

import pbr_jax
from pbr_jax.base.types import UserError
from pbr_jax.config import Config, override
from pbr_jax.text.encode import TextEncoder

HISTORIES = {
    "ann": ["i love tea", "tea and cats", "cats about"],
    "bob": ["football that day", "violins"],
    "cyd": [],
    **{f"u{i}": [f"i love {thing}", thing] for i, thing in enumerate(("tea", "cats", "violins") * 3)},
}


@pytest.fixture
def config(
    tiny_models: dict[str, str],
    write_tweets: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Config:
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "cache"))
    root = str(write_tweets(HISTORIES))
    place = {"benchmark.name": "lamp_7", "benchmark.root": root, "benchmark.training": "none", **tiny_models}
    return override(Config(), {**place, "collaboration": "text", "encoder.max_length": 32})


def means(config: Config) -> dict[str, np.ndarray]:
    encode = TextEncoder(config.encoder).encode
    return {user: encode(texts, role="document").mean(0) for user, texts in HISTORIES.items() if texts}


def test_users_are_the_means_of_their_documents_and_one_without_documents_is_left_out(config: Config):
    users = pbr_jax.open(override(config, {"neighbours.method": "mean", "neighbours.m": 2})).user_vectors()
    wanted = means(config)
    assert sorted(users.ids) == sorted(wanted)
    np.testing.assert_allclose(users.vectors, [wanted[user] for user in users.ids], atol=1e-6)
    assert users.clusters is None


def test_clusters_are_those_that_density_gives(config: Config):
    users = pbr_jax.open(override(config, {"neighbours.method": "cohorts", "neighbours.m": 2})).user_vectors()
    assert users.clusters is not None
    wanted = means(config)
    vectors = np.stack([wanted[user] for user in users.ids])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    settings: Any = {"min_cluster_size": 2, "min_samples": 3, "copy": True}
    labels = HDBSCAN(**settings).fit(vectors).labels_
    assert len(set(labels)) > 2
    assert adjusted_rand_score(labels, users.clusters) == 1.0
    np.testing.assert_array_equal(labels == -1, users.clusters == -1)


@pytest.mark.parametrize("fields", [{}, {"neighbours.method": "random", "neighbours.m": 3}])
def test_a_run_that_compares_no_users_says_so(config: Config, fields: dict[str, object]):
    with pytest.raises(UserError, match=r"compares no users; set neighbours.method"):
        pbr_jax.open(override(config, fields)).user_vectors()
