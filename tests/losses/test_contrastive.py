"""Contrastive losses against double loops, torch, each other, and one device."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from pbr_jax.losses.contrastive import encode_in_chunks, info_nce, nt_xent, symmetric_info_nce

Q, C, D = 4, 6, 5
RANDOM = np.random.default_rng(0)
QUERIES = RANDOM.normal(size=(Q, D)).astype(np.float32)
DOCUMENTS = RANDOM.normal(size=(C, D)).astype(np.float32)
WEIGHTS = RANDOM.normal(size=Q).astype(np.float32)  # so that gradients tell the queries apart
DIAGONAL = np.eye(Q, C, dtype=bool)
# Three positives; one, which stands off the diagonal; none; and all.
MANY = np.array([[1, 0, 1, 0, 0, 1], [0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]], bool)
# The first query does not see one of its positives; the last sees nothing.
WHERE = np.array([[1, 1, 0, 1, 1, 1], [1, 0, 1, 0, 1, 1], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0]], bool)
ALL = np.ones((Q, C), bool)
MASKS = [(DIAGONAL, ALL), (MANY, ALL), (DIAGONAL, WHERE), (MANY, WHERE)]
TEMPERATURE = 0.3
compiled = jax.jit(info_nce)
compiled_views = jax.jit(nt_xent)
compiled_symmetric = jax.jit(symmetric_info_nce)


def with_gradients(function):
    """Compiled: values, and the gradients of their sum, weighted by WEIGHTS, for the first two arguments."""

    def weighted(*arrays):
        losses = function(*arrays)
        return (losses * WEIGHTS).sum(), losses

    compiled = jax.jit(jax.value_and_grad(weighted, (0, 1), has_aux=True))

    def values_and_gradients(*arrays):
        (_, losses), gradients = compiled(*map(jnp.asarray, arrays))
        return losses, gradients

    return values_and_gradients


def loss(queries: Any = QUERIES, documents: Any = DOCUMENTS, positives: Any = DIAGONAL, where: Any = ALL):
    return compiled(queries, documents, positives, temperature=TEMPERATURE, where=where)


loss_and_gradients = with_gradients(loss)


def assert_close(found, wanted, rtol=1e-4, atol=1e-5):
    found, wanted = jax.tree.leaves(found), jax.tree.leaves(wanted)
    assert len(found) == len(wanted)
    for mine, theirs in zip(found, wanted):
        np.testing.assert_allclose(mine, theirs, rtol=rtol, atol=atol)


def brute_force(queries, documents, positives, where, temperature=TEMPERATURE):
    """One pair at a time, in double precision."""
    losses = []
    for q in range(len(queries)):
        right = everything = 0.0
        for c in range(len(documents)):
            if where[q][c]:
                score = math.exp(float(np.dot(queries[q].astype(float), documents[c])) / temperature)
                everything += score
                right += score if positives[q][c] else 0.0
        losses.append(-math.log(right / everything) if right else 0.0)
    return losses


@pytest.mark.parametrize(("positives", "where"), MASKS)
def test_info_nce_is_minus_the_log_of_the_positives_share(positives, where):
    found = loss(positives=positives, where=where)
    np.testing.assert_allclose(found, brute_force(QUERIES, DOCUMENTS, positives, where), rtol=1e-5, atol=1e-5)


def in_torch(function, *arrays):
    """The same of a loss that is written in torch."""
    torch: Any = pytest.importorskip("torch")
    tensors = [torch.tensor(array, requires_grad=True) for array in arrays]
    values = function(torch, *tensors)
    (values * torch.tensor(WEIGHTS)).sum().backward()
    return values.detach().numpy(), [tensor.grad.numpy() for tensor in tensors]


def test_values_and_gradients_equal_the_cross_entropy_of_torch():
    def cross_entropy(torch, queries, documents):
        logits = queries @ documents.T / TEMPERATURE
        return torch.nn.functional.cross_entropy(logits, torch.arange(Q), reduction="none")

    wanted, wanted_gradients = in_torch(cross_entropy, QUERIES, DOCUMENTS)
    found, gradients = loss_and_gradients(QUERIES, DOCUMENTS, DIAGONAL, ALL)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    assert_close(gradients, wanted_gradients)


def test_values_and_gradients_of_many_positives_equal_torch():
    def log_share(torch, queries, documents):
        logits = (queries @ documents.T / TEMPERATURE).masked_fill(torch.tensor(~WHERE), -torch.inf)[:2]
        right = logits.masked_fill(torch.tensor(~MANY[:2]), -torch.inf)
        shares = torch.logsumexp(logits, 1) - torch.logsumexp(right, 1)
        return torch.nn.functional.pad(shares, (0, 2))  # torch has no word for queries without positives

    wanted, wanted_gradients = in_torch(log_share, QUERIES, DOCUMENTS)
    found, gradients = loss_and_gradients(QUERIES, DOCUMENTS, MANY, WHERE)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    assert_close(gradients, wanted_gradients)


def test_what_is_masked_may_hold_anything():
    where: Any = np.array(
        [[1, 0, 1, 1, 0, 1], [1, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 1]], bool
    )
    queries = np.where(where.any(axis=1)[:, None], QUERIES, np.nan)
    documents = np.where(where.any(axis=0)[:, None], DOCUMENTS, np.nan)
    found = loss_and_gradients(queries, documents, MANY, where)
    assert_close(found, loss_and_gradients(QUERIES, DOCUMENTS, MANY, where))


def test_nan_that_counts_is_not_hidden():
    found = loss(documents=np.where(np.eye(C, D, dtype=bool), np.nan, DOCUMENTS))
    assert jnp.isnan(found).all()


@pytest.mark.parametrize(
    ("positives", "where"),
    [(MANY & False, ALL), (MANY, ALL & False), (MANY, ~MANY), (ALL, ALL), (MANY, MANY)],
    ids=["no positive", "nothing seen", "positives unseen", "no negatives", "negatives unseen"],
)
def test_nothing_to_contrast_gives_zero_with_gradients_of_zero(positives, where):
    found = loss_and_gradients(QUERIES, DOCUMENTS, positives, where)
    assert_close(found, jax.tree.map(np.zeros_like, found), atol=1e-6)


def test_half_precision_embeddings_are_scored_in_full():
    half = [jnp.asarray(x, jnp.bfloat16) for x in (QUERIES, DOCUMENTS)]
    found = compiled(*half, temperature=TEMPERATURE)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, loss(*(x.astype(np.float32) for x in half)), rtol=1e-5)


def test_fewer_documents_than_queries_need_positives():
    with pytest.raises(ValueError, match="4 queries and 3 documents"):
        info_nce(jnp.array(QUERIES), jnp.array(DOCUMENTS[:3]), temperature=1.0)


# Two views of four users.
FIRST, SECOND = QUERIES, DOCUMENTS[:Q]
USERS = np.ones((Q, Q), bool)
STRANGERS = USERS.copy()  # rows 0 and 2 are the same user
STRANGERS[0, 2] = STRANGERS[2, 0] = False


def views(first: Any = FIRST, second: Any = SECOND, where: Any = USERS):
    return compiled_views(first, second, temperature=TEMPERATURE, where=where)


views_and_gradients = with_gradients(views)


def brute_force_views(first, second, where):
    """One pair of views at a time; a view is a user and a vector."""
    everyone = [(u, v.astype(float)) for vectors in (first, second) for u, v in enumerate(vectors)]

    def share(i):
        scores = {
            j: math.exp(float(v @ w) / float(np.linalg.norm(v) * np.linalg.norm(w)) / TEMPERATURE)
            for (t, v), (j, (u, w)) in ((everyone[i], item) for item in enumerate(everyone))
            if j != i and where[t][u]
        }
        return scores[(i + len(first)) % len(everyone)] / sum(scores.values())

    return [-(math.log(share(u)) + math.log(share(u + len(first)))) / 2 for u in range(len(first))]


@pytest.mark.parametrize("where", [USERS, STRANGERS])
def test_nt_xent_contrasts_a_view_with_both_views_of_all_others(where):
    np.testing.assert_allclose(views(where=where), brute_force_views(FIRST, SECOND, where), rtol=1e-5)


def test_nt_xent_values_and_gradients_equal_torch():
    def cross_entropy(torch, first, second):
        vectors = torch.nn.functional.normalize(torch.cat([first, second]))
        logits = (vectors @ vectors.T / TEMPERATURE).fill_diagonal_(-torch.inf)
        others = torch.arange(2 * Q).roll(Q)
        return torch.nn.functional.cross_entropy(logits, others, reduction="none").reshape(2, Q).mean(0)

    wanted, wanted_gradients = in_torch(cross_entropy, FIRST, SECOND)
    found, gradients = views_and_gradients(FIRST, SECOND, USERS)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert_close(gradients, wanted_gradients)


@pytest.mark.parametrize("where", [np.eye(Q, dtype=bool), ~USERS], ids=["no other", "nobody"])
def test_nobody_to_contrast_with_gives_zero_with_gradients_of_zero(where):
    found = views_and_gradients(FIRST, SECOND, where)
    assert_close(found, jax.tree.map(np.zeros_like, found), atol=1e-6)


def test_a_user_without_a_vector_has_finite_gradients():
    first = np.where(np.arange(Q)[:, None] == 1, 0, FIRST)
    losses, gradients = views_and_gradients(first, SECOND, USERS)
    assert all(jnp.isfinite(x).all() for x in (losses, *gradients))
    assert (gradients[0][1] != 0).any()


def test_symmetric_info_nce_is_the_mean_of_both_ways():
    where = np.array([[1, 1, 0, 1], [1, 1, 1, 1], [1, 0, 1, 1], [1, 1, 1, 0]], bool)
    there = brute_force(FIRST, SECOND, np.eye(Q), where)
    back = brute_force(SECOND, FIRST, np.eye(Q), where.T)
    found = compiled_symmetric(FIRST, SECOND, temperature=TEMPERATURE, where=where)
    np.testing.assert_allclose(found, np.add(there, back) / 2, rtol=1e-5, atol=1e-6)
    assert found[3] == 0
    one_way = compiled_symmetric(FIRST, SECOND, temperature=TEMPERATURE)
    np.testing.assert_allclose(compiled_symmetric(SECOND, FIRST, temperature=TEMPERATURE), one_way, rtol=1e-5)


def temporary_bytes(function, *arguments):
    """What the compiled gradient of a function holds besides its arguments and results."""
    gradient = jax.jit(jax.grad(lambda *x: function(*x).sum()))
    analysis: Any = gradient.lower(*arguments).compile().memory_analysis()
    return analysis.temp_size_in_bytes


PARAMS = {
    "hidden": {"kernel": RANDOM.normal(size=(3, 16)).astype(np.float32)},
    "output": {"kernel": RANDOM.normal(size=(16, D)).astype(np.float32)},
}


def encoder(params, inputs):
    hidden = jnp.tanh(inputs["x"] @ params["hidden"]["kernel"]) * inputs["keep"]
    return hidden @ params["output"]["kernel"]


def rows(n):
    random = np.random.default_rng(n)
    return {
        "x": jnp.asarray(random.normal(size=(n, 3)), jnp.float32),
        "keep": jnp.asarray(random.random((n, 16)) < 0.8),
    }


@pytest.mark.parametrize("chunk_size", [1, 4, 8, 100])
def test_chunks_of_rows_are_encoded_to_the_same_place(chunk_size):
    found = jax.jit(lambda params: encode_in_chunks(encoder, params, rows(8), chunk_size=chunk_size))(PARAMS)
    np.testing.assert_allclose(found, encoder(PARAMS, rows(8)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("chunk_size", [3, 0, -2])
def test_chunks_that_do_not_divide_the_rows_are_refused(chunk_size):
    with pytest.raises(ValueError, match=f"8 rows and a chunk_size of {chunk_size}"):
        encode_in_chunks(encoder, PARAMS, rows(8), chunk_size=chunk_size)


def mean_info_nce(queries, documents):
    return info_nce(queries, documents, temperature=TEMPERATURE).mean()


def test_cached_gradients_are_those_of_the_whole_batch():
    queries, documents = rows(4), rows(8)

    @jax.jit
    @jax.value_and_grad
    def plain(params):
        return mean_info_nce(encoder(params, queries), encoder(params, documents))

    @jax.jit
    @jax.value_and_grad
    def cached(params):
        return mean_info_nce(
            *(encode_in_chunks(encoder, params, x, chunk_size=2) for x in (queries, documents))
        )

    assert_close(cached(PARAMS), plain(PARAMS), rtol=1e-5, atol=1e-6)


def test_cached_gradients_need_the_memory_of_one_chunk():
    n, width, chunk_size = 512, 2048, 32
    params = {"kernel": jax.ShapeDtypeStruct((4, width), jnp.float32)}
    inputs = jax.ShapeDtypeStruct((n, 4), jnp.float32)

    def encode(params, inputs):
        return jnp.tanh(inputs @ params["kernel"]).reshape(len(inputs), 4, -1).sum(axis=-1)

    def loss(embeddings):
        return nt_xent(embeddings[: n // 2], embeddings[n // 2 :], temperature=1.0)

    def cached(params, inputs):
        return loss(encode_in_chunks(encode, params, inputs, chunk_size=chunk_size))

    hidden, scores = n * width * 4, n * n * 4
    # A few copies of one chunk's hidden layer, beside the scores of all pairs: not the whole layer.
    assert temporary_bytes(cached, params, inputs) < 4 * (hidden * chunk_size / n + scores)
    assert 4 * (hidden * chunk_size / n + scores) < 2 * hidden


@pytest.fixture(scope="module")
def sharded():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    return lambda *arrays: jax.device_put(arrays, NamedSharding(mesh, PartitionSpec("data")))


@pytest.mark.parametrize(
    "function",
    [
        lambda queries, documents: info_nce(queries, documents, temperature=TEMPERATURE),
        lambda first, second: nt_xent(first, second[:16], temperature=TEMPERATURE),
        lambda queries, documents: info_nce(
            encode_in_chunks(lambda params, x: params["scale"] * x, {"scale": 2.0}, queries, chunk_size=8),
            documents,
            temperature=TEMPERATURE,
        ),
    ],
    ids=["info_nce", "nt_xent", "chunks"],
)
def test_eight_devices_give_the_loss_and_gradients_of_one(function, sharded):
    random = np.random.default_rng(3)
    arrays = [jnp.asarray(random.normal(size=(n, D)), jnp.float32) for n in (16, 32)]
    weights = jnp.asarray(random.normal(size=16), jnp.float32)
    both = jax.jit(jax.value_and_grad(lambda *x: (function(*x) * weights).sum(), (0, 1)))
    eight = both(*sharded(*arrays))
    assert len(eight[1][0].sharding.device_set) == 8
    assert_close(eight, both(*arrays), rtol=1e-5, atol=1e-5)
