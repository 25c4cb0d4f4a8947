"""A verdict in words and tables: the answer first. No sentence says more than an interval does."""

import shlex
from collections.abc import Sequence
from statistics import NormalDist

from pbr_jax.base.tables import Table
from pbr_jax.checking.rounds import CHOSEN, NAMES, NOTHING, OTHER
from pbr_jax.checking.verdict import Group, Measure, Text, Verdict, needed
from pbr_jax.eval.render import Block, Code, Fold, Forest, Heading, Interval, Page, Paragraph, markdown
from pbr_jax.eval.significance import FEWEST, Difference

_UNITS = {"target_nll": "nats a token of what the user wrote", "target_bpb": "bits a byte"}
_READ = 5  # answers to read before a decision


def title(found: Verdict) -> str:
    return f"Does the history help? {found.data}".strip()


def told(found: Verdict) -> str:
    """The verdict as a page in Markdown."""
    return markdown(Page(title(found), blocks(found)))


def blocks(found: Verdict) -> list[Block]:
    """The verdict: the answer, the comparison that decides, its cost, some texts. The rest is folded."""
    more: list[Block] = [
        _table(found),
        *([_measures(found.measures, found.confidence)] if found.measures else []),
        *(_groups(title, some) for title, some in found.groups.items() if some),
        Paragraph(_retriever(found)),
        *map(Paragraph, found.notes),
    ]
    return [
        Heading(answered(found)),
        Paragraph(headline(found)),
        *map(Paragraph, (*_cautions(found), *_but(found), *_copies(found))),
        _decisive(found),
        _cost(found),
        *_texts(found.texts),
        Paragraph(_whom(found)),
        *_next(found),
        Fold("All rows, measures and groups", more),
    ]


def answered(found: Verdict) -> str:
    """The answer in a few words."""
    if found.users < FEWEST:
        return f"It cannot be told from {_count(found.users, 'user')}: at least {FEWEST} are needed"
    return {
        "helps": "Yes. The own history helps",
        "helps_like_any": "Not as such. Documents help, but another user's help as much",
        "harms": "No. With the own history the model does worse",
        "cannot_tell": "It cannot be told yet",
    }[found.answer]


def headline(found: Verdict) -> str:
    """The numbers behind the answer."""
    unit = _UNITS.get(found.measure, found.measure)
    several = f"with {_percent(found.confidence)} intervals" if found.users > 1 else "which have no interval"
    sample = f"{_count(found.questions, 'question')} of {_count(found.users, 'user')}"
    text = (
        f"Own documents give {_shown(found.beyond[CHOSEN])} {unit} over documents of one other user and "
        f"{_shown(found.gains[CHOSEN])} over {NAMES[NOTHING]}. Measured on {sample}, {several}; more is "
        "better."
    )
    if found.users < FEWEST:
        return f"{text} This may not hold for other users."
    if found.answer == "cannot_tell" and found.needed:
        text += f" About {found.needed:,} questions would decide it, if the differences are as large as here."
    return text


def _cautions(found: Verdict) -> list[str]:
    """What a reader must know too: users without a history, earlier checks, the weight of one user."""
    said = []
    cold, total = found.cold
    if cold:
        share = (total - cold) / total
        said.append(
            f"{cold:,} of {total:,} questions come from users without a history yet. They were not asked: "
            f"their prompt has no own documents. Over all questions the gain is {_percent(share)} of the one "
            "above."
        )
    if found.look.number > 1:
        said.append(
            f"This is check {found.look.number} of these data. Each further check takes wider intervals "
            f"({_percent(found.confidence)} now), since repeated checks find a gain by chance more often. "
            f"The count is in {found.look.file}."
        )
    if found.top is not None and found.top > 0.5 and found.users > 1:
        said.append(
            f"One user has {_percent(found.top)} of the gain over another user's documents: the intervals "
            "are then too narrow."
        )
    return said


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _decisive(found: Verdict) -> Forest:
    """The gains over one other user's documents, all on one scale."""
    lines = [
        ([NAMES.get(name, name)], None if found.users < FEWEST else Interval(one.value, one.low, one.high))
        for name, one in sorted(found.beyond.items(), key=lambda item: item[0] != CHOSEN)
        if name != NOTHING
    ]
    caption = f"Gain over {NAMES[OTHER]}: right of zero, the row is better"
    return Forest(caption, ["documents in the prompt", "gain"], lines, without="too few users")


def _cost(found: Verdict) -> Table:
    """What a question costs without and with own documents."""
    header, rows = ["cost of a question", "prompt tokens", "ms to find"], (NOTHING, CHOSEN)
    lines = [[NAMES[name], f"{found.tokens[name]:.0f}", f"{found.milliseconds[name]:.1f}"] for name in rows]
    if found.price is not None:
        header.append("price of 1,000 questions")
        for line, name in zip(lines, rows, strict=True):
            line.append(f"{found.price[0] * found.tokens[name] / 1000:.3g} + answers")
    return Table("What it costs", header, lines)


def _texts(texts: Sequence[Text]) -> list[Block]:
    """The questions with the largest gains and losses."""
    tables: list[Block] = []
    for title, some in (
        ("Where the own history helped most", [one for one in texts if one.gain > 0]),
        ("Where it hurt most", [one for one in texts if one.gain < 0]),
    ):
        lines = [[f"{one.gain:+.2f}", one.question, one.document, one.target] for one in some]
        header = ["gain over one other user's", "question", "own document shown first", "what the user wrote"]
        tables += [Table(title, header, lines)] if lines else []
    return tables


def _but(found: Verdict) -> list[str]:
    """What speaks against a yes: measures in which the own history is shown to do worse."""
    worse = [one for one in found.measures if one.worse]
    if found.answer not in ("helps", "helps_like_any") or not worse:
        return []
    named = "; ".join(f"{one.name} {_shown(one.gain)} ({one.questions} questions)" for one in worse)
    return [
        f"But by other measures the model does worse with the own history than without documents: {named}. "
        "Read some answers before you decide which measure is the one that counts."
    ]


def _copies(found: Verdict) -> list[str]:
    """How much of the gain may be copying."""
    if found.copies is None:
        return []
    near = found.copies.questions
    told = (
        f"Copying: for {near} of {_count(found.questions, 'question')} an earlier document of the user holds "
        "at least .6 of the words of the answer."
    )
    if near in (0, found.questions):
        return [told]
    gain = found.copies.gain
    few = f"The others are of fewer than {FEWEST} users, so their gain is not shown."
    return [f"{told} {few}" if gain is None else f"{told} On the others the gain is {_shown(gain)}."]


def _shown(one: Difference) -> str:
    """The value, and its interval where it has one."""
    value, low, high = (f"{round(number, 3) + 0.0:+.3f}" for number in (one.value, one.low, one.high))
    return f"{value} [{low}, {high}]" if one.low < one.high else value


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _table(found: Verdict) -> Table:
    header = [
        "prompt",
        "gain over one other user's",
        "gain over no documents",
        found.measure,
        "tokens",
        "ms to find",
    ]
    lines = []
    for name, value in found.values.items():
        gain = _shown(found.gains[name]) if name in found.gains else "–"
        beyond = _shown(found.beyond[name]) if name in found.beyond else "–"
        spent = f"{found.tokens[name]:.0f}", f"{found.milliseconds[name]:.1f}"
        lines.append([NAMES.get(name, name), beyond, gain, f"{value:.3f}", *spent])
    return Table("What was shown, what it gave, and what it cost a question", header, lines)


def _measures(some: Sequence[Measure], confidence: float) -> Table:
    header = ["measure", "gain over one other user's", "gain over no documents"]
    lines = []
    for one in some:
        rest = f"{one.nothing:.3f}", f"{one.chosen:.3f}", str(one.questions)
        lines.append([one.name, _shown(one.beyond), _shown(one.gain), *rest])
    header += ["no documents", NAMES[CHOSEN], "questions"]
    title = f"The same in other measures, turned so that more is better, {_percent(confidence)} intervals"
    return Table(title, header, lines)


def _groups(title: str, some: Sequence[Group]) -> Forest:
    lines = [([one.name, str(one.questions), str(one.users)], _interval(one)) for one in some]
    caption = f"Gain of {NAMES[CHOSEN]} over one other user's documents, by {title}"
    return Forest(caption, [title, "questions", "users", "gain"], lines, without="too few users")


def _interval(one: Group) -> Interval | None:
    gain = one.gain
    return None if one.users < FEWEST else Interval(gain.value, gain.low, gain.high)


def _whom(found: Verdict) -> str:
    """The groups where a gain over one other user's documents is shown after correction."""
    if not any(found.groups.values()):
        return (
            "For whom: the questions are too few, or their histories too alike, to be shown in groups by "
            "length and age of the history, or by category."
        )
    every = [(title, one) for title, some in found.groups.items() for one in some]
    helped = [f"{title} {one.name}" for title, one in every if one.shown]
    top = "" if found.top is None else f" The user who gains most has {_percent(found.top)} of the gain."
    if not helped:
        return f"For whom: a gain is shown in no group by itself ({len(every)} groups, Holm-corrected).{top}"
    return (
        f"For whom: a gain is shown for {'; '.join(helped)} ({len(every)} groups, Holm-corrected). "
        f"Whether two groups differ was not tested.{top}"
    )


def _retriever(found: Verdict) -> str:
    names = [NAMES.get(name, name) for name in found.best]
    if len(names) == 1:
        return f"Which documents: {names[0]}; it is better than each other way that was tried."
    random = NAMES["random"] in names
    chance = " Nothing was shown to be better than own documents at random." if random else ""
    return (
        f"Which documents: {'; '.join(names)} cannot be distinguished here.{chance} Take "
        f"{NAMES[found.recommended]}{_REASONS.get(found.recommended, ', the best value')}."
    )


_REASONS = {
    CHOSEN: ": the answer above was measured with it, and it needs no text encoder. Compare it with "
    f"{NAMES['fused']} again when histories have grown",
    "fused": ", which searches by words and by meaning",
}
"""Why a row is taken where several cannot be distinguished."""


def _next(found: Verdict) -> list[Block]:
    """What to do, with commands to copy."""
    blocks: list[Block] = [Paragraph(f"What to do next: {_advice(found)}")]
    if found.users < FEWEST or not found.folder:
        return blocks
    folder, flags = shlex.quote(found.folder), shlex.join(found.flags)
    name = found.recommended
    read = f"pbr-jax examples {folder}/{name} {folder}/{NOTHING} --count {_READ}"
    if found.answer == "helps":
        read += f"\npbr-jax run {name} {flags} --out runs/{shlex.quote(found.data)}-{name}"
    blocks.append(Code(read))
    if found.measure in ("target_nll", "target_bpb"):
        blocks.append(Paragraph(_CAUTION + _edit(found)))
    return blocks


_CAUTION = (
    "A good target_nll does not mean good answers: it scores each token of what the user wrote, given the "
    f"true tokens before it. Read {_READ} answers before you decide."
)


def _edit(found: Verdict) -> str:
    flags = dict(zip(found.flags[::2], found.flags[1::2], strict=False))
    if flags.get("--benchmark.name") != "own":
        return ""
    file = f"{flags.get('--benchmark.root', '')}/task.toml"
    return f" Where they are odd, edit the lines system and instruction of {file}, and check again."


def _advice(found: Verdict) -> str:
    if found.users < FEWEST:
        return f"collect at least {FEWEST} users, better 50, and check again."
    if found.answer == "helps":
        return (
            f"read {_READ} answers with and without documents, then run {NAMES[found.recommended]} on all "
            "questions with the model that you will use (a folder in place of FOLDER)."
        )
    if found.answer == "harms":
        return "look at what was shown, then try fewer documents or a larger model."
    if found.answer == "helps_like_any":
        return _open(found) + (
            "show a few fixed examples of the task instead, which costs no search and nobody's privacy, and "
            "compare (pbr-jax run). What was shown:"
        )
    return (
        "give it more minutes or more questions, or a larger model, which may use a history better. "
        + _further(found)
    )


def _further(found: Verdict) -> str:
    """What another check of the same data costs."""
    following = found.look._replace(number=2).confidence(found.confidence)
    wider = NormalDist().inv_cdf((1 + following) / 2) / NormalDist().inv_cdf((1 + found.confidence) / 2) - 1
    return (
        f"Another check of these data will have {_percent(following)} intervals, about {_percent(wider)} "
        "wider on as many questions."
    )


def _open(found: Verdict) -> str:
    """What the interval leaves open where a gain over one other user's documents is not shown."""
    control = found.beyond[CHOSEN]
    if control.high <= 0:
        return ""
    size = needed(control, found.questions) if control.value > 0 else None
    many = f", and about {size:,} questions would show one of the size that was measured" if size else ""
    return (
        f"a gain of up to {control.high:+.3f} over another user's documents is not excluded{many}; take more "
        f"users or minutes before the own history is dropped. {_further(found)} Or "
    )
