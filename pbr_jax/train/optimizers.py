"""From a config to an optax optimizer."""

import re
from collections.abc import Callable
from typing import Any

import jax
import optax

from pbr_jax.options import Optimizer
from pbr_jax.types import Params, UserError


def optimizer(config: Optimizer, steps: int) -> optax.GradientTransformation:
    """The optimizer of a training of `steps` steps.

    Gradients are clipped first, together, by their global norm. `adam` with a weight decay adds it to the
    gradient (L2), `adamw` to the update. Frozen parameters take no part: they do not move, have no
    moments, and their gradients do not count in the norm.
    """
    rate = schedule(config, steps)
    chain = [] if config.clip is None else [optax.clip_by_global_norm(config.clip)]
    if config.name != "adamw" and config.weight_decay:
        chain.append(optax.add_decayed_weights(config.weight_decay))
    chain.append(_NAMES[config.name](config, rate))
    moving = optax.chain(*chain)
    if not config.frozen:
        return moving
    return optax.partition({"moving": moving, "frozen": optax.set_to_zero()}, _labels(config.frozen))


_NAMES: dict[str, Callable[[Optimizer, optax.Schedule], optax.GradientTransformation]] = {
    "adam": lambda c, rate: optax.adam(rate, c.b1, c.b2),
    "adamw": lambda c, rate: optax.adamw(rate, c.b1, c.b2, weight_decay=c.weight_decay),
    "sgd": lambda c, rate: optax.sgd(rate),
}


def schedule(config: Optimizer, steps: int) -> optax.Schedule:
    """The learning rate of every step: it rises linearly over the warm-up, then stays, or falls to 0."""
    warm = round(config.warmup * steps)
    peak, rest = config.learning_rate, max(1, steps - warm)
    after = {
        "constant": optax.constant_schedule(peak),
        "linear": optax.linear_schedule(peak, 0.0, rest),
        "cosine": optax.cosine_decay_schedule(peak, rest),
    }[config.schedule]
    if not warm:
        return after
    return optax.join_schedules([optax.linear_schedule(0.0, peak, warm), after], [warm])


def _labels(pattern: str) -> Callable[[Params], Any]:
    """Which parameters are frozen: those whose path (`encoder/layers/...`) begins with a match."""

    def labels(params: Params) -> Any:
        def label(path: tuple[Any, ...], leaf: Any) -> str:
            name = "/".join(str(entry.key) for entry in path)
            return "frozen" if re.match(pattern, name) else "moving"

        found = jax.tree_util.tree_map_with_path(label, params)
        kinds = set(jax.tree.leaves(found))
        if kinds != {"frozen", "moving"}:
            what = "no" if "frozen" not in kinds else "every"
            raise UserError(f"frozen is {pattern!r}, which matches {what} parameter; want a part of them")
        return found

    return labels
