"""Trains the user encoder: two views of one history become similar, views of different users dissimilar.

CFRAG section 4.1, Eq. 2; see `models.user_transformer` and `data.views`.
"""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pbr_jax.base.types import Params
from pbr_jax.data import views
from pbr_jax.index.base import Matrix
from pbr_jax.losses.contrastive import nt_xent, symmetric_info_nce
from pbr_jax.losses.reduction import masked_mean
from pbr_jax.models.bert import unit_length
from pbr_jax.models.user_transformer import UserTransformerConfig, user_transformer
from pbr_jax.options import Training
from pbr_jax.train.batches import Rows
from pbr_jax.train.loop import Fitted, TrainingTask, fit
from pbr_jax.train.sharding import Batch

_VIEWS = "first", "second"


class Objective(NamedTuple):
    """The training objective.

    `cross_view` is the loss in the paper (Eq. 2, with the positive in the denominator). It contrasts a user's
    first view with the second views of all users. `nt_xent`, of the released code, contrasts it with both
    views.
    """

    rates: views.Rates = views.Rates()
    loss: Literal["cross_view", "nt_xent"] = "cross_view"
    temperature: float = 0.1
    train_embeddings: bool = False  # document embeddings are parameters (`documents`) too, as in the release


def train(
    histories: Sequence[np.ndarray],
    embeddings: Matrix,
    model: UserTransformerConfig,
    objective: Objective,
    config: Training,
    folder: Path,
    *,
    seed: int,
) -> Fitted:
    """Trains the encoder on users. Some of them are held out to choose the best step.

    Args:
      histories: for each user, rows of `embeddings`, oldest first. Users without documents are left out.
      embeddings: document vectors, float32 [n d]. They are fixed, unless the objective trains them.
      folder: the folder for checkpoints.
    """
    views.check(objective.rates)
    users = [history for history in histories if len(history)]
    order = np.random.default_rng([seed, 1]).permutation(len(users))
    held = order[: int(config.selection * len(users))] if len(users) > 1 else order[:0]
    learned = [users[i] for i in np.sort(order[len(held) :])]
    width = min(model.max_documents, max(map(len, users), default=1))
    table = None if objective.train_embeddings else embeddings
    batch = functools.partial(_batch, embeddings=table, rates=objective.rates, width=width)

    def some(rows: Rows) -> Batch:
        indices = rows.indices.tolist()
        draws = [[seed, rows.step, i] for i in indices]
        return batch([learned[i] for i in indices], rows.where, draws)

    def evaluate(params: Params) -> float:
        return -float(loss(params, fixed, jax.random.key(0)))

    draws = [[seed, 2**31, i] for i in held.tolist()]
    fixed = batch([users[i] for i in held], np.ones(len(held), bool), draws)
    loss = jax.jit(_loss(model, objective, dropout=False))

    def params() -> Params:
        fresh = user_transformer(model).init(jax.random.key(seed))
        own = {"documents": jnp.asarray(embeddings[:], jnp.float32)} if objective.train_embeddings else {}
        return fresh | own

    trained = _loss(model, objective, dropout=True)
    task = TrainingTask(params, trained, len(learned), some, evaluate if len(held) > 1 else None)
    return fit(task, config, folder, seed=seed)


def _batch(
    histories: Sequence[np.ndarray],
    where: np.ndarray,
    draws: Sequence[list[int]],
    *,
    embeddings: Matrix | None,
    rates: views.Rates,
    width: int,
) -> Batch:
    """Two views of each history, as embeddings or, without those, as rows. `draws` says what each
    history's randomness starts from."""
    arrays: Batch = {"where": where}
    generators = [np.random.default_rng(draw) for draw in draws]
    for name in _VIEWS:
        drawn = [
            views.view(min(len(history), width), rates, generator)
            for history, generator in zip(histories, generators)
        ]
        seen = views.padded(histories, drawn, width)
        arrays |= {
            name: seen.rows if embeddings is None else np.asarray(embeddings[seen.rows], np.float32),
            f"{name}_mask": seen.mask,
            f"{name}_hidden": seen.hidden,
        }
    return arrays


def _loss(model: UserTransformerConfig, objective: Objective, *, dropout: bool):
    apply = user_transformer(model).apply

    def loss(params: Params, batch: dict[str, Array], key: Array) -> Float[Array, ""]:
        keys = jax.random.split(key) if dropout else None
        table = params.get("documents")
        model_params = {name: part for name, part in params.items() if name != "documents"}

        def encode(view: tuple[Array, ...], key: Array | None) -> Float[Array, "b d"]:
            history, mask, hidden = view
            history = history if table is None else table[history]
            return apply(model_params, history, mask, replaced=hidden, key=key, rows=batch.get("row"))

        both = [tuple(batch[f"{name}{part}"] for part in ("", "_mask", "_hidden")) for name in _VIEWS]
        if jax.default_backend() == "cpu":
            one, two = map(encode, both, (None, None) if keys is None else keys)
        else:  # compilers for accelerators take up to a minute for each copy of the model
            stacked = tuple(map(jnp.stack, zip(*both)))
            one, two = jax.lax.map(lambda x: encode(*x), (stacked, keys))
        where = batch["where"]
        pairs = where[:, None] & where[None, :]
        if objective.loss == "nt_xent":
            losses = nt_xent(one, two, temperature=objective.temperature, where=pairs)
        else:
            losses = symmetric_info_nce(
                unit_length(one), unit_length(two), temperature=objective.temperature, where=pairs
            )
        return masked_mean(losses, where)

    return loss
