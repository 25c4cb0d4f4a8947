"""The wording of every task's prompt: one `Form` a task, in a table for each `prompt.form`.

`own`: an entry of the history is a few labelled lines (`article: ...`, `headline: ...`); the prompt ends
with the label of the answer, left open. `lamp`: LaMP's structure (Salemi et al., 2024, Table 5) in our
words: an entry is a sentence, sentences are joined by ", and ", the input follows, and nothing else.
How forms, documents and input become messages within a token budget is in `prompts.py`.
"""

from dataclasses import dataclass
from typing import NamedTuple

from pbr_jax.types import UserError


class Line(NamedTuple):
    """One field of an entry, and what stands around it where it is filled."""

    before: str
    field: str
    after: str = ""


@dataclass(frozen=True)
class Form:
    """The wording of a task. `{who}` in `lead` becomes the author, or the author and similar ones."""

    system: str  # role, and what the answer consists of; empty: no system message
    lead: str  # introduces the history
    lines: tuple[Line, ...]  # of an entry
    ask: str  # after the history, before the input
    cue: str  # the open label at the end; empty: none
    main: str = ""  # field that Document.text replaces when it is missing; empty: of the first line
    between: str = "\n\n"  # entries
    marked: bool = True  # the history stands between marks


def _line(label: str, field: str) -> Line:
    return Line(f"\n{label}: ", field)


_HEADLINE = Form(
    system="You write news headlines the way one particular author does. Reply with the headline only.",
    lead="Articles and the headlines that {who} gave them:",
    lines=(_line("article", "text"), _line("headline", "title")),
    ask="Now the same author needs one more headline, set in the same manner.",
    cue="headline:",
)

_QUESTION = Form(
    system="You answer questions. Reply with the answer only, in as few words as possible.",
    lead="Passages that may help:",
    lines=(_line("title", "title"), _line("passage", "text")),
    ask="Answer the question.",
    cue="answer:",
    main="text",
)

_OWN: dict[str, Form] = {
    "lamp_1": Form(
        system="You know which works an author tends to cite. Reply with [1] or [2] only.",
        lead="Papers by {who}:",
        lines=(_line("title", "title"),),
        ask="Choose the reference that suits this author better.",
        cue="answer:",
    ),
    "lamp_2": Form(
        system="You tag films the way one particular viewer does. Reply with one tag from the list only.",
        lead="Films and the tags that {who} gave them:",
        lines=(_line("description", "description"), _line("tag", "tag")),
        ask="Now tag one more film as this viewer would.",
        cue="tag:",
    ),
    "lamp_3": Form(
        system="You predict the ratings of one particular reviewer. Reply with one digit from 1 to 5 only.",
        lead="Reviews and the scores that {who} gave with them:",
        lines=(_line("review", "text"), _line("score", "score")),
        ask="Now score one more review by this reviewer.",
        cue="score:",
    ),
    "lamp_4": _HEADLINE,
    "synthetic": Form(
        system="You answer questions the way one particular person does. Reply with the answer only.",
        lead="Questions and the answers that {who} gave:",
        lines=(_line("question", "text"), _line("answer", "title")),
        ask="Now answer one more question in the same manner.",
        cue="answer:",
    ),
    "lamp_5": Form(
        system="You title research papers the way one particular scholar does. Reply with the title only.",
        lead="Abstracts and the titles that {who} gave them:",
        lines=(_line("abstract", "abstract"), _line("title", "title")),
        ask="Now the same scholar needs one more title, worded in the same manner.",
        cue="title:",
    ),
    "lamp_7": Form(
        system="You rephrase tweets in the voice of one particular person. Reply with the tweet only.",
        lead="Tweets by {who}:",
        lines=(_line("tweet", "text"),),
        ask="Now put one more tweet into this person's voice.",
        cue="tweet:",
    ),
    "longlamp_abstract": Form(
        system="You write paper abstracts the way one particular scholar does. Reply with the abstract only.",
        lead="Titles and abstracts of papers by {who}:",
        lines=(_line("title", "title"), _line("abstract", "abstract")),
        ask="Now write one more abstract in the same manner.",
        cue="abstract:",
        main="abstract",
    ),
    "longlamp_review": Form(
        system="You write product reviews the way one particular customer does. Reply with the review only.",
        lead="Products and the reviews that {who} wrote of them:",
        lines=(
            _line("product", "description"),
            _line("rating", "overall"),
            _line("summary", "summary"),
            _line("review", "reviewText"),
        ),
        ask="Now write one more review in the same manner.",
        cue="review:",
        main="reviewText",
    ),
    "longlamp_topic": Form(
        system="You write forum posts the way one particular member does. Reply with the post only.",
        lead="Summaries and full posts by {who}:",
        lines=(_line("summary", "summary"), _line("post", "content")),
        ask="Now write one more post in the same manner.",
        cue="post:",
        main="content",
    ),
    "personabench": Form(
        system="You answer questions about a person from that person's records. Reply with the answer only.",
        lead="Records of {who}:",
        lines=(_line("date", "date"), _line("record", "text")),
        ask="Answer from these records, in as few words as possible.",
        cue="answer:",
        main="text",
    ),
    "longmemeval": Form(
        system="You answer a user's question from earlier conversations. Reply with the answer only.",
        lead="Earlier conversations with {who}:",
        lines=(_line("date", "date"), _line("conversation", "text")),
        ask="Answer from these conversations, in as few words as possible.",
        cue="answer:",
        main="text",
    ),
    **dict.fromkeys(("nq_open", "trivia_qa", "squad", "web_questions"), _QUESTION),
}


def _sentences(who: str, *lines: Line, main: str = "") -> Form:
    return Form(
        system="",
        lead=who,
        lines=lines,
        ask="In keeping with these:",
        cue="",
        main=main,
        between=", and ",
        marked=False,
    )


_HEADLINE_SENTENCE = _sentences(
    "What {who} chose before:",
    Line('"', "title", '" as the headline of '),
    Line('"', "text", '"'),
    main="text",
)

_LAMP: dict[str, Form] = {
    "lamp_1": _sentences("Papers of {who}:", Line('"', "title", '"')),
    "lamp_2": _sentences(
        "What {who} chose before:",
        Line('"', "tag", '" as the tag of the film '),
        Line('"', "description", '"'),
        main="description",
    ),
    "lamp_3": _sentences(
        "What {who} gave before:", Line("", "score", " as the score in "), Line('"', "text", '"'), main="text"
    ),
    "lamp_4": _HEADLINE_SENTENCE,
    "synthetic": _HEADLINE_SENTENCE,
    "lamp_5": _sentences(
        "What {who} chose before:",
        Line('"', "title", '" as the title of '),
        Line('"', "abstract", '"'),
        main="abstract",
    ),
    "lamp_7": _sentences("Tweets of {who}:", Line('"', "text", '"')),
    "longlamp_abstract": _sentences(
        "What {who} wrote before:",
        Line('"', "abstract", '" as the abstract of '),
        Line('"', "title", '"'),
        main="abstract",
    ),
    "longlamp_review": _sentences(
        "What {who} wrote before:",
        Line('"', "reviewText", '"'),
        Line(" with the score ", "overall"),
        Line(' and the summary "', "summary", '"'),
        Line(' on the product "', "description", '"'),
    ),
    "longlamp_topic": _sentences(
        "What {who} wrote before:", Line('"', "content", '"'), Line(' summed up as "', "summary", '"')
    ),
}

FORMS: dict[str, dict[str, Form]] = {"own": _OWN, "lamp": _LAMP}


def form_of(task: str, name: str = "own") -> Form:
    """The wording of a task in one of the forms. Raises UserError where there is none."""
    forms = FORMS[name]
    if task not in forms:
        raise UserError(f"prompt.form {name} has no prompt for {task!r}; it has: {', '.join(forms)}")
    return forms[task]
