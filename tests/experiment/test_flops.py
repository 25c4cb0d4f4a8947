"""Operations, against what XLA counts in compiled forward passes of models that are mostly products."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pbr_jax.experiment import flops
from pbr_jax.models import bert, causal_lm, t5
from pbr_jax.models.causal_lm_config import CausalLMConfig
from pbr_jax.models.rope import Rope
from pbr_jax.models.t5_config import T5Config

# Layers are scanned, and XLA counts the body of a loop once: so one layer. Norms, softmax and activations,
# which are not counted, are the difference.
CLOSE = 0.04


def lengths(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def compiled(function: Any, *arguments: Any) -> float:
    """Operations of the compiled program."""
    cost: Any = jax.jit(function).lower(*arguments).compile().cost_analysis()
    return (cost[0] if isinstance(cost, list) else cost)["flops"]


@pytest.mark.parametrize(("heads", "keys", "tied"), [(4, 4, True), (8, 2, False)])
def test_a_decoder_only_model(heads: int, keys: int, tied: bool):
    config = CausalLMConfig(
        vocab_size=700, width=256, mlp_width=600, num_layers=1, num_heads=heads, num_kv_heads=keys,
        head_width=64, context=512, rope=Rope(width=64, theta=1e4), tied=tied,
    )  # fmt: skip
    model, cost = causal_lm.causal_lm(config), flops.causal_lm(config)
    params = model.init(jax.random.key(0))
    ids = jnp.zeros((3, 60), jnp.int32)
    places = jnp.broadcast_to(jnp.arange(60), ids.shape)

    def forward(params: Any) -> Any:
        return causal_lm.logits(params, model.apply(params, ids, places).hidden[:, 40:])

    wanted = compiled(forward, params)
    assert cost.scored(lengths(40), lengths(20))[0] * 3 == pytest.approx(wanted, rel=CLOSE)


def test_a_long_text_attends_to_what_stands_before_its_blocks():
    """Up to 128 tokens one block, to all; of eight blocks the first attends to an eighth. Beyond 1,024 tokens
    blocks of 512."""
    pairs = flops._seen(lengths(0, 128, 256, 512, 1024))
    blocks = [sum(128 * 128 * (i + 1) for i in range(n)) for n in (1, 2, 4, 8)]
    assert pairs.tolist() == [0, *blocks]
    assert flops._seen(lengths(4096)).tolist() == [sum(512 * 512 * (i + 1) for i in range(8))]


def test_an_answer_is_written_token_by_token():
    config = CausalLMConfig(
        vocab_size=50, width=16, mlp_width=24, num_layers=3, num_heads=2, num_kv_heads=1, head_width=8,
        context=64, rope=Rope(width=8, theta=1e4),
    )  # fmt: skip
    cost = flops.causal_lm(config)
    one_by_one = sum(cost.write + cost.head + cost.attention * (30 + i + 0.5) for i in range(7))
    assert cost.decoded(lengths(30), lengths(7))[0] == pytest.approx(one_by_one)
    assert cost.decoded(lengths(30, 5), lengths(0, 0)).tolist() == [0, 0]


@pytest.mark.parametrize("gated", [False, True])
def test_an_encoder_decoder(gated: bool):
    config = T5Config(
        vocab_size=700, width=256, head_width=64, mlp_width=600, num_layers=1, num_decoder_layers=1,
        num_heads=4, num_kv_heads=4, gated=gated,
    )  # fmt: skip
    cost = flops.t5(config)
    params = jax.eval_shape(t5.t5(config).init, jax.random.key(0))
    total = sum(x.size for x in jax.tree.leaves(params)) - params["embedding"].size
    layer = 4 * 256 * 256 + (3 if gated else 2) * 256 * 600
    assert cost.head == 2 * 700 * 256
    assert cost.read == 2 * (layer + 2 * 256 * 256)
    assert cost.write == 2 * (layer + 2 * 256 * 256)
    assert (cost.read + cost.write) / 2 == pytest.approx(total, rel=0.01)


@pytest.mark.parametrize("tokens", [16, 64])
def test_a_text_encoder(tokens: int):
    config = bert.BertConfig(
        vocab_size=50, hidden_size=256, num_hidden_layers=1, num_attention_heads=4, intermediate_size=900,
        max_position_embeddings=64,
    )  # fmt: skip
    model = bert.bert(config)
    params = model.init(jax.random.key(0))
    ids = jnp.zeros((2, tokens), jnp.int32)
    wanted = compiled(lambda params: model.apply(params, ids, segments=ids + 1), params)
    assert flops.bert(config, lengths(tokens, tokens)).sum() == pytest.approx(wanted, rel=CLOSE)
