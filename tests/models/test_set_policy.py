"""PURPLE's record encoder against torch modules, and the symmetries that a set must have."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pbr_jax.base.types import UserError
from pbr_jax.models.set_policy import FUSIONS, Fusion, SetPolicyConfig, log_scores, set_policy

SIZES: dict[str, Any] = dict(width=8, num_heads=2, mlp_width=12, decoder_width=6)
B, N, T, S, D = 2, 4, 3, 5, 8
RNG = np.random.default_rng(0)
QUERY, RECORDS = (RNG.normal(size=s).astype(np.float32) for s in ((B, S, D), (B, N, T, D)))
QUERY_MASK = np.arange(S) < np.array([[5], [2]])
RECORD_MASK = np.arange(N) < np.array([[4], [3]])
TOKEN_MASK = np.arange(T) < np.array([[3, 1, 2, 3], [2, 3, 1, 0]])[..., None]
MASKS = dict(query_mask=QUERY_MASK, token_mask=TOKEN_MASK, record_mask=RECORD_MASK)
DIRECTION = RNG.normal(size=(B, N)).astype(np.float32)
NUM_LAYERS: dict[Fusion, int] = {
    "cross_attention": 2, "residual_attention": 1, "match": 1, "concat_token": 1, "concat_hidden": 1,
}  # fmt: skip

ATTENTION = ("cross_attention", "residual_attention", "match")


class Case:
    """A policy with random parameters, and one compiled program for its logits and gradients."""

    def __init__(self, fusion: Fusion, random_params: Callable[..., dict]):
        config = SetPolicyConfig(fusion=fusion, num_layers=NUM_LAYERS[fusion], **SIZES)
        self.model = set_policy(config)
        self.params = random_params(self.model)
        self.gradients = jax.jit(jax.grad(self.objective, argnums=(0, 1, 2), has_aux=True))

    def objective(self, params: dict, query: Any, records: Any, masks: dict) -> tuple[jax.Array, jax.Array]:
        logits = self.model.apply(params, query, records, **masks)
        scores = log_scores(logits, masks["record_mask"])
        return (jnp.where(masks["record_mask"], scores, 0) * DIRECTION).sum(), logits

    def logits(self, query: np.ndarray = QUERY, records: np.ndarray = RECORDS, **masks: Any) -> np.ndarray:
        return np.asarray(self.gradients(self.params, query, records, MASKS | masks)[1])


@pytest.fixture(scope="module")
def cases(random_params) -> dict[Fusion, Case]:
    return {fusion: Case(fusion, random_params) for fusion in FUSIONS}


class Oracle(torch.nn.Module):
    """Section 3.2 in torch's modules, one query and one record at a time where torch needs it."""

    def __init__(self, fusion: Fusion, num_layers: int):
        super().__init__()
        self.fusion = fusion
        if fusion in ATTENTION:
            self.attention = torch.nn.MultiheadAttention(D, 2, batch_first=True)
            self.match = torch.nn.Linear(2 * D, D)
        elif fusion == "concat_hidden":
            self.linear = torch.nn.Linear(2 * D, D)
        self.norm = torch.nn.LayerNorm(D)
        layer = torch.nn.TransformerEncoderLayer(D, 2, dim_feedforward=12, batch_first=True)
        self.transformer = torch.nn.TransformerEncoder(layer, num_layers) if num_layers else None
        self.decoder = torch.nn.Sequential(torch.nn.Linear(D, 6), torch.nn.ReLU(), torch.nn.Linear(6, 1))

    def fuse(self, query: torch.Tensor, record: torch.Tensor) -> torch.Tensor:
        if self.fusion in ATTENTION:
            seen = self.attention(record[None], query[None], query[None])[0][0].mean(0)
            if self.fusion == "match":
                q, r = (torch.nn.functional.normalize(x.mean(0), dim=0) for x in (query, record))
                return seen + self.match(torch.cat([D * q * r, D**0.5 * (q - r).abs()]))
            return seen + record.mean(0) if self.fusion == "residual_attention" else seen
        if self.fusion == "concat_hidden":
            return torch.relu(self.linear(torch.cat([query.mean(0), record.mean(0)])))
        return record.mean(0)

    def forward(self, query: torch.Tensor, records: list[torch.Tensor]) -> torch.Tensor:
        fused = [self.fuse(query, record) for record in records]
        fused = [query.mean(0), *fused] if self.fusion == "concat_token" else fused
        states = self.norm(torch.stack(fused))[None]
        states = states if self.transformer is None else self.transformer(states)
        return self.decoder(states[0, -len(records) :])[:, 0]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")
@pytest.mark.parametrize("fusion", FUSIONS)
def test_values_and_gradients_equal_torch(fusion: Fusion, cases, from_torch) -> None:
    """Torch sees no padding: what is masked is dropped there."""
    torch.manual_seed(0)
    oracle = from_torch.spread(Oracle(fusion, NUM_LAYERS[fusion]), seed=3)
    wanted = []
    for b in range(B):
        records = [torch.tensor(RECORDS[b, n][TOKEN_MASK[b, n]]) for n in range(RECORD_MASK[b].sum())]
        wanted.append(oracle(torch.tensor(QUERY[b][QUERY_MASK[b]]), records))
    logits = torch.cat(wanted)
    (torch.nn.functional.logsigmoid(logits) * torch.tensor(DIRECTION[RECORD_MASK])).sum().backward()

    def ours(named: dict) -> dict:
        params = {
            "fusion_norm": from_torch.norm(named, "norm."),
            "decoder": from_torch.linear(named, "decoder.0."),
            "score": from_torch.linear(named, "decoder.2."),
            "layers": from_torch.layers(named, "transformer."),
        }
        if fusion in ATTENTION:
            params["fusion"] = from_torch.attention(named, "attention.")
            params |= {"match": from_torch.linear(named, "match.")} if fusion == "match" else {}
        elif fusion == "concat_hidden":
            params["fusion"] = from_torch.linear(named, "linear.")
        return params

    (gradient, *_), found = cases[fusion].gradients(ours(from_torch.weights(oracle)), QUERY, RECORDS, MASKS)
    np.testing.assert_allclose(found[RECORD_MASK], logits.detach().numpy(), atol=1e-5, rtol=0)
    expected = ours(from_torch.gradients(oracle))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4, rtol=0), gradient, expected)
    assert max(float(np.abs(g).max()) for g in jax.tree.leaves(expected)) > 1e-2


@settings(max_examples=15)
@given(st.sampled_from(FUSIONS), st.permutations(range(N)))
def test_reordering_records_reorders_logits(cases, fusion: Fusion, order: list[int]) -> None:
    case, real = cases[fusion], RECORD_MASK[:, order]
    moved = case.logits(records=RECORDS[:, order], token_mask=TOKEN_MASK[:, order], record_mask=real)
    np.testing.assert_allclose(moved[real], case.logits()[:, order][real], atol=1e-5, rtol=0)
    assert moved[real].std() > 0.01  # or the order could not be told


@pytest.mark.parametrize("fusion", FUSIONS)
def test_what_stands_in_padding_does_not_matter(cases, fusion: Fusion) -> None:
    query, records = (
        np.where(mask[..., None], x, np.float32(50))
        for x, mask in ((QUERY, QUERY_MASK), (RECORDS, TOKEN_MASK & RECORD_MASK[..., None]))
    )
    logits = cases[fusion].logits(query, records)
    np.testing.assert_allclose(logits[RECORD_MASK], cases[fusion].logits()[RECORD_MASK], atol=1e-5, rtol=0)


@pytest.mark.parametrize("fusion", FUSIONS)
def test_no_records_no_tokens_and_one_record_are_finite(cases, fusion: Fusion) -> None:
    masks = dict(
        query_mask=np.array([[False] * S, [True] * S]),
        token_mask=np.zeros((B, N, T), bool),  # the one record of query 1 is an empty text
        record_mask=np.array([[False] * N, [True] + [False] * 3]),
    )
    case = cases[fusion]
    gradients, logits = case.gradients(case.params, QUERY, RECORDS, masks)
    assert np.isfinite(logits).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))


@pytest.mark.parametrize("fusion", FUSIONS)
def test_states_of_half_precision_are_computed_with_in_full(cases, fusion: Fusion) -> None:
    half = QUERY.astype(np.float16), RECORDS.astype(np.float16)
    (narrow, *_), found = cases[fusion].gradients(cases[fusion].params, *half, MASKS)
    (wide, *_), wanted = cases[fusion].gradients(
        cases[fusion].params, *(x.astype(np.float32) for x in half), MASKS
    )
    np.testing.assert_array_equal(found, wanted)
    jax.tree.map(np.testing.assert_array_equal, narrow, wide)


@pytest.mark.parametrize("fusion", FUSIONS)
def test_no_candidates_have_no_logits(cases, fusion: Fusion) -> None:
    none = {"token_mask": TOKEN_MASK[:, :0], "record_mask": RECORD_MASK[:, :0]}
    found = cases[fusion].model.apply(
        cases[fusion].params, QUERY, RECORDS[:, :0], query_mask=QUERY_MASK, **none
    )
    assert found.shape == (B, 0)


def test_records_alone_see_no_others_without_layers(cases, random_params) -> None:
    other = RECORDS.copy()
    other[:, 1:] = -other[:, 1:]
    model = set_policy(SetPolicyConfig(num_layers=0, **SIZES))
    params = random_params(model)
    assert "layers" not in params
    apply = jax.jit(model.apply)
    alone = [np.asarray(apply(params, QUERY, x, **MASKS))[:, 0] for x in (RECORDS, other)]
    np.testing.assert_allclose(alone[0], alone[1], atol=1e-6)
    together = [cases["cross_attention"].logits(records=x)[:, 0] for x in (RECORDS, other)]
    assert np.abs(together[0] - together[1]).max() > 1e-2


def test_dropout_needs_a_key(cases, draws) -> None:
    case = cases["cross_attention"]
    assert draws(case.model.apply, case.params, QUERY, RECORDS, **MASKS)
    without = set_policy(SetPolicyConfig(num_layers=2, dropout=0.0, **SIZES))
    assert not draws(without.apply, case.params, QUERY, RECORDS, **MASKS)


def test_log_scores_are_log_sigmoid_and_minus_infinity_for_padding() -> None:
    logits = jnp.array([-90.0, 0.0, 90.0, 1.0])
    mask = jnp.array([True, True, True, False])
    np.testing.assert_allclose(log_scores(logits, mask), [-90, np.log(0.5), 0, -np.inf], atol=1e-6)
    gradient = jax.grad(lambda x: jnp.exp(log_scores(x, mask)).sum())(logits)
    np.testing.assert_allclose(gradient, [0, 0.25, 0, 0], atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(num_heads=3), "width 8 is not a multiple of num_heads 3"),
        (dict(num_layers=-1), "num_layers is -1"),
        (dict(dropout=-0.1), "dropout is -0.1"),
    ],
)
def test_configs_that_do_not_fit(options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        SetPolicyConfig(**(SIZES | options))
