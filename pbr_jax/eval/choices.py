"""What is measured of questions that offer answers to choose from."""

from collections.abc import Mapping, Sequence

import numpy as np

from pbr_jax.eval.averages import Scores
from pbr_jax.eval.metrics import Metric, no_text, plain_mean

Options = Sequence[Sequence[str]]


def columns(
    targets: Sequence[str], probabilities: Sequence[Mapping[str, float] | None] | None
) -> list[Scores]:
    """choice_nll, minus log p(target | the question's options), in nats, where all are known."""
    known = [one for one in probabilities or [] if one is not None]
    if not known or len(known) < len(targets):
        return []
    found = [one.get(target, 0.0) for one, target in zip(known, targets, strict=True)]
    values = -np.log(np.maximum(found, np.finfo(float).tiny))
    return [Scores(Metric("choice_nll", no_text, plain_mean, False), values[:, None])]


def chance(options: Options | None) -> list[str]:
    """What accuracy is to be compared with."""
    if not options or not all(options):
        return []
    share = float(np.mean([1 / len(one) for one in options]))
    return [f"an option drawn by lot would be right in {share:.1%}"]


def unreadable(predictions: Sequence[str], options: Options) -> int:
    """How many predictions are none of their question's options."""
    return sum(found not in map(str.strip, one) for found, one in zip(predictions, options, strict=True))


def place_distribution(places: Sequence[Sequence[float]]) -> dict[str, float]:
    """How often the option at each place of the list was the most probable one, whatever stood there.

    `places`: of each question the shares of its orders (`pipeline.Answer.places`). Without a bias to places
    all shares of questions with equally many options are equal.
    """
    longest = max(map(len, places), default=0)
    sums = [sum(one[place] for one in places if place < len(one)) for place in range(longest)]
    return {f"place {place + 1}": total / len(places) for place, total in enumerate(sums)}
