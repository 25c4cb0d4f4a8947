"""Float32 is float32 on accelerators: what every product of the trained models asks the compiler for."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from pbr_jax.index.clusters import nearest_centre
from pbr_jax.losses import info_nce
from pbr_jax.models.bert import BertConfig, bert
from pbr_jax.models.cross_encoder import CrossEncoderConfig, cross_encoder
from pbr_jax.models.dual_encoder import DualEncoderConfig, Tokens, dual_encoder
from pbr_jax.models.set_policy import FUSIONS, SetPolicyConfig, set_policy
from pbr_jax.models.user_transformer import UserTransformerConfig, user_transformer
from pbr_jax.train import retriever

BODY = BertConfig(
    vocab_size=9, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8,
    max_position_embeddings=6,
)  # fmt: skip
IDS, MASK, NUMBERS = np.ones((2, 4), np.int32), np.ones((2, 4), bool), np.ones((2, 3, 4), bool)
VECTORS, STATES = jnp.ones((3, 8)), jnp.ones((2, 3, 4, 8), jnp.float16)
TEXTS, TOWERS = Tokens(IDS, MASK), DualEncoderConfig(tower=BODY, user_width=8)
FULL = (lax.Precision.HIGHEST, lax.Precision.HIGHEST)


def products(jaxpr: Any) -> Iterator[Any]:
    """The precision of every product, in loops too."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield equation.params["precision"]
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from products(inner)


def case(model: Any, *arguments: Any, **named: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return partial(model.apply, **named), (jax.eval_shape(model.init, jax.random.key(0)), *arguments)


CASES = {
    "bert": case(bert(BODY), IDS, segments=IDS),
    "dual encoder": case(
        dual_encoder(TOWERS),
        queries=TEXTS, documents=TEXTS, users=VECTORS[:2],
    ),
    "cross-encoder": case(
        cross_encoder(CrossEncoderConfig(body=BODY, user_width=8)), IDS, VECTORS[:2], mask=MASK
    ),
    "user transformer": case(
        user_transformer(UserTransformerConfig(width=8, max_documents=3)), STATES[:, :, 0], NUMBERS[..., 0]
    ),
    **{
        f"set policy, {fusion}": case(
            set_policy(SetPolicyConfig(width=8, num_heads=2, num_layers=1, fusion=fusion)),
            STATES[:, 0], STATES, query_mask=MASK, token_mask=NUMBERS, record_mask=NUMBERS[..., 0],
        )
        for fusion in FUSIONS
    },
    "retriever": (
        jax.grad(lambda params, batch: retriever._scores(TOWERS, 0.1)(params, batch, None).sum()),
        (
            jax.eval_shape(dual_encoder(TOWERS).init, jax.random.key(0)),
            {
                "query_ids": IDS, "query_mask": MASK, "document_ids": NUMBERS.astype(np.int32),
                "document_mask": NUMBERS, "users": VECTORS[:2],
            },
        ),
    ),
    "InfoNCE": (jax.grad(lambda x, y: info_nce(x, y, temperature=0.1).sum()), (VECTORS, VECTORS)),
    "centres": (partial(nearest_centre, k=2), (VECTORS, NUMBERS[0, :, 0], VECTORS[0])),
}  # fmt: skip


@pytest.mark.parametrize(("function", "arguments"), CASES.values(), ids=CASES)
def test_every_product_of_float32_is_asked_for_in_full(function, arguments):
    with jax.default_matmul_precision("default"):  # which an accelerator takes for TF32 or bfloat16
        found = list(products(jax.make_jaxpr(function)(*arguments).jaxpr))
    assert found
    assert [each for each in found if each not in (FULL, lax.Precision.HIGHEST)] == []


@pytest.mark.parametrize(
    "name", ["bert", "dual encoder", "user transformer", *(n for n in CASES if "policy" in n)]
)
def test_products_of_bfloat16_are_asked_for_as_ever(name):
    """Where full precision is asked for, compilers leave out ways to compute that narrow products have."""
    function, (params, *arguments) = CASES[name]
    narrow = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.bfloat16), params)
    with jax.default_matmul_precision("default"):
        found = list(products(jax.make_jaxpr(function)(narrow, *arguments).jaxpr))
    assert found
    assert FULL not in found
