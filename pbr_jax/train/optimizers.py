"""From a config to an optax optimizer."""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import jax
import optax

from pbr_jax.base.types import Params
from pbr_jax.options import Optimizer


def optimizer(config: Optimizer, steps: int, heads: Collection[str] = ()) -> optax.GradientTransformation:
    """The optimizer of a training of `steps` steps.

    Gradients are clipped first, together, by their global norm. `adam` with a weight decay adds it to the
    gradient (L2), `adamw` to the update. `heads`: names at the top of the parameters with a learning rate of
    their own, where the config has one for them.
    """
    moving = _rule(config, config.learning_rate, steps)
    if heads and config.head_learning_rate is not None:
        head = _rule(config, config.head_learning_rate, steps)
        moving = optax.partition({"head": head, "rest": moving}, partial(_labels, heads))
    return moving if config.clip is None else optax.chain(optax.clip_by_global_norm(config.clip), moving)


def _rule(config: Optimizer, peak: float, steps: int) -> optax.GradientTransformation:
    rule = _NAMES[config.name](config, schedule(config, steps, peak))
    if config.name == "adamw" or not config.weight_decay:
        return rule
    return optax.chain(optax.add_decayed_weights(config.weight_decay), rule)


_NAMES: dict[str, Callable[[Optimizer, optax.Schedule], optax.GradientTransformation]] = {
    "adam": lambda c, rate: optax.adam(rate, c.b1, c.b2),
    "adamw": lambda c, rate: optax.adamw(rate, c.b1, c.b2, weight_decay=c.weight_decay),
    "sgd": lambda c, rate: optax.sgd(rate),
}


def schedule(config: Optimizer, steps: int, peak: float | None = None) -> optax.Schedule:
    """The learning rate of every step: it rises linearly over the warm-up, then stays, or falls to 0.
    `peak`: the highest; None: the config's learning rate."""
    peak = config.learning_rate if peak is None else peak
    warm = round(config.warmup * steps)
    rest = max(1, steps - warm)
    after = {
        "constant": optax.constant_schedule(peak),
        "linear": optax.linear_schedule(peak, 0.0, rest),
        "cosine": optax.cosine_decay_schedule(peak, rest),
    }[config.schedule]
    if not warm:
        return after
    return optax.join_schedules([optax.linear_schedule(0.0, peak, warm), after], [warm])


def _labels(heads: Collection[str], params: Params) -> Any:
    """Which parameters are those of heads."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: "head" if path[0].key in heads else "rest", params
    )
