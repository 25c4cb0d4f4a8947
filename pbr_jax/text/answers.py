"""Raw outputs of language models to predictions."""

import re
from collections.abc import Callable, Mapping

from pbr_jax.base.types import UserError
from pbr_jax.models.thinking import after_thinking
from pbr_jax.tasks import AnswerFormat
from pbr_jax.tasks.states import parsed, written

_DASHES = r"-\u2010-\u2015\u2212"  # models write "sci‑fi" with a hyphen that does not break
_WAIT = 48  # characters: whether an output begins with a mark of thinking (`models.thinking`) shows by then
_NUMBER = re.compile(r"(?<![\d.,])(?:0|[1-9][0-9]*)(?:\.\d+)?(?!\d|[.,]\d)")


def parse_answer(form: AnswerFormat, text: str) -> str:
    """The prediction in a model's raw output, read behind its thinking (`models.thinking`).

    Empty where the model was cut off while it was still thinking, or wrote nothing after it.

    - classification: the label that occurs first, whatever its case, the longer of two at one place; a
      space or another dash may stand for a hyphen. Where none occurs, the same of the labels' spellings.
    - rating: the first number on the scale, as written (`4`, `4.5`).
    - a line: the first one with text, without the label that the prompt ends with and without quotes around
      it; a line before it that ends in a colon ("Here is one:") does not count.
    - a text: everything, without that label.

    - a choice: everything.
    - a dialogue state: `tasks.states.written` of the state in it.

    Where nothing matches, the stripped output.
    """
    raw = (after_thinking(text) or "").strip()
    if form.kind == "classification":
        labels = {label: label for label in form.labels}
        return _first_label(raw, labels) or _first_label(raw, dict(form.spellings)) or raw
    if form.kind == "rating":
        low, *_, high = sorted(map(float, form.labels))
        return next((n for n in _NUMBER.findall(raw) if low <= float(n) <= high), raw)
    if form.kind == "choice":
        return raw
    if form.kind == "dialogue":
        return raw if (state := parsed(raw)) is None else written(state)
    body = _behind_label(form, raw)
    if form.span == "text":
        return body or raw
    lines = [line.strip() for line in body.splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].endswith(":"):
        del lines[0]
    return (_unquoted(lines[0]) if lines else "") or raw


class Parts:
    """Passes on an answer in parts while it is written; joined they are what `parse_answer` gives.

    Of a line, a label, a number or a state, the end of the output decides what it is: all is passed on then.
    """

    def __init__(self, form: AnswerFormat, on_text: Callable[[str], object]) -> None:
        texts = form.span == "text" and form.kind not in ("classification", "rating", "dialogue")
        self._form, self._on_text, self._grows = form, on_text, texts or form.kind == "choice"
        self._wait, self._sent = _WAIT + len(form.cue) + len(form.entry), ""

    def grow(self, text: str) -> None:
        """Passes on what is new in the output so far."""
        form, begin = self._form, text.strip().lower()
        labels = form.entry != form.cue.lower() and begin.startswith(form.entry)  # a whole entry
        if self._grows and len(begin) > self._wait and not labels:
            answer = parse_answer(form, text)
            if answer.startswith(self._sent):
                self._pass(answer)

    def end(self, answer: str) -> None:
        """Passes on the rest of the answer. Raises UserError if it begins otherwise than what was sent."""
        if not answer.startswith(self._sent):
            raise UserError("what the model wrote at first is no part of its answer; ask without a stream")
        self._pass(answer)

    def _pass(self, answer: str) -> None:
        new, self._sent = answer[len(self._sent) :], answer
        if new:
            self._on_text(new)


def _behind_label(form: AnswerFormat, text: str) -> str:
    """What follows the open label, also where the model has written a whole entry, label by label."""
    cue = re.escape(form.cue)
    if form.entry != form.cue.lower() and text.lower().startswith(form.entry):
        found = re.search(rf"^{cue}[ \t]*(?=\S)", text, flags=re.IGNORECASE | re.MULTILINE)
        return text[found.end() :] if found else text
    return re.sub(rf"^{cue}\s*", "", text, flags=re.IGNORECASE)


def _first_label(text: str, labels: Mapping[str, str]) -> str:
    """The label whose spelling occurs first, or an empty string; a number may stand beside letters."""
    found = []
    for spelling, label in labels.items():
        words = rf"[{_DASHES}\s]+".join(map(re.escape, re.split(r"[-\s]+", spelling)))
        near = r"\d" if spelling.isdecimal() else r"\w"
        if match := re.search(rf"(?<!{near}){words}(?!{near})", text, flags=re.IGNORECASE):
            found.append((match.start(), -len(spelling), label))
    return min(found)[2] if found else ""


def _unquoted(text: str) -> str:
    """The text without one pair of quotes around it."""
    for left, right in (('"', '"'), ("'", "'"), ("“", "”"), ("‘", "’"), ("«", "»"), ("`", "`")):
        inner = text[1:-1]
        if len(text) > 1 and text[0] == left and text[-1] == right and left not in inner:
            return inner.strip()
    return text
