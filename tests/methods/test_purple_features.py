"""Retrievers' scores as features of PURPLE's candidates: by hand, and through a training."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from test_purple_runs import config, key_of_training, made
from test_trained_runs import histories

from pbr_jax import run
from pbr_jax.base.types import Candidate, Document
from pbr_jax.experiment.plan import Plan
from pbr_jax.graph import walk
from pbr_jax.methods.select.purple import features, part_names, question, with_features
from pbr_jax.models.set_policy import SetPolicyConfig

pytestmark = pytest.mark.usefixtures("fresh_cache")


@pytest.fixture
def tweets(write_tweets) -> Path:
    write_tweets(histories("a", 12), "train")
    return write_tweets(histories("b", 8))


def candidate(score: float, scores: Mapping[str, float]) -> Candidate:
    return Candidate(Document("d", "u", "text"), score, 0, scores)


FUSED = [
    candidate(3.0, {"bm25": 8.0, "dense": 0.5}),
    candidate(1.0, {"bm25": 2.0}),
    candidate(-1.0, {"bm25": 5.0, "dense": 0.1}),
]


def test_features_are_standardised_scores_places_and_parts():
    deviation = 1.5**0.5
    wanted = [
        [deviation, deviation, deviation, 2**0.5],
        [0, 0, -deviation, -(0.5**0.5)],  # dense has not found it: as the lowest that it found
        [-deviation, -deviation, 0, -(0.5**0.5)],
    ]
    assert part_names([[], FUSED[1:2], FUSED]) == ("bm25", "dense")
    found = features(FUSED, ("bm25", "dense"))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    np.testing.assert_array_equal(features(FUSED, ())[:, :2], found[:, :2])


def test_odd_rankings_have_features():
    assert features([], ("bm25",)).shape == (0, 3)
    assert not features(FUSED[:1], ("bm25", "unknown")).any()  # one candidate differs from none
    assert question(np.zeros((1, 2)), [], FUSED, None).features is None
    assert with_features(SetPolicyConfig(width=2, num_heads=1), ("a", "b")).num_features == 4


@pytest.mark.long
def test_a_run_learns_with_features_of_one_retriever_and_match(tiny_models, tweets: Path, tmp_path: Path):
    chosen = {
        "select.fusion": "match", "select.features": "scores",
        "select.training.select_by": "rank_correlation",
    }  # fmt: skip
    plain = config(tiny_models, tweets)
    told = config(tiny_models, tweets, **chosen)
    results = run(told, tmp_path / "out")
    assert "purple" in made(tmp_path / "out")
    assert results.values["trained"]["purple"]["parts"] == []
    (policy,) = (node.value for node in walk(Plan(told).last) if node.name == "purple")
    assert policy.params["features"]["kernel"].shape[0] == 2
    assert "match" in policy.params
    keys = {key_of_training(config(tiny_models, tweets, **{n: v})) for n, v in chosen.items()}
    assert len(keys | {key_of_training(plain)}) == 4
