"""Beam search against Hugging Face's generate with random models of both kinds, and against closed forms."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pbr_jax.llm.engine import t5_backend
from pbr_jax.llm.engine.beam_search import beam_search
from pbr_jax.models import t5

torch: Any = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")

VOCABULARY, STOPS, N = 40, (1, 7, 11), 9
LENGTHS = (5, 3, 8, 1)
SEEDS = range(5)


def save(model, folder, seed):
    """Random weights, large enough that beams differ from the greedy text; stops are likely."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(std=0.35)
            if "norm" in name:
                parameter.add_(1.0)
    model.eval().save_pretrained(folder)
    return model


def prompts(seed):
    random = np.random.default_rng(seed)
    ids, mask = np.zeros((len(LENGTHS), max(LENGTHS)), np.int32), np.zeros((len(LENGTHS), max(LENGTHS)), bool)
    for row, length in enumerate(LENGTHS):
        ids[row, :length] = random.integers(12, VOCABULARY, length)
        mask[row, :length] = True
    return ids, mask


def cut(row):
    """A row up to its first stop token, that included."""
    ends = [place for place, token in enumerate(row) if token in STOPS]
    return list(row[: ends[0] + 1] if ends else row)


def reference_texts(reference, seed, num_beams, n=N):
    """Hugging Face's tokens and scores. It wants a decoder-only model's prompts at the right end."""
    ids, mask = prompts(seed)
    start: dict[str, Any] = {"decoder_start_token_id": 0} if reference.config.is_encoder_decoder else {}
    if not start:
        order = np.argsort(mask, axis=1, kind="stable")
        ids, mask = np.take_along_axis(ids, order, 1), np.take_along_axis(mask, order, 1)
    output = reference.generate(
        torch.tensor(ids.astype(np.int64)), attention_mask=torch.tensor(mask.astype(np.int64)),
        num_beams=num_beams, max_new_tokens=n, do_sample=False, eos_token_id=list(STOPS), pad_token_id=0,
        length_penalty=1.0, early_stopping=False, return_dict_in_generate=True, output_scores=True, **start,
    )  # fmt: skip
    first = 1 if start else ids.shape[1]
    return [cut(row) for row in output.sequences[:, first:].tolist()], output.sequences_scores.tolist()


def assert_equal(found, texts, scores):
    assert [cut(row) for row in np.asarray(found.tokens).tolist()] == texts
    np.testing.assert_allclose(found.scores, scores, atol=1e-4)


# -- Encoder-decoder -----------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnames=("model", "num_beams", "n"))
def search_t5(params, ids, mask, *, model, num_beams, n):
    fixed = params, model.cross(params, model.encode(params, ids, mask), mask)
    step = functools.partial(t5_backend.read_token, model=model)
    first, past = step(fixed, t5_backend.slots(fixed[1], n), jnp.zeros(len(ids), jnp.int32))
    return beam_search(
        fixed, past, first, jnp.array(STOPS), step=step, reorder=t5_backend.reorder, num_beams=num_beams,
        max_new_tokens=n,
    )  # fmt: skip


@pytest.fixture(scope="module")
def encoder_decoder(tmp_path_factory):
    sizes = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=40, num_layers=2, num_heads=4,
        relative_attention_num_buckets=8, relative_attention_max_distance=12,
        feed_forward_proj="gated-gelu", tie_word_embeddings=False,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("t5")
    torch.manual_seed(0)
    reference = transformers.T5ForConditionalGeneration(sizes)
    reference.lm_head.weight = torch.nn.Parameter(torch.empty_like(reference.lm_head.weight))
    save(reference, folder, 0)
    return reference, t5.load(folder)[0], folder


@pytest.mark.long
@pytest.mark.parametrize("num_beams", [2, 3, 4])
def test_an_encoder_decoder_finds_what_hugging_face_finds(encoder_decoder, num_beams):
    reference, model, folder = encoder_decoder
    lengths = set()
    for seed in SEEDS:
        params = t5.load(save(reference, folder, seed) and folder)[1]
        texts, scores = reference_texts(reference, seed, num_beams)
        found = search_t5(params, *prompts(seed), model=model, num_beams=num_beams, n=N)
        assert_equal(found, texts, scores)
        lengths |= set(map(len, texts))
    assert min(lengths) < 4  # some stop early, some never
    assert max(lengths) == N


@pytest.mark.long
@pytest.mark.parametrize("n", [1, 2, 17])
def test_any_number_of_tokens_agrees(encoder_decoder, n):
    reference, model, folder = encoder_decoder
    params = t5.load(save(reference, folder, 3) and folder)[1]
    found = search_t5(params, *prompts(3), model=model, num_beams=3, n=n)
    assert_equal(found, *reference_texts(reference, 3, 3, n))


# -- Closed forms --------------------------------------------------------------------------------


def chain_step(table, state, tokens):
    """A Markov chain: the next token depends on the last alone."""
    return table[tokens], state


def search_chain(rows, first, *, num_beams, n, stops=(-1,)):
    """`rows`: probabilities after each token; tokens without a row are followed by anything alike."""
    v = len(first)
    table = np.full((v, v), 1 / v)
    for token, row in rows.items():
        table[token] = row
    with np.errstate(divide="ignore"):
        logs = jnp.maximum(jnp.log(jnp.float32(table)), -50.0)
        start = jnp.maximum(jnp.log(jnp.float32(first))[None], -50.0)
    return beam_search(
        logs, (), start, jnp.array(stops), step=chain_step, reorder=lambda state, index: state,
        num_beams=num_beams, max_new_tokens=n,
    )  # fmt: skip


def test_two_beams_find_the_text_that_a_greedy_choice_misses():
    first = [0, 0.6, 0.4, 0, 0, 0]
    rows = {1: [0.3, 0, 0, 0.3, 0.4, 0], 2: [0, 0, 0, 0, 0, 1.0]}
    found = search_chain(rows, first, num_beams=2, n=2)
    assert found.tokens.tolist() == [[2, 5]]  # 0.4 * 1, not 0.6 * 0.4
    np.testing.assert_allclose(found.scores, [np.log(0.4) / 2], rtol=1e-5)


def test_scores_are_per_token_with_the_stop_token_counted():
    """Stopping at once has 0.5; going on has 0.4 * 0.9 * 0.9, less, but more per token."""
    first = [0.5, 0.4, 0.1, 0, 0, 0]
    rows = {1: [0, 0, 0, 0.9, 0.1, 0], 3: [0.9, 0, 0, 0, 0.1, 0]}
    found = search_chain(rows, first, num_beams=2, n=3, stops=(0,))
    assert found.tokens.tolist() == [[1, 3, 0]]
    np.testing.assert_allclose(found.scores, [np.log(0.4 * 0.9 * 0.9) / 3], rtol=1e-5)


def test_any_of_several_stop_tokens_ends_a_text():
    first = [0, 0.1, 0.9, 0, 0, 0, 0, 0]
    rows = {2: [0, 0.1, 0, 0, 0, 0.9, 0, 0], 5: [0, 0, 0, 0.5, 0.5, 0, 0, 0]}
    found = search_chain(rows, first, num_beams=2, n=4, stops=(0, 5))
    assert found.tokens[0, :2].tolist() == [2, 5]
    np.testing.assert_allclose(found.scores, [np.log(0.9 * 0.9) / 2], rtol=1e-5)
