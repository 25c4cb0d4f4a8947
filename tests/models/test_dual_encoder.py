"""The dual encoder against Hugging Face's BERT and torch's cosine, one tower at a time and all together."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from pbr_jax.base.types import UserError
from pbr_jax.models import bert
from pbr_jax.models.dual_encoder import DualEncoderConfig, Tokens, dual_encoder, from_bert, personalize

SIZES: dict[str, Any] = dict(
    vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=12,
    max_position_embeddings=16,
)  # fmt: skip
RNG = np.random.default_rng(0)
QUERIES = Tokens(RNG.integers(1, 30, (2, 5)), np.arange(5) < np.array([[5], [3]]))
DOCUMENTS = Tokens(RNG.integers(1, 30, (3, 7)), np.arange(7) < np.array([[4], [7], [1]]))
USERS = RNG.normal(size=(2, 6)).astype(np.float32)
INPUTS: dict[str, Any] = dict(queries=QUERIES, documents=DOCUMENTS, users=USERS)
DIRECTION = RNG.normal(size=(2, 3)).astype(np.float32)
TEXTS = ("queries", "documents")
ALPHA = 0.3


def plain(**options: Any) -> DualEncoderConfig:
    defaults: dict[str, Any] = dict(tower=bert.BertConfig(**SIZES), user_width=6)
    return DualEncoderConfig(**(defaults | options))


MODEL = dual_encoder(plain())
APPLY = jax.jit(MODEL.apply)


@pytest.fixture(scope="module")
def params(random_params) -> dict:
    return random_params(MODEL)


@pytest.mark.long
def test_scores_and_gradients_equal_torch(tmp_path: Path, from_torch) -> None:
    torch.manual_seed(0)
    body = from_torch.spread(transformers.BertModel(transformers.BertConfig(**SIZES)))
    body.save_pretrained(tmp_path)
    user_map = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8))

    def vectors(texts: Tokens) -> torch.Tensor:
        mask = torch.tensor(texts.mask)
        states = body(torch.tensor(texts.ids), attention_mask=mask.long()).last_hidden_state
        return (states * mask[..., None]).sum(1) / mask.sum(1)[:, None]

    users = torch.tensor(USERS, requires_grad=True)
    cosine = torch.nn.CosineSimilarity(-1)
    documents = vectors(DOCUMENTS)[None]
    wanted = (1 - ALPHA) * cosine(vectors(QUERIES)[:, None], documents)
    wanted = wanted + ALPHA * cosine(user_map(users)[:, None], documents)
    (wanted * torch.tensor(DIRECTION)).sum().backward()

    def ours(named: dict) -> dict:
        return {f"dense_{i}": from_torch.linear(named, f"{2 * i}.") for i in range(2)}

    def objective(params: dict, users: jax.Array) -> tuple[jax.Array, jax.Array]:
        found = MODEL.apply(params, queries=QUERIES, documents=DOCUMENTS, users=users)
        scores = personalize(found.queries, found.users, ALPHA) @ found.documents.T
        return (scores * DIRECTION).sum(), scores

    tower = bert.load(tmp_path)[1]
    gradient = jax.jit(jax.grad(objective, argnums=(0, 1), has_aux=True))
    params = {"tower": tower, "user": ours(from_torch.weights(user_map))}
    (by_weight, by_user), scores = gradient(params, USERS)
    np.testing.assert_allclose(scores, wanted.detach().numpy(), atol=1e-5, rtol=0)
    assert users.grad is not None
    np.testing.assert_allclose(by_user, users.grad.numpy(), atol=1e-4, rtol=0)
    expected = {
        "tower": bert.assign(
            from_torch.gradients(body), bert.RULES, jax.eval_shape(lambda: tower), ignore=bert.IGNORED
        ),
        "user": ours(from_torch.gradients(user_map)),
    }
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4, rtol=0), by_weight, expected)


@pytest.mark.parametrize("name", INPUTS)
def test_one_input_alone_equals_all_together(name: str, params: dict) -> None:
    together = APPLY(params, **INPUTS)._asdict()
    alone = APPLY(params, **{name: INPUTS[name]})._asdict()
    np.testing.assert_allclose(alone.pop(name), together[name], atol=1e-6)
    assert list(alone.values()) == [None, None]
    np.testing.assert_allclose(jnp.linalg.norm(together[name], axis=-1), 1, atol=1e-6)


def test_what_stands_in_padding_does_not_matter(params: dict) -> None:
    noisy = {
        k: Tokens(np.where(INPUTS[k].mask, INPUTS[k].ids, 29), INPUTS[k].mask)
        for k in ("queries", "documents")
    }
    found, wanted = APPLY(params, **(INPUTS | noisy)), APPLY(params, **INPUTS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=0), found, wanted)


def test_the_tower_starts_from_a_bert(random_params) -> None:
    tower = jax.tree.map(jnp.asarray, random_params(bert.bert(plain().tower)))
    params = from_bert(plain(), tower, jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, params["tower"], tower)
    sizes = lambda tree: jax.tree.map(lambda leaf: leaf.shape, tree)  # noqa: E731
    assert sizes(params) == sizes(jax.eval_shape(MODEL.init, jax.random.key(0)))


def test_personal_queries_between_the_extremes() -> None:
    queries, users = (jnp.asarray(RNG.normal(size=(2, 8)).astype(np.float32)) for _ in range(2))
    np.testing.assert_allclose(personalize(queries, users, 0.0), queries)
    np.testing.assert_allclose(personalize(queries, users, 1.0), users)
    np.testing.assert_allclose(personalize(queries, users, 0.25), 0.75 * queries + 0.25 * users, atol=1e-6)


def test_a_user_without_history_has_finite_gradients(params: dict) -> None:
    model = dual_encoder(plain(user_layers=1))
    zero = {"kernel": np.ones((6, 8), np.float32), "bias": np.zeros(8, np.float32)}
    objective = lambda users: model.apply({"user": {"dense_0": zero}}, users=users).users.sum()  # noqa: E731
    value, gradient = jax.jit(jax.value_and_grad(objective))(jnp.zeros((1, 6)))
    assert value == 0
    assert np.isfinite(gradient).all()


def test_dropout_needs_a_key(params: dict, draws) -> None:
    assert draws(MODEL.apply, params, queries=QUERIES)
    assert draws(MODEL.apply, params, documents=DOCUMENTS)


def test_what_does_not_fit(params: dict) -> None:
    with pytest.raises(ValueError, match="user_width is None"):
        dual_encoder(plain(user_width=None)).apply(params, users=USERS)
    with pytest.raises(UserError, match="user_layers is 0"):
        plain(user_layers=0)
