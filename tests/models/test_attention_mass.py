"""The attention that tokens get, against the attention maps that torch's models return."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from test_causal_lm import BASE, CASES, causal_lm, save, tokens

from pbr_jax.models.causal_lm import Past

torch: Any = pytest.importorskip("torch")


def told(reference: Any, ids: np.ndarray, watched: np.ndarray) -> np.ndarray:
    """[b t]: summed over layers, heads and watched tokens."""
    with torch.no_grad():
        maps = reference(torch.tensor(ids.astype(np.int64)), output_attentions=True).attentions
    return np.einsum("lbhqk,bq->bk", np.stack([one.numpy() for one in maps]), watched)


@pytest.mark.parametrize("case", ["grouped_tied", "qwen3", "mistral", "phi3_long", "gemma2", "gemma3"])
def test_the_mass_equals_torchs_attention(case: str, tmp_path: Path):
    reference = save(CASES[case], tmp_path)
    model, params, _ = causal_lm.load(tmp_path)
    ids = tokens(2, 75)  # more than one block of queries
    watched = np.random.default_rng(1).random(ids.shape).astype(np.float32)
    positions = jnp.broadcast_to(jnp.arange(75), ids.shape)
    (found,) = model.apply(params, jnp.asarray(ids), positions, watched=jnp.asarray(watched)).mass
    wanted = told(reference, ids, watched)
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    # A query's attention adds up to one in every head of every layer.
    heads = BASE["num_hidden_layers"] * BASE["num_attention_heads"] * (1.5 if case == "gemma3" else 1)
    np.testing.assert_allclose(np.asarray(found).sum(1), heads * watched.sum(1), rtol=1e-5)


@pytest.mark.long
def test_what_was_read_before_gets_its_mass_too_shared_or_not(tmp_path: Path):
    reference = save(CASES["grouped_tied"], tmp_path)
    model, params, _ = causal_lm.load(tmp_path)
    ids = tokens(2, 30)
    ids[1, :8] = ids[0, :8]
    watched = np.zeros(ids.shape, np.float32)
    watched[:, 24:] = 1 / 6
    wanted = told(reference, ids, watched)
    ids, places = jnp.asarray(ids), jnp.broadcast_to(jnp.arange(30), ids.shape)
    first = model.apply(params, ids[:1, :8], places[:1, :8])
    shared = Past(first.keys[:, 0], first.values[:, 0], jnp.arange(8))
    both = Past(jnp.repeat(first.keys, 2, axis=1), jnp.repeat(first.values, 2, axis=1), places[:, :8])
    second = model.apply(params, ids[:, 8:20], places[:, 8:20], both)
    own = Past(second.keys, second.values, places[:, 8:20])
    late, early, middle = model.apply(
        params, ids[:, 20:], places[:, 20:], (shared, own), watched=jnp.asarray(watched[:, 20:])
    ).mass
    found = np.concatenate([early, middle, late], axis=1)
    np.testing.assert_allclose(found, wanted, atol=1e-4)
