"""A verdict in words and tables: the answer first. No sentence says more than an interval does."""

from collections.abc import Sequence

from pbr_jax.checking.rounds import ALIKE, CHOSEN, NOTHING, OTHERS
from pbr_jax.checking.verdict import Group, Measure, Verdict
from pbr_jax.eval.significance import FEWEST, Difference

_UNITS = {"target_nll": "nats a token of what the user wrote", "target_bpb": "bits a byte"}
_NAMES = {
    NOTHING: "no documents",
    OTHERS: "other users', at random",
    ALIKE: "other users', by words (BM25)",
    "random": "own, at random",
    "recency": "own, the newest",
    "bm25": "own, by words (BM25)",
    "dense": "own, by meaning (dense)",
    "fused": "own, by both (fused)",
}
_WIDE = 25  # characters of a drawn interval


def told(found: Verdict) -> str:
    """The page: verdict, table, for whom, what to do."""
    parts = [
        f"# Does the own history help?\n\n{headline(found)}",
        _table(found),
        *([_measures(found.measures)] if found.measures else []),
        *(_groups(title, some) for title, some in found.groups.items()),
        *([_whom(found)] if found.groups else []),
        _retriever(found),
        f"What to do next: {_next(found)}",
        *found.notes,
    ]
    return "\n\n".join(parts) + "\n"


def sentences(found: Verdict) -> list[str]:
    """The verdict without its tables, for the report."""
    return [headline(found).replace("**", ""), _retriever(found), f"What to do next: {_next(found)}"]


def headline(found: Verdict) -> str:
    """What can be said, in two or three sentences."""
    unit = _UNITS.get(found.measure, found.measure)
    size = (
        f"{_shown(found.gains[CHOSEN])} {unit} against no documents, {_shown(found.beyond[CHOSEN])} against "
        f"other users' documents at random, {_shown(found.alike)} against other users' documents chosen alike"
    )
    basis = f"{found.questions} questions of {found.users} users, 95 % intervals; more is better"
    if found.answer == "helps":
        return f"**Yes.** The own history helps: {size} ({basis})."
    if found.answer == "helps_like_any":
        return (
            f"**Not as such.** Documents help, but the own history is not shown to help beyond other users' "
            f"documents: {size} ({basis})."
        )
    if found.answer == "harms":
        return f"**No.** With the own history the model does worse: {size} ({basis})."
    if found.users < FEWEST:
        return (
            f"**It cannot be told** from {found.users} users: at least {FEWEST} are needed. Measured was "
            f"{size} ({basis}), which may be these users' alone."
        )
    more = f" About {found.needed:,} questions would tell a difference of this size." if found.needed else ""
    return f"**It cannot be told** yet: {size} ({basis}).{more}"


def _shown(one: Difference) -> str:
    return f"{one.value:+.3f} [{one.low:+.3f}, {one.high:+.3f}]"


def _table(found: Verdict) -> str:
    lines = [
        f"| prompt | {found.measure} | gain over no documents | over others' at random | tokens | "
        "ms to find |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, value in found.values.items():
        gain = _shown(found.gains[name]) if name in found.gains else "–"
        beyond = _shown(found.beyond[name]) if name in found.beyond else "–"
        lines.append(
            f"| {_NAMES.get(name, name)} | {value:.3f} | {gain} | {beyond} | {found.tokens[name]:.0f} | "
            f"{found.milliseconds[name]:.1f} |"
        )
    return "\n".join(lines)


def _measures(some: Sequence[Measure]) -> str:
    lines = [
        f"| measure | questions | no documents | {_NAMES[CHOSEN]} | gain | gain over others' chosen alike |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {one.name} | {one.questions} | {one.nothing:.3f} | {one.chosen:.3f} | {_shown(one.gain)} | "
        f"{_shown(one.alike)} |"
        for one in some
    ]
    return "\n".join(lines)


def _groups(title: str, some: Sequence[Group]) -> str:
    ends = [0.0, *(end for one in some for end in (one.gain.low, one.gain.high))]
    lines = [
        f"| {title} | questions | users | gain of {_NAMES[CHOSEN]} | {min(ends):+.2f} to {max(ends):+.2f} |",
        "| --- | ---: | ---: | ---: | --- |",
    ]
    for one in some:
        if one.users < FEWEST:
            lines.append(f"| {one.name} | {one.questions} | {one.users} | too few users | |")
            continue
        drawn = _drawn(one.gain, min(ends), max(ends))
        lines.append(f"| {one.name} | {one.questions} | {one.users} | {_shown(one.gain)} | `{drawn}` |")
    return "\n".join(lines)


def _drawn(one: Difference, lowest: float, highest: float) -> str:
    """An interval between two ends, with the place of zero."""

    def place(value: float) -> int:
        return round((value - lowest) / (highest - lowest) * (_WIDE - 1)) if highest > lowest else 0

    low, high = place(one.low), place(one.high)
    cells = ["─" if low <= at <= high else " " for at in range(_WIDE)]
    cells[place(0.0)] = "│"
    cells[place(one.value)] = "•"
    return "".join(cells)


def _whom(found: Verdict) -> str:
    """The groups where a gain is shown. Shown in one and not in another is no difference of the two."""
    every = [(title, one) for title, some in found.groups.items() for one in some]
    helped = [f"{title} {one.name}" for title, one in every if one.shown]
    if not helped:
        return f"For whom: in no group of its own is a gain shown ({len(every)} groups)."
    return (
        f"For whom: a gain is shown for {'; '.join(helped)}. Each interval is of its group alone, and of "
        "many groups some exclude zero by chance; a gain that is shown in one group and not in another does "
        "not show that the two differ."
    )


def _retriever(found: Verdict) -> str:
    names = [_NAMES.get(name, name) for name in found.best]
    if len(names) == 1:
        return f"Which documents: {names[0]}; it is better than each other way that was tried."
    cheapest = min(found.best, key=lambda name: found.milliseconds[name])
    return (
        f"Which documents: {'; '.join(names)} cannot be distinguished here. {_NAMES[cheapest]} takes the "
        "least time among them: take that."
    )


def _next(found: Verdict) -> str:
    if found.users < FEWEST:
        return f"collect at least {FEWEST} users, better 50, and check again."
    if found.answer == "helps":
        return (
            "run the best rows on all questions with the model that you will use, and read some answers "
            "(pbr-jax examples)."
        )
    if found.answer == "harms":
        return "look at what was shown (pbr-jax examples), then try fewer documents or a larger model."
    if found.answer == "helps_like_any":
        return (
            "show a few fixed examples of the task instead, which costs no search and nobody's privacy, and "
            "compare (pbr-jax run)."
        )
    return "give it more minutes or more questions, or a larger model, which may use a history better."
