"""A verdict in words and tables: the answer first. No sentence says more than an interval does."""

import shlex
from collections.abc import Sequence

from pbr_jax.base.tables import Table
from pbr_jax.checking.rounds import ALIKE, CHOSEN, NAMES, NOTHING, OTHERS
from pbr_jax.checking.verdict import Group, Measure, Verdict, needed
from pbr_jax.eval.render import Block, Code, Forest, Interval, Page, Paragraph, markdown
from pbr_jax.eval.significance import FEWEST, Difference

_UNITS = {"target_nll": "nats a token of what the user wrote", "target_bpb": "bits a byte"}
_READ = 5  # answers to read before a decision


def title(found: Verdict) -> str:
    return f"Does the history help? {found.data}".strip()


def told(found: Verdict) -> str:
    """The verdict as a page in Markdown."""
    return markdown(Page(title(found), blocks(found)))


def blocks(found: Verdict) -> list[Block]:
    """The verdict: what can be said, the table, for whom, what to do."""
    return [
        Paragraph(headline(found)),
        *map(Paragraph, (*_but(found), *_copies(found))),
        _table(found),
        *([_measures(found.measures)] if found.measures else []),
        *(_groups(title, some) for title, some in found.groups.items() if some),
        Paragraph(_whom(found)),
        Paragraph(_retriever(found)),
        *_next(found),
        *map(Paragraph, found.notes),
    ]


def headline(found: Verdict) -> str:
    """What can be said, in two or three sentences."""
    unit = _UNITS.get(found.measure, found.measure)
    size = (
        f"{_shown(found.gains[CHOSEN])} {unit} over {NAMES[NOTHING]}; {_shown(found.beyond[CHOSEN])} over "
        f"{NAMES[OTHERS]}; {_shown(found.alike)} over {NAMES[ALIKE]}"
    )
    several = "with 95 % intervals" if found.users > 1 else "which have no interval"
    sample = f"{_count(found.questions, 'question')} of {_count(found.users, 'user')}"
    basis = f"Measured on {sample}, {several}; more is better."
    if found.answer == "helps":
        return f"Yes. The own history helps: {size}. {basis}"
    if found.answer == "helps_like_any":
        return (
            f"Not as such. Documents help, but the own history is not shown to help beyond other users' "
            f"documents: {size}. {basis}"
        )
    if found.answer == "harms":
        return f"No. With the own history the model does worse: {size}. {basis}"
    if found.users < FEWEST:
        return (
            f"It cannot be told from {_count(found.users, 'user')}: at least {FEWEST} are needed. With these "
            f"the gain was {size}. It may not hold for other users. {basis}"
        )
    more = f" About {found.needed:,} questions would tell a difference of this size." if found.needed else ""
    return f"It cannot be told yet: {size}. {basis}{more}"


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
        found.measure,
        "gain over no documents",
        f"gain over {NAMES[OTHERS]}",
        "tokens",
        "ms to find",
    ]
    lines = []
    for name, value in found.values.items():
        gain = _shown(found.gains[name]) if name in found.gains else "–"
        beyond = _shown(found.beyond[name]) if name in found.beyond else "–"
        spent = f"{found.tokens[name]:.0f}", f"{found.milliseconds[name]:.1f}"
        lines.append([NAMES.get(name, name), f"{value:.3f}", gain, beyond, *spent])
    return Table("What was shown, what it gave, and what it cost a question", header, lines)


def _measures(some: Sequence[Measure]) -> Table:
    header = [
        "measure",
        "questions",
        "no documents",
        NAMES[CHOSEN],
        "gain",
        f"gain over {NAMES[ALIKE]}",
    ]
    lines = [
        [
            one.name,
            str(one.questions),
            f"{one.nothing:.3f}",
            f"{one.chosen:.3f}",
            _shown(one.gain),
            _shown(one.alike),
        ]
        for one in some
    ]
    return Table("The same in other measures; a gain is turned so that more is better", header, lines)


def _groups(title: str, some: Sequence[Group]) -> Forest:
    lines = [([one.name, str(one.questions), str(one.users)], _interval(one)) for one in some]
    caption = f"Gain of {NAMES[CHOSEN]} over no documents, by {title}"
    return Forest(caption, [title, "questions", "users", "gain"], lines, without="too few users")


def _interval(one: Group) -> Interval | None:
    gain = one.gain
    return None if one.users < FEWEST else Interval(gain.value, gain.low, gain.high)


def _whom(found: Verdict) -> str:
    """The groups where a gain is shown. Shown in one and not in another is no difference of the two."""
    if not any(found.groups.values()):
        return (
            "For whom: the questions are too few, or their histories too alike, to be shown in groups by "
            "length and age of the history, or by category."
        )
    every = [(title, one) for title, some in found.groups.items() for one in some]
    helped = [f"{title} {one.name}" for title, one in every if one.shown]
    if not helped:
        return f"For whom: in no group of its own is a gain shown ({len(every)} groups)."
    return (
        f"For whom: a gain is shown for {'; '.join(helped)}. Do not compare groups: whether two of them "
        "differ was not tested, and of many intervals some exclude zero by chance."
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
    return "give it more minutes or more questions, or a larger model, which may use a history better."


def _open(found: Verdict) -> str:
    """What the intervals leave open where a gain over other users' documents is not shown."""
    control = found.control
    if control.high <= 0:
        return ""
    size = needed(control, found.questions) if control.value > 0 else None
    many = f", and about {size:,} questions would tell one of the size that was measured" if size else ""
    return (
        f"a gain of up to {control.high:+.3f} over other users' documents is not excluded{many}; take more "
        "users or minutes before the own history is dropped. Or "
    )
