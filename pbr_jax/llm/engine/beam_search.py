"""Beam search over any model that decodes a token at a time, as one function that compiles.

The model is a pure `step`; its caches are a tree of arrays that `reorder` rearranges when beams change
places.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

Step = Callable[[Any, Any, Int[Array, "r"]], tuple[Float[Array, "r v"], Any]]
"""`step(fixed, state, tokens) -> (logits, state)`: reads one token in each row."""

Reorder = Callable[[Any, Int[Array, "r"]], Any]
"""`reorder(state, index) -> state`: row i of the result is row `index[i]` of the state given."""


class Best(NamedTuple):
    """The best continuation of each prompt: up to a stop token (included), or n tokens. What follows a
    stop token means nothing; -1 where logits were not numbers. `scores` are their log-probabilities per
    token."""

    tokens: Int[Array, "b n"]
    scores: Float[Array, "b"]


class _Beams(NamedTuple):
    """Sequences and scores, best first: sums of log-probabilities while they run, means once they ended."""

    tokens: Int[Array, "b k n"]
    scores: Float[Array, "b k"]


class _Search(NamedTuple):
    length: Int[Array, ""]  # tokens of the running beams
    running: _Beams
    ended: _Beams  # minus infinity where fewer than k have ended
    open: Bool[Array, "b"]  # a running beam may still beat an ended one
    sound: Bool[Array, "b"]  # all logits so far were numbers
    state: Any


@functools.partial(jax.jit, static_argnames=("step", "reorder", "num_beams", "max_new_tokens"))
def beam_search(
    fixed: Any,
    state: Any,
    first: Float[Array, "b v"],
    stops: Int[Array, "m"],
    *,
    step: Step,
    reorder: Reorder,
    num_beams: int,
    max_new_tokens: int,
) -> Best:
    """The most probable continuations, per token, that a search with k = `num_beams` beams finds.

    Of the k best extensions of a prompt's running beams, those that end in a stop token (at the last step,
    all) join the ended ones, of which the k with the best mean log-probability over new tokens are kept; the
    k best that do not stop run on. A prompt is finished when its best running beam has a lower mean than the
    worst of k ended ones. The same as Hugging Face's `generate` with `length_penalty=1.0,
    early_stopping=False`.

    Args:
      fixed: what every step reads and none changes: weights, keys and values of an encoder.
      state: what the model remembers of the prompts, b rows; `reorder` gives each k rows next to each other.
      first: logits of the first new token, after the prompts.
      stops: ids that end a continuation. The vocabulary has at least (m + 1) k tokens.
      step: reads a token in each of b k rows; static, so give the same function every time.
      reorder: as above.
      num_beams: k.
      max_new_tokens: n, the most tokens of a continuation, the stop token included.

    Reference: Sutskever et al., https://arxiv.org/abs/1409.3215, 2014, section 3.2.
    """
    b, k = first.shape[0], num_beams
    advance = functools.partial(_advance, stops=stops, reorder=reorder, num_beams=k)

    def body(search: _Search) -> _Search:
        last = jax.lax.dynamic_index_in_dim(search.running.tokens, search.length - 1, axis=2, keepdims=False)
        rows, state = step(fixed, search.state, last.reshape(b * k))
        return advance(search._replace(state=state), rows.reshape(b, k, -1))

    nothing = jnp.zeros((b, k, max_new_tokens), jnp.int32)
    prompts = _Beams(nothing[:, :1], jnp.zeros((b, 1), jnp.float32))
    ended = _Beams(nothing, jnp.full((b, k), -jnp.inf))
    yes = jnp.ones(b, bool)
    search = advance(_Search(jnp.int32(0), prompts, ended, yes, yes, state), first[:, None])
    search = jax.lax.while_loop(lambda s: (s.length < max_new_tokens) & s.open.any(), body, search)
    tokens = jnp.where(search.sound[:, None], search.ended.tokens[:, 0], -1)
    return Best(tokens, search.ended.scores[:, 0])


def _advance(
    search: _Search,
    logits: Float[Array, "b j v"],
    *,
    stops: Int[Array, "m"],
    reorder: Reorder,
    num_beams: int,
) -> _Search:
    """One token more. The j running beams are one (the prompt itself) at first and k later."""
    (b, j, v), k, length = logits.shape, num_beams, search.length + 1
    totals = search.running.scores[:, :, None] + jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    # Each beam has at most m extensions that stop, so k that do not are among these.
    scores, place = jax.lax.top_k(totals.reshape(b, j * v), (len(stops) + 1) * k)
    parent, token = place // v, (place % v).astype(jnp.int32)
    tokens = jnp.take_along_axis(search.running.tokens, parent[:, :, None], axis=1)
    tokens = jax.lax.dynamic_update_slice_in_dim(tokens, token[:, :, None], search.length, axis=2)
    stopped = jnp.isin(token, stops)

    eligible = (stopped | (length == tokens.shape[2])) & search.open[:, None]
    eligible &= (jnp.arange(scores.shape[1]) < k)[None, :]
    means = jnp.concatenate([search.ended.scores, jnp.where(eligible, scores / length, -jnp.inf)], axis=1)
    ended, _ = _best(_Beams(jnp.concatenate([search.ended.tokens, tokens], axis=1), means), k)

    running, chosen = _best(_Beams(tokens, jnp.where(stopped, -jnp.inf, scores)), k)
    rows = jnp.arange(b)[:, None] * j + jnp.take_along_axis(parent, chosen, axis=1)
    sound = search.sound & ~(search.open & jnp.isnan(logits).any(axis=(1, 2)))
    still = search.open & sound & (running.scores[:, 0] / length > ended.scores[:, -1])
    return _Search(length, running, ended, still, sound, reorder(search.state, rows.reshape(b * k)))


def _best(beams: _Beams, k: int) -> tuple[_Beams, Int[Array, "b k"]]:
    scores, place = jax.lax.top_k(beams.scores, k)
    return _Beams(jnp.take_along_axis(beams.tokens, place[:, :, None], axis=1), scores), place
