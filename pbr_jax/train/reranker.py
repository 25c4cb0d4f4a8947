"""Tuning the cross-encoder on feedback: CFRAG section 4.3."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Array, Float

from pbr_jax.models import cross_encoder
from pbr_jax.models.cross_encoder import CrossEncoder
from pbr_jax.models.pretrained import locate
from pbr_jax.options import Distillation, Training
from pbr_jax.text.padding import multiple
from pbr_jax.text.pairs import pair_arrays
from pbr_jax.text.tokenizing import load_tokenizer
from pbr_jax.train.distillation import Scorer, candidate_rows, distill
from pbr_jax.train.loop import Fitted
from pbr_jax.train.sharding import Batch
from pbr_jax.types import Feedback, Params

_WIDTH = 8  # token widths are multiples of it


@runtime_checkable
class Options(Protocol):
    """What the training is told (`methods.select.tuned`)."""

    @property
    def model(self) -> str: ...
    @property
    def max_length(self) -> int: ...
    @property
    def user_layers(self) -> int: ...
    @property
    def distillation(self) -> Distillation: ...
    @property
    def training(self) -> Training: ...


def train(
    queries: Sequence[str],
    users: np.ndarray | None,
    feedback: Sequence[Feedback],
    texts: Callable[[np.ndarray], list[str]],
    options: Options,
    folder: Path,
    *,
    seed: int,
    owners: Sequence[str] | None = None,
    least: float = 0.0,
) -> Fitted:
    """Tunes the whole encoder and the maps on top of it; arguments as in `train.retriever`.

    The head that a folder's reranker was pretrained with is not used, as in the paper.
    """
    body = locate(options.model)
    tokenizer = load_tokenizer(body, max_length=options.max_length)
    model, start, config = load(options, 0 if users is None else users.shape[1], seed)
    width = max((len(found.rows) for found in feedback), default=1)
    pairs = []
    for query, found in zip(queries, feedback, strict=True):
        pairs.append(tokenizer.encode_pairs([(query, text) for text in texts(found.rows)]))
    tokens = multiple(max((len(ids) for of_query in pairs for ids, _ in of_query), default=1), _WIDTH)
    typed = config.body.type_vocab_size > 1

    def arrays(questions: np.ndarray) -> Batch:
        filled = [pairs[i] + [([0], [0])] * (width - len(pairs[i])) for i in questions.tolist()]
        found = pair_arrays([pair for of_query in filled for pair in of_query], tokens, typed)
        shape = (len(questions), width, tokens)
        batch = {"ids": found.ids.reshape(shape), "mask": found.mask.reshape(shape)}
        if found.types is not None:
            batch["types"] = found.types.reshape(shape)
        return batch if users is None else batch | {"users": users[questions].astype(np.float32)}

    heads = ("score",) if users is None else ("user", "score")  # MLP_3, MLP_2
    scorer = Scorer(lambda: start, arrays, _scores(model), heads)
    return distill(
        scorer,
        feedback,
        options.distillation,
        options.training,
        folder,
        seed=seed,
        owners=owners,
        least=least,
    )


def load(
    options: Options, user_width: int, seed: int
) -> tuple[CrossEncoder, Params, cross_encoder.CrossEncoderConfig]:
    """The cross-encoder to start from, without the head that it may have been pretrained with."""
    model, params, config = cross_encoder.load(
        locate(options.model), jax.random.key(seed), user_width=user_width, user_layers=options.user_layers
    )
    params.pop("head", None)
    return model, params, config


def _scores(model: CrossEncoder):
    def scores(params: Params, batch: dict[str, Array], key: Array | None) -> Float[Array, "b c"]:
        b, c, t = batch["ids"].shape
        users = batch.get("users")
        if users is not None:  # one user a row
            users = users[:, None].repeat(c, axis=1).reshape(b * c, -1)
        types = batch.get("types")
        found = model.apply(
            params,
            batch["ids"].reshape(b * c, t),
            users,
            mask=batch["mask"].reshape(b * c, t),
            types=None if types is None else types.reshape(b * c, t),
            key=key,
            rows=candidate_rows(batch, c),
        )
        return found.reshape(b, c)

    return scores
