"""Joint and average goal accuracy of dialogue states, as SGD and MultiWOZ 2.2 officially score them.

Rastogi et al., "Towards Scalable Multi-Domain Conversational Agents: The Schema-Guided Dialogue Dataset",
2020, section 6; Zang et al., "MultiWOZ 2.2", 2020. A slot of the schema scores 1 where neither state sets
it, 0 where one of them alone does, else as its reference says (`pbr_jax.tasks.states`). Joint accuracy is the
product over all slots of a frame (SGD) or of all frames of a turn (MultiWOZ 2.2), averaged; average
accuracy the mean over slots that the reference sets, averaged over the frames that have any.
"""

import math
import re
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from functools import lru_cache, partial
from typing import Literal, NamedTuple

import numpy as np
from rapidfuzz.distance import Indel

from pbr_jax.tasks.states import Frame, Reference, Slot, State, parsed, read_reference

Ratio = Literal["difflib", "indel", "exact"]
"""Of two texts, for free values: what fuzzywuzzy computes without and with its compiled extension; or 1 where
they are equal, else 0."""

_BEYOND_ASCII = dict.fromkeys(range(128, 256))  # fuzzywuzzy drops these alone


class Aligned(NamedTuple):
    """A predicted state beside a reference: of each frame, group by group, the values of its slots.

    `outside` counts predicted slots that the schema does not have, `missing` frames with values of which
    nothing was predicted. `named`: whether the state is empty or names a slot of the schema.
    """

    values: list[dict[str, dict[str, str]]]
    outside: int
    missing: int
    named: bool


def mean_over_frames(mean: np.ndarray) -> np.ndarray:
    """`[..., 2] -> [...]`: the mean over frames, from means of sums and of numbers of frames; 0 of none."""
    total, count = np.moveaxis(np.asarray(mean), -1, 0)
    return np.divide(total, count, out=np.zeros_like(total), where=count > 0)


def joint(predictions: Sequence[str], references: Sequence[str], ratio: Ratio = "difflib") -> np.ndarray:
    """`[n, 2]`: sums of joint goal accuracy, and over how many frames (or turns)."""
    return _statistics(predictions, references, ratio, _joint)


def average(predictions: Sequence[str], references: Sequence[str], ratio: Ratio = "difflib") -> np.ndarray:
    """`[n, 2]`: sums of average goal accuracy, and over how many frames with values."""
    return _statistics(predictions, references, ratio, _average)


METRICS: dict[str, Callable[[Sequence[str], Sequence[str]], np.ndarray]] = {
    "jga": joint,
    "aga": average,
    "jga_exact": partial(joint, ratio="exact"),
    "aga_exact": partial(average, ratio="exact"),
    "jga_indel": partial(joint, ratio="indel"),
    "aga_indel": partial(average, ratio="indel"),
}
VARIANTS = {
    "jga": "free values as fuzzywuzzy 0.18 without its extension (difflib)",
    "aga": "free values as fuzzywuzzy 0.18 without its extension (difflib)",
}


def counts(predictions: Sequence[str], references: Sequence[str]) -> dict[str, int]:
    """What the scores do not say: answers without a state, slots that the schema does not have, frames with
    values of which nothing was predicted (which the official scorers refuse). All are scored."""
    states = list(map(parsed, predictions))
    found = [align(state or {}, read_reference(text)) for state, text in zip(states, references, strict=True)]
    return {
        "unreadable_answers": sum(s is None or not one.named for s, one in zip(states, found, strict=True)),
        "slots_outside_schema": sum(one.outside for one in found),
        "missing_frames": sum(one.missing for one in found),
    }


def notes(references: Sequence[str]) -> list[str]:
    """What goal accuracies are to be compared with, and how answers without a state are scored."""
    found = mean_over_frames(joint(["{}"] * len(references), references).mean(0))
    return [f"the empty state for every turn would have jga {found:.4f}; answers without a state score as it"]


def align(state: State, reference: Reference) -> Aligned:
    """The state's values under the reference's names of services and slots.

    Names are compared by their letters and digits in lower case. A slot may stand under its service, with or
    without the service's name before its own, or under no service, where it counts for every frame that has
    it.
    """
    used: set[tuple[str, str]] = set()
    missing, values = 0, []
    for group in reference:
        values.append({})
        for service, frame in group.items():
            names, own = _names(service, frame), {}
            for said, slots in state.items():
                for name, value in slots.items() if said == "" or _key(said) == _key(service) else ():
                    if slot := names.get(_key(name)):
                        used.add((said, name))
                        own.setdefault(slot, value)
            values[-1][service] = own
            expected = any(slot.values for slot in frame.values())
            missing += expected and not own
    said = sum(map(len, state.values()))
    return Aligned(values, said - len(used), missing, bool(used) or not said)


def similarity(reference: str, predicted: str, ratio: Ratio) -> float:
    """fuzzywuzzy's token_sort_ratio / 100: of the sorted words in lower case, rounded to a hundredth."""
    return float(reference == predicted) if ratio == "exact" else _similarity(reference, predicted, ratio)


@lru_cache(maxsize=1 << 16)
def _similarity(reference: str, predicted: str, ratio: Ratio) -> float:
    left, right = map(_sorted_words, (reference, predicted))
    if left == right:
        return 1.0
    if not left or not right:
        return 0.0
    if ratio == "indel":
        return round(100 * Indel.normalized_similarity(left, right)) / 100
    return round(100 * SequenceMatcher(None, left, right).ratio()) / 100


def _sorted_words(text: str) -> str:
    return " ".join(sorted(re.sub(r"\W", " ", text.translate(_BEYOND_ASCII)).lower().split()))


def _statistics(
    predictions: Sequence[str],
    references: Sequence[str],
    ratio: Ratio,
    scores: Callable[[dict[str, Frame], dict[str, dict[str, str]], Ratio], list[float]],
) -> np.ndarray:
    rows = []
    for prediction, text in zip(predictions, references, strict=True):
        reference = read_reference(text)
        values = align(parsed(prediction) or {}, reference).values
        found = [score for pair in zip(reference, values, strict=True) for score in scores(*pair, ratio)]
        rows.append([math.fsum(found), len(found)])
    return np.array(rows, np.float64).reshape(-1, 2)


def _joint(group: dict[str, Frame], values: dict[str, dict[str, str]], ratio: Ratio) -> list[float]:
    found = [_score(o, values[s].get(name), ratio) for s, frame in group.items() for name, o in frame.items()]
    return [math.prod(found)] if found else []


def _average(group: dict[str, Frame], values: dict[str, dict[str, str]], ratio: Ratio) -> list[float]:
    active = [
        [_score(slot, values[service].get(name), ratio) for name, slot in frame.items() if slot.values]
        for service, frame in group.items()
    ]
    return [math.fsum(found) / len(found) for found in active if found]


def _score(slot: Slot, predicted: str | None, ratio: Ratio) -> float:
    if predicted is None or not slot.values:
        return float(predicted is None and not slot.values)
    if slot.match == "first":
        return float(predicted == slot.values[0])
    ratio = "exact" if slot.match == "any" else ratio
    return max(similarity(value, predicted, ratio) for value in slot.values)


def _names(service: str, frame: Frame) -> dict[str, str]:
    """The slots by the names that they may be given."""
    own, before = {_key(name): name for name in frame}, _key(service) + "_"
    bare = {name.removeprefix(before): slot for name, slot in own.items()}
    return {**{before + name: slot for name, slot in own.items()}, **bare, **own}


@lru_cache(maxsize=1 << 12)
def _key(name: str) -> str:
    return re.sub(r"[\W_]+", "_", name.casefold()).strip("_")
