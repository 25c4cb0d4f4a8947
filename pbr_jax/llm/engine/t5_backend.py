"""T5 in this process: batched generation, beam search, scoring.

Prompts are sorted by length and cut into batches; a batch is padded on the right to a bucket, so that few
shapes are compiled.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Unpack

import numpy as np
from jaxtyping import Array

from pbr_jax.base import terminal
from pbr_jax.base.prefetch import fetched
from pbr_jax.base.types import Params
from pbr_jax.llm.engine import t5_decoding
from pbr_jax.llm.engine.batching import bucket
from pbr_jax.llm.engine.local import AnswerBatches, Ids, LocalModel, Request, answer_each, draw, replicas
from pbr_jax.llm.engine.sampling import arrays
from pbr_jax.llm.engine.workers import shared_out
from pbr_jax.llm.protocol import Progress, Prompt, Sampling, Score
from pbr_jax.models import adapter_file, t5
from pbr_jax.models.sharding import copied


class _Replica(NamedTuple):
    model: t5.T5
    params: Params
    start: int  # the token that answers begin with


class T5LLM(LocalModel):
    """A T5 or FLAN-T5 model; see `protocol.LLM` for the methods.

    The encoder reads the prompt, the decoder writes the answer. `context`: longest prompt, and longest
    answer, in tokens. It may be more than the model says: T5 knows distances between tokens, not positions.
    """

    version = "t5 2"
    separate = True

    @functools.cached_property
    def _replicas(self) -> list[_Replica]:
        """The copies of the model, which work side by side."""
        terminal.doing(f"loading {self._path.name}", slow=True)
        meshes = replicas(self._devices)
        model, params, config = t5.load(self._path, self._dtype, meshes[0] if meshes else None)
        if self._adapter is not None:
            params = adapter_file.tuned(self._adapter, t5.modules(config), params, outputs_first=False)
        self._check_unchanged()
        copies = [copied(params, mesh) for mesh in meshes] or [params]
        return [_Replica(model, weights, config.start_id) for weights in copies]

    @property
    def vocabulary(self) -> int:
        return t5.read_config(self._path).vocab_size

    @functools.cached_property
    def context(self) -> int:
        return self._wanted_context or t5.read_config(self._path).context

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, **progress: Unpack[Progress]
    ) -> list[str]:
        """One answer for each prompt. Equal prompts are computed once, unless they are sampled."""
        requests, errors = self._requests(prompts, sampling)
        choice, drawing = arrays(self._codec.stops, sampling)

        def decode(replica: _Replica, rows: Sequence[tuple[Ids, int]]) -> Array:
            model, params, start = replica
            ids, mask = _pad([row for row, _ in rows], 32)
            names = np.array([draw(*row) for row in rows], np.uint32)
            return t5_decoding.generate(
                params, ids, mask, names, drawing, model=model, start=start, choice=choice,
                new=sampling.max_new_tokens, num_beams=sampling.num_beams,
            )  # fmt: skip

        def compute(rows: list[tuple[Ids, int]], wanted: list[bool]) -> AnswerBatches[str]:
            for batch, tokens in self._by_length(rows, wanted, lambda row: (-len(row[0]),), decode):
                yield [(place, self._text(row, sampling.stop)) for place, row in zip(batch, tokens.tolist())]

        return answer_each(requests, errors, compute, progress)

    def score(
        self, prompts: Sequence[Prompt], targets: Sequence[str], **progress: Unpack[Progress]
    ) -> list[Score]:
        """log p(target | prompt), teacher-forced, without the end token. Equal pairs are computed once."""
        pairs, errors = self._pairs(prompts, targets)

        def force(replica: _Replica, rows: Sequence[tuple[Ids, Ids]]) -> Array:
            model, params, start = replica
            ids, mask = _pad([first for first, _ in rows], 32)
            target_ids, where = _pad([second for _, second in rows], 8)
            return t5_decoding.score(params, ids, mask, target_ids, where, model=model, start=start)

        def compute(rows: list[tuple[Ids, Ids]], wanted: list[bool]) -> AnswerBatches[Score]:
            def order(row: tuple[Ids, Ids]) -> tuple[int, int]:
                return -len(row[0]), -len(row[1])

            for batch, totals in self._by_length(rows, wanted, order, force):
                self._check_numbers(np.isfinite(totals).all())
                yield [
                    (place, Score(total, len(rows[place][1]))) for place, total in zip(batch, totals.tolist())
                ]

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

        asked = [batch for batch in batches if any(wanted[place] for place in batch)]
        return shared_out(asked, work, self._replicas)


def _pad(rows: Sequence[Ids], floor: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids [rows width] padded on the right with 0 to a bucket, and the mask of real ones."""
    width = bucket(max(map(len, rows)), floor)
    ids, mask = np.zeros((len(rows), width), np.int32), np.zeros((len(rows), width), bool)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = row
        mask[place, : len(row)] = True
    return ids, mask
