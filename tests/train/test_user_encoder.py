"""Training the user encoder on views: what it learns, and users of every length."""

import jax
import numpy as np
import pytest

from pbr_jax.base.types import UserError
from pbr_jax.config import Optimizer, Training
from pbr_jax.data.views import Rates
from pbr_jax.models.user_transformer import UserTransformerConfig, user_transformer
from pbr_jax.stages import users
from pbr_jax.train import user_encoder
from pbr_jax.train.user_encoder import Objective

WIDTH = 8
MODEL = UserTransformerConfig(width=WIDTH, max_documents=6)
PAPER = Objective()


def world(users=24, seed=0):
    """Each user's documents lie around a point of the user's own."""
    generator = np.random.default_rng(seed)
    lengths = [0, 1, 2, *generator.integers(3, 9, users - 3)]
    rows = np.split(np.arange(sum(lengths)), np.cumsum(lengths)[:-1])
    centres = np.repeat(generator.normal(size=(users, WIDTH)), lengths, axis=0)
    vectors = centres + 0.5 * generator.normal(size=centres.shape)
    return rows, (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def train(histories, embeddings, folder, *, objective=PAPER, seed=0, epochs=8):
    adam = Optimizer(name="adam", learning_rate=3e-3)
    config = Training(epochs=epochs, batch_size=8, devices=1, selection=0.25, optimizer=adam)
    return user_encoder.train(histories, embeddings, MODEL, objective, config, folder, seed=seed)


def encoded(fitted, histories, embeddings):
    return users.transformer(fitted.params, MODEL)(histories, embeddings)


@pytest.mark.long
@pytest.mark.parametrize("loss", ["cross_view", pytest.param("nt_xent", marks=pytest.mark.long)])
def test_views_of_one_user_come_to_be_alike(tmp_path, loss):
    histories, embeddings = world()
    # With some seeds the few users who are held out are alike from the start, or hard to tell from others.
    fitted = train(histories, embeddings, tmp_path, objective=Objective(loss=loss), seed=2)
    values = [line["selection"] for line in fitted.metrics if "selection" in line]
    assert fitted.step > 0
    assert max(values) > 0.5 * values[0]  # minus the loss of users held out
    # Both halves of a history are nearer to each other than to the halves of others.
    early = encoded(fitted, [h[: len(h) // 2] for h in histories[3:]], embeddings)
    late = encoded(fitted, [h[len(h) // 2 :] for h in histories[3:]], embeddings)
    early, late = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (early, late))
    cosines = early @ late.T
    assert np.diag(cosines).mean() > cosines.mean() + 0.3


@pytest.mark.long
def test_a_repeated_training_gives_the_same_bits_and_another_seed_does_not(tmp_path):
    histories, embeddings = world()
    one, two, other = (
        train(histories, embeddings, tmp_path / name, seed=seed, epochs=2)
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    assert one.metrics == two.metrics
    assert one.metrics != other.metrics


@pytest.mark.long
def test_users_of_every_length_get_an_embedding(tmp_path):
    histories, embeddings = world()
    fitted = train(histories, embeddings, tmp_path, epochs=1)
    found = encoded(fitted, histories, embeddings)
    assert found.shape == (24, WIDTH)
    assert not found[0].any()  # nothing written
    assert np.isfinite(found).all()
    assert (np.linalg.norm(found[1:], axis=1) > 0).all()
    # A function of the user's own latest documents: not of company, not of what is older.
    alone = encoded(fitted, histories[5:6], embeddings)
    latest = encoded(fitted, [histories[5][-6:]], embeddings)
    np.testing.assert_allclose(alone[0], found[5], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(latest[0], found[5], rtol=1e-5, atol=1e-6)
    assert encoded(fitted, [], embeddings).shape == (0, WIDTH)


def test_one_user_and_none(tmp_path):
    histories, embeddings = world()
    one = train(histories[4:5], embeddings, tmp_path, epochs=1)
    assert one.step == 1
    with pytest.raises(UserError, match="no example to train on"):
        train(histories[:1], embeddings, tmp_path / "0")
    nothing = Objective(rates=Rates(None, None, None))
    with pytest.raises(UserError, match="no kind of view"):
        train(histories, embeddings, tmp_path / "1", objective=nothing)


def test_accelerators_read_both_views_with_one_copy_of_the_model(monkeypatch):
    histories, embeddings = world()
    draws = [[0, 0, i] for i in range(8)]
    batch = user_encoder._batch(
        histories[3:11], np.ones(8, bool), draws, embeddings=embeddings, rates=Rates(), width=6
    )
    params = user_transformer(MODEL).init(jax.random.key(0))

    def found():
        loss = user_encoder._loss(MODEL, PAPER, dropout=True)
        return jax.jit(jax.value_and_grad(loss))(params, batch, jax.random.key(1))

    here = found()
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    for ours, theirs in zip(jax.tree.leaves(found()), jax.tree.leaves(here), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
