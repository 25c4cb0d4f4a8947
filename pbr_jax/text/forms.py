"""The wording of every task's prompt: one `Form` a task, in one table.

An entry of the history is a few labelled lines (`article: ...`, `headline: ...`); the prompt ends with
the label of the answer, left open. How forms, documents and input become messages within a token
budget is in `prompts.py`.
"""

from dataclasses import dataclass
from typing import NamedTuple


class Line(NamedTuple):
    """One labelled line of an entry: the label, and the field of the document that fills it."""

    label: str
    field: str


@dataclass(frozen=True)
class Form:
    """The wording of a task. `{who}` in `lead` becomes the author, or the author and similar ones."""

    system: str  # role, and what the answer consists of
    lead: str  # introduces the history
    lines: tuple[Line, ...]  # of an entry
    ask: str  # after the history, before the input
    cue: str  # the open label at the end
    main: str = ""  # field that Document.text replaces when it is missing; empty: of the first line


_HEADLINE = Form(
    system="You write news headlines the way one particular author does. Reply with the headline only.",
    lead="Articles and the headlines that {who} gave them:",
    lines=(Line("article", "text"), Line("headline", "title")),
    ask="Now the same author needs one more headline, set in the same manner.",
    cue="headline:",
)

_QUESTION = Form(
    system="You answer questions. Reply with the answer only, in as few words as possible.",
    lead="Passages that may help:",
    lines=(Line("passage", "text"),),
    ask="Answer the question.",
    cue="answer:",
)

FORMS: dict[str, Form] = {
    "lamp_1": Form(
        system="You know which works an author tends to cite. Reply with [1] or [2] only.",
        lead="Papers by {who}:",
        lines=(Line("title", "title"),),
        ask="Choose the reference that suits this author better.",
        cue="answer:",
    ),
    "lamp_2": Form(
        system="You tag films the way one particular viewer does. Reply with one tag from the list only.",
        lead="Films and the tags that {who} gave them:",
        lines=(Line("description", "description"), Line("tag", "tag")),
        ask="Now tag one more film as this viewer would.",
        cue="tag:",
    ),
    "lamp_3": Form(
        system="You predict the ratings of one particular reviewer. Reply with one digit from 1 to 5 only.",
        lead="Reviews and the scores that {who} gave with them:",
        lines=(Line("review", "text"), Line("score", "score")),
        ask="Now score one more review by this reviewer.",
        cue="score:",
    ),
    "lamp_4": _HEADLINE,
    "synthetic": _HEADLINE,
    "lamp_5": Form(
        system="You title research papers the way one particular scholar does. Reply with the title only.",
        lead="Abstracts and the titles that {who} gave them:",
        lines=(Line("abstract", "abstract"), Line("title", "title")),
        ask="Now the same scholar needs one more title, worded in the same manner.",
        cue="title:",
    ),
    "lamp_7": Form(
        system="You rephrase tweets in the voice of one particular person. Reply with the tweet only.",
        lead="Tweets by {who}:",
        lines=(Line("tweet", "text"),),
        ask="Now put one more tweet into this person's voice.",
        cue="tweet:",
    ),
    "longlamp_abstract": Form(
        system="You write paper abstracts the way one particular scholar does. Reply with the abstract only.",
        lead="Titles and abstracts of papers by {who}:",
        lines=(Line("title", "title"), Line("abstract", "abstract")),
        ask="Now write one more abstract in the same manner.",
        cue="abstract:",
        main="abstract",
    ),
    "longlamp_review": Form(
        system="You write product reviews the way one particular customer does. Reply with the review only.",
        lead="Products and the reviews that {who} wrote of them:",
        lines=(
            Line("product", "description"),
            Line("rating", "overall"),
            Line("summary", "summary"),
            Line("review", "reviewText"),
        ),
        ask="Now write one more review in the same manner.",
        cue="review:",
        main="reviewText",
    ),
    "longlamp_topic": Form(
        system="You write forum posts the way one particular member does. Reply with the post only.",
        lead="Summaries and full posts by {who}:",
        lines=(Line("summary", "summary"), Line("post", "content")),
        ask="Now write one more post in the same manner.",
        cue="post:",
        main="content",
    ),
    "personabench": Form(
        system="You answer questions about a person from that person's records. Reply with the answer only.",
        lead="Records of {who}:",
        lines=(Line("date", "date"), Line("record", "text")),
        ask="Answer from these records, in as few words as possible.",
        cue="answer:",
        main="text",
    ),
    "longmemeval": Form(
        system="You answer a user's question from earlier conversations. Reply with the answer only.",
        lead="Earlier conversations with {who}:",
        lines=(Line("date", "date"), Line("conversation", "text")),
        ask="Answer from these conversations, in as few words as possible.",
        cue="answer:",
        main="text",
    ),
    **dict.fromkeys(("nq_open", "trivia_qa", "squad", "web_questions"), _QUESTION),
}
