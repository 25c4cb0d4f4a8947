"""Tuning the cross-encoder on feedback: CFRAG section 4.3."""

from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Array, Float

from pbr_jax.base.types import Feedback, Params
from pbr_jax.models import cross_encoder
from pbr_jax.models.cross_encoder import CrossEncoder
from pbr_jax.text.padding import multiple, pair_arrays
from pbr_jax.text.tokenizing import load_tokenizer
from pbr_jax.train.distillation import Scorer, candidate_rows
from pbr_jax.train.sharding import Batch

_WIDTH = 8  # token widths are multiples of it


def scorer(
    queries: Sequence[str],
    users: np.ndarray | None,
    feedback: Sequence[Feedback],
    texts: Callable[[np.ndarray], list[str]],
    folder: Path,
    *,
    max_length: int,
    user_layers: int,
    seed: int,
) -> Scorer:
    """What is tuned: the whole encoder of a folder and the maps on top of it; arguments as in
    `train.retriever`.

    The head that a folder's reranker was pretrained with is not used, as in the paper.
    """
    tokenizer = load_tokenizer(folder, max_length=max_length)
    model, start, config = load(folder, 0 if users is None else users.shape[1], user_layers, seed)
    width = max((len(each.rows) for each in feedback), default=1)
    pairs = []
    for query, each in zip(queries, feedback, strict=True):
        pairs.append(tokenizer.encode_pairs([(query, text) for text in texts(each.rows)]))
    tokens = multiple(max((len(ids) for of_query in pairs for ids, _ in of_query), default=1), _WIDTH)
    typed = config.body.type_vocab_size > 1

    def arrays(questions: np.ndarray) -> Batch:
        filled = [pairs[i] + [([0], [0])] * (width - len(pairs[i])) for i in questions.tolist()]
        read = pair_arrays([pair for of_query in filled for pair in of_query], tokens, typed)
        shape = (len(questions), width, tokens)
        batch = {"ids": read.ids.reshape(shape), "mask": read.mask.reshape(shape)}
        if read.types is not None:
            batch["types"] = read.types.reshape(shape)
        return batch if users is None else batch | {"users": users[questions].astype(np.float32)}

    heads = ("score",) if users is None else ("user", "score")  # MLP_3, MLP_2
    return Scorer(lambda: start, arrays, _scores(model), heads)


def load(
    folder: Path, user_width: int, user_layers: int, seed: int
) -> tuple[CrossEncoder, Params, cross_encoder.CrossEncoderConfig]:
    """The cross-encoder to start from, without the head that it may have been pretrained with."""
    model, params, config = cross_encoder.load(
        folder, jax.random.key(seed), user_width=user_width, user_layers=user_layers
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
        scores = model.apply(
            params,
            batch["ids"].reshape(b * c, t),
            users,
            mask=batch["mask"].reshape(b * c, t),
            types=None if types is None else types.reshape(b * c, t),
            key=key,
            rows=candidate_rows(batch, c),
        )
        return scores.reshape(b, c)

    return scores
