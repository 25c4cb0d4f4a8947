"""Cohorts that were planted: who finds them, and whether they help those who have written little."""

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from pbr_jax import run
from pbr_jax.config import Optimizer, Training, load, override
from pbr_jax.data import synthetic
from pbr_jax.index import base as index_base
from pbr_jax.index.density import hdbscan, k_means
from pbr_jax.models.user_transformer import UserTransformerConfig
from pbr_jax.stages import users
from pbr_jax.train import user_encoder
from pbr_jax.train.user_encoder import Objective

CONFIGS = Path(__file__).parents[1] / "configs"


def world(count: int, cohorts: int, width: int, seed: int) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Everybody writes of all topics and uses all tags; cohorts differ in which tag goes with which topic.

    So documents of two cohorts have the same mean: it takes a look at each of them to tell the cohorts apart.
    """
    random = np.random.default_rng(seed)
    cohort = np.arange(count) % cohorts
    topics, tags = random.normal(size=(2, cohorts, width)) / width**0.5
    lengths = random.integers(12, 25, count)
    own = np.repeat(cohort, lengths)
    topic = random.integers(0, cohorts, len(own))
    habit = random.random(len(own)) < 0.9
    tag = np.where(habit, (topic + own) % cohorts, random.integers(0, cohorts, len(own)))
    documents = topics[topic] + tags[tag] + 0.3 * random.normal(size=(len(own), width)) / width**0.5
    documents /= np.linalg.norm(documents, axis=1, keepdims=True)
    histories = np.split(np.arange(len(own)), np.cumsum(lengths)[:-1])
    return histories, documents.astype(np.float32), cohort


def precision(vectors: np.ndarray, cohort: np.ndarray, k: int = 5) -> float:
    """The share of each user's k nearest others who are of the same cohort."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    nearest = np.argsort(-cosines, axis=1)[:, :k]
    return float((cohort[nearest] == cohort[:, None]).mean())


def preferring(count: int, cohorts: int, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Unit means of users [u d] and their cohorts: `share` of a user's documents are of the two topics of the
    cohort, the others of any of twelve; two cohorts may have a topic in common."""
    random = np.random.default_rng(seed)
    cohort, topics = np.arange(count) % cohorts, random.normal(size=(12, 32)) / 32**0.5
    preferred = np.stack([random.choice(12, 2, replace=False) for _ in range(cohorts)])
    means = np.zeros((count, 32))
    for user, own in enumerate(cohort):
        n = random.integers(12, 25)
        habit = random.random(n) < share
        topic = np.where(habit, preferred[own][random.integers(0, 2, n)], random.integers(0, 12, n))
        documents = topics[topic] + 0.5 * random.normal(size=(n, 32)) / 32**0.5
        means[user] = (documents / np.linalg.norm(documents, axis=1, keepdims=True)).mean(0)
    return index_base.unit(means).astype(np.float32), cohort


@pytest.mark.parametrize("seed", range(3))
def test_density_finds_cohorts_that_prefer_topics(seed: int):
    """At the paper's sizes. Nine in ten documents on topic; what fewer do: docs/papers/clusterrag.md."""
    means, cohort = preferring(120, 6, 0.9, seed)
    for samples in (2, 3):
        assert adjusted_rand_score(cohort, hdbscan(means, min_samples=samples)) > 0.9
    assert adjusted_rand_score(cohort, k_means(means, k=6, seed=0)) > 0.9


@pytest.mark.long
def test_contrastive_users_find_cohorts_that_means_do_not_show(tmp_path: Path):
    histories, documents, cohort = world(160, 4, 32, seed=0)
    model = UserTransformerConfig(width=32, max_documents=24)
    adam = Optimizer(name="adam", learning_rate=3e-3, weight_decay=1e-5)
    training = Training(epochs=40, devices=1, patience=99, evaluate_every=40, optimizer=adam)
    fitted = user_encoder.train(histories, documents, model, Objective(), training, tmp_path, seed=0)
    found = precision(users.transformer(fitted.params, model)(histories, documents), cohort)
    of_means = precision(users.mean(histories, documents), cohort)
    assert found > 0.85
    assert found > of_means + 0.25


@pytest.mark.long
@pytest.mark.usefixtures("weights")
def test_contrastive_neighbours_serve_those_who_have_written_little_better_than_their_own_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Newcomers are asked about topics they never wrote of: the habitual tag is only known from their cohort.

    What counts is whether the tag of the true headline stands in the documents of the prompt. Retriever and
    reranker are untrained here: what they learn is tested where they are trained.
    """
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "cache"))
    synthetic.generate(tmp_path / "world", seed=0, users=30, cohorts=3)
    truth = json.loads((tmp_path / "world" / "truth.json").read_text())
    tags = {id: post["tag"] for user in truth["users"] for id, post in user["documents"].items()}
    few = {str(user["user_id"]) for user in truth["users"] if user["kind"] != "regular"}
    place = {"benchmark.root": str(tmp_path / "world"), "generate.method": "none", "select.k": 3}
    learning = {
        "neighbours.m": 4, "retrieve.k": 2, "retrieve.method": "dense", "select.method": "top_k",
        "user_encoder.training.epochs": 3, "user_encoder.training.devices": 1,
    }  # fmt: skip

    def known(name: str, **fields: object) -> float:
        config = override(load(CONFIGS / f"{name}.py").config, {**place, **fields})
        results = run(config, tmp_path / name)
        lines = [line for line in results.records() if line["user_id"] in few]
        assert len(lines) > 10
        helped = [
            any(tags[document["id"]] == tags[line["id"]] for document in line["documents"][:3])
            for line in lines
        ]
        return float(np.mean(helped))

    own, together = known("dense", **{"retrieve.k": 3}), known("cfrag", **learning)
    print(own, together)
    assert together > own + 0.15
