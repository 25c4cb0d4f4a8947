"""How much of the evidence a reader would see in the first words that a system finds, on LoCoMo.

    python benchmarks/memory_evidence.py locomo10.json runs/systems/*

For each run folder it prints the mean share of five-word sequences of a question's evidence turns that stand
in the first 400 words of what was ranked, with an interval over conversations.
"""

import json
import re
import sys
from pathlib import Path

import numpy as np

from pbr_jax.eval.evaluate import intervals_of, scores

WORDS, SEQUENCE = 400, 5


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def sequences(of: list[str], n: int) -> set[tuple[str, ...]]:
    return {tuple(of[i : i + n]) for i in range(max(len(of) - n + 1, 1))}


def evidence(path: Path) -> dict[tuple[str, str], list[list[str]]]:
    """The words of the evidence turns of each question, by conversation and text of the question."""
    found = {}
    for talk in json.loads(path.read_text(encoding="utf-8")):
        sessions = [v for k, v in talk["conversation"].items() if re.fullmatch(r"session_\d+", k)]
        said = {turn["dia_id"]: words(turn["text"]) for session in sessions for turn in session}
        for asked in talk["qa"]:
            ids = [id for one in asked.get("evidence", ()) for id in re.findall(r"D\d+:\d+", str(one))]
            key = talk["sample_id"], asked["question"].strip()
            found[key] = [said[id] for id in ids if said.get(id)]
    return found


def share(shown: list[str], turns: list[list[str]]) -> float:
    covers = []
    for turn in turns:
        n = min(SEQUENCE, len(turn))
        own = sequences(turn, n)
        covers.append(len(own & sequences(shown, n)) / len(own))
    return float(np.mean(covers)) if covers else float("nan")


def main(data: str, *folders: str) -> None:
    known = evidence(Path(data))
    for folder in filter(lambda path: (path / "results.json").is_file(), map(Path, folders)):
        system = json.loads((folder / "results.json").read_text())["system"]
        lines = [
            (folder / name).read_text(encoding="utf-8").split("\n")
            for name in ("predictions.jsonl", "texts.jsonl")
        ]
        users, shares = [], []
        for told, text in zip(*lines, strict=True):
            if told and text:
                user, seen = json.loads(told)["user_id"], json.loads(text)
                shown = " ".join(one["text"] for one in seen["documents"]).split()[:WORDS]
                shares.append(share(words(" ".join(shown)), known.get((user, seen["query"].strip()), [])))
                users.append(user)
        column = scores("evidence", np.array(shares))
        rows = np.flatnonzero(~np.isnan(shares))
        sure = intervals_of([column], users, rows, resamples=1000, confidence=0.95, seed=0)
        print(f"{system}: {np.nanmean(shares):.3f} [{sure['evidence'][0]:.3f}, {sure['evidence'][1]:.3f}]")


if __name__ == "__main__":
    main(*sys.argv[1:])
