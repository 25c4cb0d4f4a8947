"""From a config to an optax optimizer."""

import re
from collections.abc import Callable, Collection
from typing import Any

import jax
import optax

from pbr_jax.base.types import Params, UserError
from pbr_jax.options import Optimizer


def optimizer(config: Optimizer, steps: int, heads: Collection[str] = ()) -> optax.GradientTransformation:
    """The optimizer of a training of `steps` steps.

    Gradients are clipped first, together, by their global norm. `adam` with a weight decay adds it to the
    gradient (L2), `adamw` to the update. Frozen parameters do not count in the norm. `heads`: names at
    the top of the parameters with a learning rate of their own, where the config has one for them.
    """
    moving = _rule(config, config.learning_rate, steps)
    if heads and config.head_learning_rate is not None:
        head = _rule(config, config.head_learning_rate, steps)
        label = _labels(lambda path: "head" if path[0] in heads else "rest")
        moving = optax.partition({"head": head, "rest": moving}, label)
    if config.clip is not None:
        moving = optax.chain(optax.clip_by_global_norm(config.clip), moving)
    if not config.frozen:
        return moving
    return optax.partition({"moving": moving, "frozen": optax.set_to_zero()}, _frozen(config.frozen))


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


def _labels(label: Callable[[tuple[str, ...]], str]) -> Callable[[Params], Any]:
    """Labels of parameters by their paths (`encoder`, `layers`, ...)."""

    def labels(params: Params) -> Any:
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: label(tuple(str(entry.key) for entry in path)), params
        )

    return labels


def _frozen(pattern: str) -> Callable[[Params], Any]:
    """Which parameters are frozen: those whose path (`encoder/layers/...`) begins with a match."""
    label = _labels(lambda path: "frozen" if re.match(pattern, "/".join(path)) else "moving")

    def labels(params: Params) -> Any:
        labelled = label(params)
        kinds = set(jax.tree.leaves(labelled))
        if kinds != {"frozen", "moving"}:
            what = "no" if "frozen" not in kinds else "every"
            raise UserError(f"frozen is {pattern!r}, which matches {what} parameter; want a part of them")
        return labelled

    return labels
