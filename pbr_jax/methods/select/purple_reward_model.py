"""What profiles of a question are worth, guessed from the rewards of others that were drawn before.

The guess costs no prompt. It need not be right: the policy's gradient subtracts it from the rewards that
are known and adds back its expectation (`losses.controlled`), so a bad guess makes the gradient noisier, not
wrong. In further updates from the same rewards `losses.grpo` may clip the one and not the other.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from pbr_jax.base.files import open_private, write_text

Kind = Literal["additive", "pairwise"]
"""A profile is worth the sum over its records, or over its records and pairs of them."""

Profile = tuple[int, ...]
"""Places of candidates in the order of the prompt, which the guess does not look at."""

_RIDGE = 1.0  # variance of what records do not explain, over that of a record's (and pair's) worth


def predicted(
    known: Mapping[Profile, float], actions: Int[np.ndarray, "m k"], kind: Kind
) -> Float[np.ndarray, " m"]:
    """The guessed rewards of a question's profiles, up to a constant for those of a size; 0: none is known.

    Ridge regression on which records (and pairs of records) are in a profile, in closed form: two profiles
    with o records in common have the kernel o, or o + o (o - 1) / 2.

    Args:
      known: rewards by profile.
      actions: profiles; places of -1 are empty.
    """
    if not known:
        return np.zeros(len(actions), np.float32)
    width = 1 + max(int(actions.max(initial=0)), *(max(profile) for profile in known))
    seen, guessed = _indicators(known, width), _indicators(actions.tolist(), width)
    sizes, values = seen.sum(1), np.fromiter(known.values(), np.float64)
    for size in np.unique(sizes):  # profiles of other sizes are worth more or less for that alone
        values[sizes == size] -= values[sizes == size].mean()
    gram = _kernel(seen @ seen.T, kind) + _RIDGE * np.eye(len(seen))
    return (_kernel(guessed @ seen.T, kind) @ np.linalg.solve(gram, values)).astype(np.float32)


def _indicators(profiles: Sequence[Sequence[int]] | Mapping[Profile, float], width: int) -> np.ndarray:
    indicators = np.zeros((len(profiles), width))
    for row, profile in zip(indicators, profiles):
        row[[place for place in profile if place >= 0]] = 1
    return indicators


def _kernel(common: np.ndarray, kind: Kind) -> np.ndarray:
    return common if kind == "additive" else common + common * (common - 1) / 2


class Drawn:
    """The rewards that a training's steps were given, on disk: a step guesses from those of earlier ones.

    A training that goes on after a kill guesses from the same: what later steps left is dropped. Each process
    of several has a file of its own, and guesses from its own rewards.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._known: dict[int, dict[Profile, float]] | None = None

    def before(self, step: int) -> Mapping[int, Mapping[Profile, float]]:
        """By question, the rewards of the steps before this one; called before this step's `add`."""
        if self._known is None:
            lines = self._file.read_text(encoding="utf-8").splitlines(True) if self._file.is_file() else []
            whole = [(line, json.loads(line)) for line in lines if line.endswith("\n")]
            kept = [(line, record) for line, record in whole if record["step"] < step]
            write_text(self._file, "".join(line for line, _ in kept))
            self._known = defaultdict(dict)
            for _, record in kept:
                self._known[record["question"]][tuple(record["profile"])] = record["value"]
        return self._known

    def add(self, step: int, profiles: Sequence[tuple[int, Profile]], values: Sequence[float]) -> None:
        """The rewards of a step's profiles by question; known ones are not written again."""
        assert self._known is not None
        with open_private(self._file) as file:
            for (question, profile), value in zip(profiles, values, strict=True):
                if profile in self._known[question]:
                    continue
                self._known[question][profile] = value
                record = {"step": step, "question": question, "profile": profile, "value": value}
                file.write(json.dumps(record) + "\n")
