"""A verdict in words and tables: the answer first. No sentence says more than an interval does."""

from collections.abc import Sequence

from pbr_jax.checking.rounds import CHOSEN, NOTHING, OTHERS
from pbr_jax.checking.verdict import Group, Verdict
from pbr_jax.eval.significance import FEWEST, Difference

_UNITS = {"target_nll": "nats a token of what the user wrote", "target_bpb": "bits a byte"}
_NAMES = {
    NOTHING: "no documents",
    OTHERS: "other users' documents",
    "random": "own, by lot",
    "recency": "own, the newest",
    "bm25": "own, by words (BM25)",
    "dense": "own, by meaning (dense)",
}


def told(found: Verdict) -> str:
    """The page: verdict, table, for whom, what to do."""
    parts = [
        f"# Does the own history help?\n\n{headline(found)}",
        _table(found),
        *(_groups(title, some) for title, some in found.groups.items()),
        _retriever(found),
        f"What to do next: {_next(found)}",
        *found.notes,
    ]
    return "\n\n".join(parts) + "\n"


def headline(found: Verdict) -> str:
    """What can be said, in two or three sentences."""
    unit = _UNITS.get(found.measure, found.measure)
    gain, beyond = found.gains[CHOSEN], found.beyond[CHOSEN]
    size = f"{_shown(gain)} {unit} against no documents, {_shown(beyond)} against other users' documents"
    basis = f"{found.questions} questions of {found.users} users, 95 % intervals"
    if found.answer == "helps":
        return f"**Yes.** The own history helps: {size} ({basis}; more is better)."
    if found.answer == "helps_like_any":
        return (
            f"**Not as such.** Documents help, but other users' do as much: {size} ({basis}; more is "
            "better). So it cannot be said that the own history matters beyond showing examples of the task."
        )
    if found.answer == "harms":
        return f"**No.** With the own history the model does worse: {size} ({basis}; more is better)."
    if found.users < FEWEST:
        return (
            f"**It cannot be told** from {found.users} users: at least {FEWEST} are needed. Measured was "
            f"{size} ({basis}), which may be these users' alone."
        )
    more = f" About {found.needed:,} questions would tell a difference of this size." if found.needed else ""
    return f"**It cannot be told** yet: {size} ({basis}; more is better).{more}"


def _shown(one: Difference) -> str:
    return f"{one.value:+.3f} [{one.low:+.3f}, {one.high:+.3f}]"


def _table(found: Verdict) -> str:
    lines = [
        f"| prompt | {found.measure} | gain over no documents | over others' | tokens | ms to find |",
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


def _groups(title: str, some: Sequence[Group]) -> str:
    lines = [f"| {title} | questions | gain of {_NAMES[CHOSEN]} |", "| --- | ---: | ---: |"]
    lines += [f"| {one.name} | {one.questions} | {_shown(one.gain)} |" for one in some]
    return "\n".join(lines)


def _retriever(found: Verdict) -> str:
    names = [_NAMES.get(name, name) for name in found.best]
    if len(names) == 1:
        return f"Which documents: {names[0]}; it is surely better than the other ways that were tried."
    cheapest = min(found.best, key=lambda name: found.milliseconds[name])
    return (
        f"Which documents: {', '.join(names)} cannot be distinguished here. {_NAMES[cheapest]} takes the "
        "least time among them."
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
        return "show a few fixed examples of the task instead, which costs no search and nobody's privacy."
    return "give it more minutes or more questions, or a larger model, which may use a history better."
