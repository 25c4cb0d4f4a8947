"""Metrics of answers. Each is a function of the mean of per-example statistics.

A metric maps each (prediction, target) pair to a row of numbers, and the mean of these rows to its value.
This includes metrics that are not means of per-example scores (macro F1, RMSE). The bootstrap of any metric
is a single matrix product over the rows, without approximation.

>>> import numpy as np
>>> metric = text_metric("f1_macro", labels=("cat", "dog"))
>>> rows = metric.statistics(["cat", "cat", "dog"], ["cat", "dog", "dog"])
>>> print(np.round(metric.finish(rows.mean(0)), 4))
0.6667
"""

import math
import string
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import regex

from pbr_jax.base.types import UserError
from pbr_jax.base.words import composed, words
from pbr_jax.eval import dialogue
from pbr_jax.eval.overlap import METEOR_VARIANT, meteor

Strings = Sequence[str]

LOWER_IS_BETTER = frozenset({"mae", "rmse", "expected_mae", "expected_rmse", "target_nll", "target_bpb",
                             "choice_nll"})  # fmt: skip
VARIANTS = {"meteor": METEOR_VARIANT, **dialogue.VARIANTS}
"""The definition used here, for metrics with several definitions."""

_SHARES = frozenset({"accuracy", "f1_macro", "rouge1", "rougeL", "meteor", "exact_match", "token_f1",
                     *dialogue.METRICS})  # fmt: skip

# SQuAD's \b(a|an|the)\b, but that a mark belongs to the letter before it. \w of `regex` lacks "½" and "²".
_ARTICLE = regex.compile(r"(?<![\p{L}\p{N}\p{M}_])(a|an|the)(?![\p{L}\p{N}\p{M}_])")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ROUNDING = 1e-18  # of a product of variances: less is no spread
_LARGEST_RATING = 1e100  # a longer run of digits is no rating, and its square would overflow


class Metric(NamedTuple):
    """A metric as per-example statistics and a function of their mean.

    `statistics(predictions, targets)` returns `[n, s]`. `finish(mean)` maps (weighted) means `[..., s]` to
    values `[...]`.
    """

    name: str
    statistics: Callable[[Strings, Strings], np.ndarray]
    finish: Callable[[np.ndarray], np.ndarray]

    @property
    def higher_is_better(self) -> bool:
        return self.name not in LOWER_IS_BETTER


def plain_mean(mean: np.ndarray) -> np.ndarray:
    """`[..., 1] -> [...]`: the metric is the mean of one score per example."""
    return np.asarray(mean)[..., 0]


def per_frame(name: str, statistics: np.ndarray) -> dict[str, float]:
    """The values of one example for a metric over frames: the mean, and the number of frames if it is not 1.
    Empty without frames."""
    total, count = map(float, statistics)
    weight = {} if count == 1 else {f"{name}_frames": count}
    return {name: total / count, **weight} if count else {}


def text_metric(name: str, labels: Strings = ()) -> Metric:
    """The metric with this name. `labels` of the task are used by accuracy, f1_macro and rating errors."""
    if name in ("accuracy", "f1_macro") and not labels:
        raise UserError(f"metric {name!r} needs the labels of the task, and this task has none")
    makers: dict[str, tuple[Callable[[Strings, Strings], np.ndarray], Callable]] = {
        "accuracy": (partial(_correct, labels=labels), plain_mean),
        "f1_macro": (partial(_confusion, labels=labels), _macro_f1),
        "mae": (partial(_absolute_error, labels=labels), plain_mean),
        "rmse": (partial(_squared_error, labels=labels), _root),
        "correlation": (partial(_moments, labels=labels), _pearson),
        "rouge1": (partial(_rouge, name="rouge1"), plain_mean),
        "rougeL": (partial(_rouge, name="rougeL"), plain_mean),
        "meteor": (_meteor, plain_mean),
        "exact_match": (_exact_match, plain_mean),
        "squad_f1": (_squad_f1, plain_mean),
        "subspan_em": (_subspan_em, plain_mean),
        "token_f1": (_token_f1, plain_mean),
        **{n: (made, dialogue.mean_over_frames) for n, made in dialogue.METRICS.items()},
    }
    if name not in makers:
        raise UserError(f"no metric of answers is named {name!r}; there are {', '.join(makers)}")
    return Metric(name, *makers[name])


def direction(name: str) -> float:
    """1 where more of a metric is better, -1 where less is."""
    return -1.0 if name in LOWER_IS_BETTER else 1.0


def within_range(name: str, interval: tuple[float, float]) -> tuple[float, float]:
    """An interval clipped to the range of the metric, since Student's t is unbounded."""
    share = name in _SHARES or "@" in name  # ranking metrics are named by their k
    correlation = name.endswith("correlation")
    lowest = 0.0 if share or name in LOWER_IS_BETTER else -1.0 if correlation else -math.inf
    return max(lowest, interval[0]), min(1.0 if share or correlation else math.inf, interval[1])


def rating_scale(labels: Strings) -> tuple[float, float]:
    """The smallest and the largest rating; 1 and 5 without labels."""
    values = list(map(float, labels)) or [1.0, 5.0]
    return min(values), max(values)


def rating_error(prediction: str, target: str, labels: Strings = ()) -> float:
    """Prediction minus target. A prediction that is not a number counts as the farther end of the scale.

    Numbers outside the scale are used unchanged, as in LaMP's official scorer (LaMP-3).
    """
    wanted = _number(target)
    if wanted is None:
        raise UserError(f"the target {target!r} of a rating task is not a number; mend the outputs file")
    rating = _number(prediction)
    if rating is None:
        rating = max(reversed(rating_scale(labels)), key=lambda end: abs(end - wanted))
    return rating - wanted


def unreadable(prediction: str, labels: Strings) -> bool:
    """Whether a prediction is not one of the labels or, without labels (a rating), not a number.

    Such a prediction is still scored: as wrong, or as the farther end of the scale.
    """
    return prediction.strip() not in labels if labels else _number(prediction) is None


def squad_normalised(text: str) -> str:
    """SQuAD's normalization, on NFC: lower case, no ASCII punctuation or English articles, single spaces."""
    lower = composed(text.lower())
    return " ".join(_ARTICLE.sub(" ", lower.translate(_PUNCTUATION)).split())


def _column(values: Sequence[int | float | bool] | np.ndarray) -> np.ndarray:
    return np.asarray(values, np.float64).reshape(-1, 1)


def _label_indices(texts: Strings, labels: Strings) -> np.ndarray:
    """`[n]`: which label each text is after strip(), case kept; -1 where it is none."""
    index = {label: i for i, label in enumerate(labels)}
    return np.array([index.get(text.strip(), -1) for text in texts], np.int64)


def _indices(predictions: Strings, targets: Strings, labels: Strings) -> tuple[np.ndarray, np.ndarray]:
    predicted, wanted = _label_indices(predictions, labels), _label_indices(targets, labels)
    if (wanted < 0).any():
        strange = targets[int(np.argmax(wanted < 0))]
        raise UserError(f"the target {strange!r} is none of the task's labels: {', '.join(labels)}")
    return predicted, wanted


def _correct(predictions: Strings, targets: Strings, labels: Strings) -> np.ndarray:
    predicted, wanted = _indices(predictions, targets, labels)
    return _column(predicted == wanted)


def _confusion(predictions: Strings, targets: Strings, labels: Strings) -> np.ndarray:
    """`[n, 3 L]`: per label true positives, then times predicted, then times wanted."""
    predicted, wanted = (
        indices[:, None] == np.arange(len(labels)) for indices in _indices(predictions, targets, labels)
    )
    return np.concatenate([predicted & wanted, predicted, wanted], 1).astype(np.float64)


def _macro_f1(mean: np.ndarray) -> np.ndarray:
    """F1 of each label, 0 where it is neither predicted nor wanted, averaged over all labels."""
    both, predicted, wanted = np.split(np.asarray(mean), 3, axis=-1)
    total = predicted + wanted
    scores = np.divide(2 * both, total, out=np.zeros_like(total), where=total > 0)
    return np.asarray(scores.mean(-1))


def _number(text: str) -> float | None:
    try:
        value = float(text.strip())
    except ValueError:
        return None
    return value if abs(value) < _LARGEST_RATING else None  # False for nan and inf too


def _absolute_error(predictions: Strings, targets: Strings, labels: Strings) -> np.ndarray:
    return _column([abs(rating_error(*pair, labels)) for pair in zip(predictions, targets, strict=True)])


def _squared_error(predictions: Strings, targets: Strings, labels: Strings) -> np.ndarray:
    return _absolute_error(predictions, targets, labels) ** 2


def _moments(predictions: Strings, targets: Strings, labels: Strings) -> np.ndarray:
    """`[n, 5]`: x, y, x², y² and x y of numbers, both less the middle of the scale."""
    wanted = np.array([float(target) for target in targets])
    predicted = wanted + [rating_error(*pair, labels) for pair in zip(predictions, targets, strict=True)]
    middle = sum(rating_scale(labels)) / 2
    x, y = predicted - middle, wanted - middle
    return np.stack([x, y, x * x, y * y, x * y], axis=1)


def _pearson(mean: np.ndarray) -> np.ndarray:
    """Pearson's correlation; 0 where either side is constant."""
    x, y, xx, yy, xy = np.moveaxis(np.asarray(mean), -1, 0)
    spread = np.maximum(xx - x * x, 0) * np.maximum(yy - y * y, 0)
    known = spread > _ROUNDING
    return np.where(known, (xy - x * y) / np.sqrt(np.where(known, spread, 1)), 0.0)


def _root(mean: np.ndarray) -> np.ndarray:
    return np.asarray(np.sqrt(plain_mean(mean)))


def _rouge(predictions: Strings, targets: Strings, name: str) -> np.ndarray:
    """ROUGE F-measure by rouge-score, without stemming; words are runs of a-z and 0-9."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer([name], use_stemmer=False)
    pairs = zip(predictions, targets, strict=True)
    return _column([scorer.score(target, prediction)[name].fmeasure for prediction, target in pairs])


def _meteor(predictions: Strings, targets: Strings) -> np.ndarray:
    return _column(meteor(list(predictions), list(targets)))


def _normalised(predictions: Strings, targets: Strings) -> list[tuple[str, str]]:
    pairs = zip(predictions, targets, strict=True)
    return [(squad_normalised(prediction), squad_normalised(wanted)) for prediction, wanted in pairs]


def _exact_match(predictions: Strings, targets: Strings) -> np.ndarray:
    return _column([prediction == wanted for prediction, wanted in _normalised(predictions, targets)])


def _subspan_em(predictions: Strings, targets: Strings) -> np.ndarray:
    """Whether the answer stands in the prediction, character by character, both normalised as SQuAD does.

    PBR's Table 8 and LUF's Table 2 (as in Liu et al., "Lost in the Middle: How Language Models Use Long
    Contexts", 2024). An answer of which nothing is left matches only a prediction of which nothing is left.
    """
    pairs = _normalised(predictions, targets)
    return _column([wanted in prediction if wanted else not prediction for prediction, wanted in pairs])


def _squad_f1(predictions: Strings, targets: Strings) -> np.ndarray:
    """F1 of the bags of normalised words, 1 where both are empty, as SQuAD 2.0's official scorer has it.

    Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text", 2016, section 6.1.
    """
    scores = []
    for pair in _normalised(predictions, targets):
        predicted, wanted = (Counter(text.split()) for text in pair)
        total = predicted.total() + wanted.total()
        scores.append(2 * (predicted & wanted).total() / total if total else 1.0)
    return _column(scores)


def _token_f1(predictions: Strings, targets: Strings) -> np.ndarray:
    """PersonaBench's answer score: F1 of the sets of words; 1 where both sets are empty."""
    scores = []
    for pair in zip(predictions, targets, strict=True):
        predicted, wanted = (set(words(text)) for text in pair)
        total = len(predicted) + len(wanted)
        scores.append(2 * len(predicted & wanted) / total if total else 1.0)
    return _column(scores)
