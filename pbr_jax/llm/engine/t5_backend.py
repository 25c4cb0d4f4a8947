"""T5 in this process: batched generation, beam search, scoring.

Prompts are sorted by length and cut into batches; a batch is padded on the right to a bucket, so that few
shapes are compiled. One call encodes a batch, computes what the decoder reads of it once, and decodes all
rows together until each has stopped, or scores given targets.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt

from pbr_jax.base import terminal
from pbr_jax.base.prefetch import fetched
from pbr_jax.base.types import Params
from pbr_jax.llm.engine.batching import bucket
from pbr_jax.llm.engine.beam_search import beam_search
from pbr_jax.llm.engine.local import AnswerBatches, Ids, LocalModel, Request, answer_each, draw, replicas
from pbr_jax.llm.engine.prefill import padded
from pbr_jax.llm.engine.sampling import Choice, SamplingArrays, arrays, choose
from pbr_jax.llm.engine.workers import shared_out
from pbr_jax.llm.protocol import Progress, Prompts, Sampling, Score
from pbr_jax.losses.language_model import token_cross_entropy
from pbr_jax.models import adapter_file, t5
from pbr_jax.models.sharding import copied

_SCORED_TOGETHER = 512  # target positions whose logits exist at once


class _Replica(NamedTuple):
    model: t5.T5
    params: Params


class T5LLM(LocalModel):
    """A T5 or FLAN-T5 model; see `protocol.LLM` for the methods.

    The encoder reads the prompt, the decoder writes the answer. `context`: longest prompt, and longest
    answer, in tokens. It may be more than the model says: T5 knows distances between tokens, not positions.
    """

    version = "t5 3"
    separate = True

    @functools.cached_property
    def _replicas(self) -> list[_Replica]:
        """The copies of the model, which work side by side."""
        terminal.doing(f"loading {self._path.name}", slow=True)
        meshes = replicas(self._devices)
        model, params, config = t5.load(self._path, self._dtype, meshes[0] if meshes else None)
        if self._adapter is not None:
            params = adapter_file.tuned(self._adapter, t5.modules(config), params)
        self._check_unchanged()
        copies = [copied(params, mesh) for mesh in meshes] or [params]
        return [_Replica(model, weights) for weights in copies]

    @property
    def vocabulary(self) -> int:
        return t5.read_config(self._path).vocab_size

    @functools.cached_property
    def context(self) -> int:
        return self._wanted_context or t5.read_config(self._path).context

    def generate(self, prompts: Prompts, sampling: Sampling, **progress: Unpack[Progress]) -> list[str]:
        """One answer for each prompt. Equal prompts are computed once, unless they are sampled."""
        requests, errors = self._requests(prompts, sampling)
        choice, drawing = arrays(self._codec.stops, sampling)

        def decode(replica: _Replica, rows: Sequence[tuple[Ids, int]]) -> Array:
            names = np.array([draw(*row) for row in rows], np.uint32)
            inputs = replica.params, *_pad([row for row, _ in rows], 32), names, drawing
            new, num_beams = sampling.max_new_tokens, sampling.num_beams
            return generate(*inputs, model=replica.model, choice=choice, new=new, num_beams=num_beams)

        def compute(rows: list[tuple[Ids, int]], wanted: list[bool]) -> AnswerBatches[str]:
            for batch, tokens in self._by_length(rows, wanted, lambda row: (-len(row[0]),), decode):
                yield [(place, self._text(row, sampling.stop)) for place, row in zip(batch, tokens.tolist())]

        return answer_each(requests, errors, compute, progress)

    def score(self, prompts: Prompts, targets: Sequence[str], **progress: Unpack[Progress]) -> list[Score]:
        """log p(target | prompt), teacher-forced, without the end token. Equal pairs are computed once."""
        pairs, errors = self._pairs(prompts, targets)

        def force(replica: _Replica, rows: Sequence[tuple[Ids, Ids]]) -> Array:
            first, second = ([row[i] for row in rows] for i in (0, 1))
            return score(replica.params, *_pad(first, 32), *_pad(second, 8), model=replica.model)

        def compute(rows: list[tuple[Ids, Ids]], wanted: list[bool]) -> AnswerBatches[Score]:
            batches = self._by_length(rows, wanted, lambda row: (-len(row[0]), -len(row[1])), force)
            for batch, totals in batches:
                self._check_numbers(np.isfinite(totals).all())
                yield [(at, Score(total, len(rows[at][1]))) for at, total in zip(batch, totals.tolist())]

        empty = {place: Score(0.0, 0) for place, (_, second) in enumerate(pairs) if not second}
        progress["done"] = empty | dict(progress.get("done") or {})
        return answer_each(pairs, errors, compute, progress)

    def _by_length(
        self,
        rows: Sequence[Request],
        wanted: Sequence[bool],
        order: Callable[[Request], tuple[int, ...]],
        compute: Callable[[_Replica, Sequence[Request]], Array],
    ) -> Iterator[tuple[list[int], np.ndarray]]:
        """Batches of rows of like length, the longest first (so memory runs out early). A batch depends
        on all rows and not on which are wanted, so resuming changes no shape and no rounding. Batches
        without a wanted row are left out. Yields a batch's rows, and what was computed of them first."""
        by_length = sorted(range(len(rows)), key=lambda place: order(rows[place]))
        starts = range(0, len(by_length), self._batch_size)
        batches = [by_length[start : start + self._batch_size] for start in starts]

        def start(replica: _Replica, batch: list[int]) -> tuple[list[int], Array]:
            # Few numbers of rows are compiled: the last row is repeated up to a power of two.
            count = min(1 << (len(batch) - 1).bit_length(), self._batch_size)
            filled = batch + batch[-1:] * (count - len(batch))
            return batch, compute(replica, [rows[i] for i in filled])

        def work(replica: _Replica, taken: Iterator[list[int]]) -> Iterator[tuple[list[int], np.ndarray]]:
            return fetched(start(replica, batch) for batch in taken)

        left = [batch for batch in batches if any(wanted[place] for place in batch)]
        return shared_out(left, work, self._replicas)


def _pad(rows: Sequence[Ids], floor: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids [rows width] padded on the right with 0 to a bucket, and the mask of real ones."""
    ids, positions = padded(rows, [0] * len(rows), len(rows), bucket, floor)
    return ids, positions >= 0


class _State(NamedTuple):
    """The sampling loop: `tokens[:, :step]` are chosen; `logits` are those of the next."""

    step: Int[Array, ""]
    tokens: Int[Array, "b n"]
    finished: Bool[Array, "b"]
    logits: Float[Array, "b v"]
    past: t5.Past


@functools.partial(jax.jit, static_argnames=("model", "new", "choice", "num_beams"))
def generate(
    params: Params,
    ids: Int[Array, "b s"],
    mask: Bool[Array, "b s"],
    names: UInt[Array, "b"],
    sampling: SamplingArrays,
    *,
    model: t5.T5,
    new: int,
    choice: Choice,
    num_beams: int,
) -> Int[Array, "b n"]:
    """Encodes the prompts, then decodes until every row has stopped or has n tokens."""
    n, rows, start = new, ids.shape[0], model.config.start_id
    fixed = params, model.cross(params, model.encode(params, ids, mask), mask)
    read = functools.partial(read_token, model=model)
    first, past = read(fixed, slots(fixed[1], n), jnp.full(rows, start, jnp.int32))
    if num_beams > 1:
        return beam_search(
            fixed, past, first, sampling.stops, step=read, reorder=reorder, num_beams=num_beams,
            max_new_tokens=n,
        ).tokens  # fmt: skip

    def add(state: _State) -> _State:
        chosen = choose(state.logits, jnp.full(rows, state.step), names, sampling, choice)
        tokens = jax.lax.dynamic_update_slice_in_dim(state.tokens, chosen[:, None], state.step, axis=1)
        return state._replace(
            step=state.step + 1, tokens=tokens, finished=state.finished | jnp.isin(chosen, sampling.stops)
        )

    def body(state: _State) -> _State:
        last = jax.lax.dynamic_index_in_dim(state.tokens, state.step - 1, axis=1, keepdims=False)
        logits, past = read(fixed, state.past, last)
        return add(state._replace(logits=logits, past=past))

    tokens = jnp.zeros((rows, n), jnp.int32)
    state = add(_State(jnp.int32(0), tokens, jnp.zeros(rows, bool), first, past))
    state = jax.lax.while_loop(lambda s: (s.step < n) & ~s.finished.all(), body, state)
    # Beyond the last step nothing was chosen; rows that are finished hold a stop token before that.
    return state.tokens


def slots(cross: t5.Cross, n: int) -> t5.Past:
    """An empty past with room for n tokens of every row."""
    empty = jnp.zeros((*cross.keys.shape[:3], n, cross.keys.shape[4]), cross.keys.dtype)
    return t5.Past(empty, empty, jnp.int32(0))


def read_token(
    fixed: tuple[Params, t5.Cross], past: t5.Past, tokens: Int[Array, "r"], *, model: t5.T5
) -> tuple[Float[Array, "r v"], t5.Past]:
    """One token read in every row, its keys and values written into the next slot: a `beam_search.Step`."""
    params, cross = fixed
    output = model.decode(params, tokens[:, None], cross, past)
    place = (0, 0, 0, past.length, 0)
    keys = jax.lax.dynamic_update_slice(past.keys, output.keys, place)
    values = jax.lax.dynamic_update_slice(past.values, output.values, place)
    return t5.logits(params, output.hidden[:, 0]), t5.Past(keys, values, past.length + 1)


def reorder(past: t5.Past, index: Int[Array, "r"]) -> t5.Past:
    return t5.Past(past.keys[:, index], past.values[:, index], past.length)


@functools.partial(jax.jit, static_argnames="model")
def score(
    params: Params,
    ids: Int[Array, "b s"],
    mask: Bool[Array, "b s"],
    targets: Int[Array, "b t"],
    where: Bool[Array, "b t"],
    *,
    model: t5.T5,
) -> Float[Array, "b"]:
    """Sum of log-probabilities of each row's targets; the vocabulary is multiplied out block by block."""
    hidden = model.apply(params, ids, mask, t5.shift_right(targets, where, model.config.start_id))

    def loss(position: tuple[Array, Array, Array]) -> Array:
        state, target, counts = position
        return token_cross_entropy(t5.logits(params, state), target, where=counts)

    flat = hidden.reshape(-1, hidden.shape[-1]), targets.ravel(), where.ravel()
    losses = jax.lax.map(loss, flat, batch_size=_SCORED_TOGETHER)
    return -losses.reshape(targets.shape).sum(axis=1)
