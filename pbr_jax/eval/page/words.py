"""Numbers in three digits, a verdict in sentences that say no more than the intervals do, and a glossary."""

import re
from collections.abc import Iterable, Sequence

from pbr_jax.base.terminal import visible
from pbr_jax.eval.metrics import LOWER_IS_BETTER
from pbr_jax.eval.page.comparison import Comparison, Gain, why_not
from pbr_jax.eval.runs import Row, confidence_of
from pbr_jax.eval.significance import FEWEST
from pbr_jax.eval.tables import intervals, mean

_NAMED = 4  # systems that a sentence names
_LONG = re.compile(r"(?<![\w.])([-+]?\d+\.\d{4})(?!\d)")


def number(value: float, *beside: float, signed: bool = False) -> str:
    """The value in about three digits, with the decimals that the largest number beside it has."""
    largest = max(abs(value), *map(abs, beside), 0.0)
    decimals = 3 if largest < 1 else 2 if largest < 10 else 1 if largest < 100 else 0
    text = f"{value:{'+' if signed else ''},.{decimals}f}"
    return re.sub(r"^[-+](?=[0.,]*$)", "", text).replace("-", "−")  # a zero has no sign


def interval(value: float, low: float, high: float, *, signed: bool = False) -> str:
    """`+0.213 [+0.102, +0.324]`; the value alone where the interval has no width."""
    value_text = number(value, low, high, signed=signed)
    if low == high:
        return value_text
    ends = (number(end, value, low, high, signed=signed) for end in (low, high))
    return f"{value_text} [{', '.join(ends)}]"


def shorter(text: str) -> str:
    """The text with numbers of four decimals in three, and control characters as escapes."""
    return _LONG.sub(lambda found: f"{float(found[1]):{'+' if found[1][0] == '+' else ''}.3f}", visible(text))


def difference_text(gain: Gain, name: str) -> str:
    """Row less reference, as the report in Markdown has it."""
    one = gain.row_less_reference(name)
    return interval(one.value, one.low, one.high, signed=True)


def gain_text(gain: Gain) -> str:
    one = gain.difference
    return interval(one.value, one.low, one.high, signed=True)


def verdict(found: Comparison) -> list[str]:
    """One to three sentences on the rows of a section, by intervals of paired gains in the main measure."""
    section, measure = found.section, found.measure
    first, reference = section.rows[0], section.reference.label
    if len(section.rows) == 1:
        return [f"{_one(first, measure)} There is one run, so nothing is compared."]
    if reasons := why_not(section):
        return [f"These runs cannot be compared: they {' and '.join(reasons)}."]
    gains, what = found.main, section.reference.first.clusters
    if not gains:
        return [f"No paired difference in {measure} can be given, so no run is shown to be better."]
    if found.clusters < FEWEST:
        low, high = (number(end(g.difference.value for g in gains), signed=True) for end in (min, max))
        return [
            f"It cannot be told whether any system is better than {reference}: there are {found.clusters} "
            f"{what}, and at least {FEWEST} are needed. Gains in {measure} from {low} to {high} were "
            "measured, which may hold for these alone."
        ]
    return [*_shown(gains, reference, measure), *_open(gains, reference), _basis(found)]


def _one(row: Row, measure: str) -> str:
    value = mean(row, measure)
    if value is None:
        return f"{row.label} has no {measure}."
    low, high = intervals(row, [measure], confidence_of(row.first)).get(measure, (value, value))
    return f"{row.label} has {measure} {interval(value, low, high)} on {row.first.n} questions."


def _shown(gains: Sequence[Gain], reference: str, measure: str) -> list[str]:
    sentences = []
    for sign, word in ((1, "better"), (-1, "worse")):
        some = [gain for gain in gains if gain.shown == sign]
        some = some if sign > 0 else some[::-1]
        if some:
            named = "; ".join(f"{gain.label} by {gain_text(gain)}" for gain in some[:_NAMED])
            rest = f"; and {len(some) - _NAMED} more" if len(some) > _NAMED else ""
            sentences.append(f"Shown to be {word} than {reference} in {measure}: {named}{rest}.")
    return sentences


def _open(gains: Sequence[Gain], reference: str) -> list[str]:
    some = [gain for gain in gains if not gain.shown]
    if not some:
        return []
    names = ", ".join(f"{gain.label}{_detectable(gain)}" for gain in some[:_NAMED])
    rest = f" and {len(some) - _NAMED} more" if len(some) > _NAMED else ""
    return [f"Not shown to differ from {reference}: {names}{rest}."]


def _detectable(gain: Gain) -> str:
    size = gain.difference.detectable
    return f" (detectable: {number(size)})" if size else ""


def _basis(found: Comparison) -> str:
    run = found.section.reference.first
    several = len(found.section.rows) > 2
    turned = ", also where lower values are better" if found.measure in LOWER_IS_BETTER else ""
    order = " Whether two of the others differ from each other is not tested here." if several else ""
    return (
        f"Gains are paired over {run.n} questions of {found.clusters} {run.clusters}, with "
        f"{confidence_of(run):.0%} intervals and p corrected over all systems (Holm); more is better"
        f"{turned}.{order}"
    )


_TERMS = {
    r"target_nll": "Minus the log-probability of what the user really wrote, in nats a token, under the "
    "language model with this prompt. Lower is better. 0.1 less makes each token about 10 % more probable.",
    r"target_bpb": "The likelihood of target_nll in bits a byte, which does not depend on the tokenizer. "
    "Lower is better.",
    r"recall@(\d+)": "The share of the needed facts that one of the first {0} documents holds.",
    r"recall_any@(\d+)": "Whether any needed fact is in the first {0} documents.",
    r"recall_all@(\d+)": "Whether all needed facts are in the first {0} documents.",
    r"ndcg@(\d+)": "How early relevant documents stand among the first {0}; 1 is the best possible order.",
    r"ndcg_longmemeval@(\d+)": "NDCG at {0} as LongMemEval's released scorer computes it, which does not "
    "discount the second place.",
    r"answer_recall@(\d+)": "Whether one of the first {0} documents holds an accepted answer, word for word.",
    r"accuracy": "The share of questions whose answer is the right label.",
    r"f1_macro": "F1 averaged over labels, so that rare labels count as much as frequent ones.",
    r"mae": "How far the rating is off on average, in points of the scale. Lower is better.",
    r"rmse": "The root of the mean squared error, in points of the scale; large errors count more. "
    "Lower is better.",
    r"expected_mae": "mae of the rating that the model's probabilities make expect. Lower is better.",
    r"expected_rmse": "rmse of the rating that the model's probabilities make expect. Lower is better.",
    r"correlation": "Pearson's correlation of the answered and the real ratings; 1 is the best.",
    r"expected_correlation": "Pearson's correlation of the expected and the real ratings; 1 is the best.",
    r"rouge1": "ROUGE-1: F1 of single words that the answer and the target share.",
    r"rougeL": "ROUGE-L: F1 by the longest sequence of words that answer and target share in order.",
    r"meteor": "METEOR: words that answer and target share by form, stem or synonym, less for order.",
    r"exact_match": "Whether the answer is an accepted one, case, punctuation and articles aside.",
    r"squad_f1": "F1 of the words of the answer and the closest accepted one, as SQuAD computes it.",
    r"token_f1": "F1 of the words that answer and target share.",
    r"subspan_em": "Whether an accepted answer stands word for word in the answer.",
    r"choice_nll": "Minus the log-probability of the right one of the options, in nats. Lower is better.",
    r"jga(_\w+)?": "Joint goal accuracy: the share of turns whose whole dialogue state is right.",
    r"aga(_\w+)?": "Average goal accuracy: the share of slots that are right, over turns that have any.",
}
_GENERAL = {
    "gain": "A system's value less the reference's on the same questions, turned so that more is better.",
    "interval": "The range in brackets. Were the data drawn anew many times, such ranges would hold the true "
    "value about as often as the stated confidence. What is drawn is a user with all questions.",
    "shown": "Bold and marked ▲ or ▼: the interval of the paired gain leaves out zero, and p is small enough "
    "after correction for all systems (Holm). No mark: none is shown, which is no proof of none.",
    "detectable": "The smallest difference that this comparison would have found with 80 % power, before "
    "correction.",
}  # fmt: skip


def define(name: str) -> str:
    """What a measure means; "" for one that is not known."""
    for pattern, text in _TERMS.items():
        if found := re.fullmatch(pattern, name):
            return text.format(*(group or "" for group in found.groups()))
    return ""


def glossary(names: Iterable[str]) -> dict[str, str]:
    """The known measures of these names, and the words of the report that are no measures."""
    known = {name: define(name) for name in dict.fromkeys(names)}
    return {name: text for name, text in known.items() if text} | _GENERAL
