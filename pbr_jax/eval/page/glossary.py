"""What the measures of a report mean, in a sentence or two each."""

import re
from collections.abc import Iterable

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
