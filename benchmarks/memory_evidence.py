"""How much of the evidence a reader would see in the first words that a system finds: LoCoMo, REALTALK.

    python benchmarks/memory_evidence.py locomo10.json runs/systems/*
    python benchmarks/memory_evidence.py REALTALK runs/realtalk/*

For each run folder it prints the mean share of five-word sequences of a question's evidence turns that stand
in the first 400 words of what was ranked, and the paired difference from the run of `memory`, if there is
one, with intervals over conversations. The first argument is a file of LoCoMo or REALTALK's folder.
`--sample 20 FILE OUT` writes LoCoMo with 20 questions of each conversation.
"""

import json
import random
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


def evidence(path: Path) -> dict[str, list[list[str]]]:
    """The words of the evidence turns of each question, by its id."""
    if path.is_dir():
        talks = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in path.glob("Chat_*.json")}
    else:
        talks = {talk["sample_id"]: talk for talk in json.loads(path.read_text(encoding="utf-8"))}
    known = {}
    for user, talk in talks.items():
        of = talk.get("conversation", talk)
        turns = [turn for k, v in of.items() if re.fullmatch(r"session_\d+", k) for turn in v]
        said = {
            place(turn["dia_id"]): words(turn.get("clean_text") or turn.get("text") or "") for turn in turns
        }
        for number, asked in enumerate(talk["qa"]):
            ids = [id for one in asked.get("evidence", ()) for id in re.findall(r"D:?\d+[:;]\d+", str(one))]
            known[f"{user}_{number}"] = [said[place(id)] for id in ids if said.get(place(id))]
    return known


def place(id: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", id)[:2]))


def sample(n: int, path: Path, out: Path) -> None:
    """Writes a file of LoCoMo with some questions of each conversation that name evidence."""
    draw, talks = random.Random(0), json.loads(path.read_text(encoding="utf-8"))
    for talk in talks:
        talk["qa"] = draw.sample([asked for asked in talk["qa"] if asked.get("evidence")], n)
    out.write_text(json.dumps(talks), encoding="utf-8")


def share(shown: list[str], turns: list[list[str]]) -> float:
    covers = []
    for turn in turns:
        n = min(SEQUENCE, len(turn))
        own = sequences(turn, n)
        covers.append(len(own & sequences(shown, n)) / len(own))
    return float(np.mean(covers)) if covers else float("nan")


def main(data: str, *folders: str) -> None:
    known, base = evidence(Path(data)), list[float]()
    results = [path for folder in folders if (path := Path(folder) / "results.json").is_file()]
    systems = {path.parent: json.loads(path.read_text())["system"] for path in results}
    for folder, system in sorted(systems.items(), key=lambda pair: pair[1] != "memory"):
        lines = [
            (folder / name).read_text(encoding="utf-8").split("\n")
            for name in ("predictions.jsonl", "texts.jsonl")
        ]
        users, shares = [], []
        for told, text in zip(*lines, strict=True):
            if told and text:
                user, seen = json.loads(told)["user_id"], json.loads(text)
                shown = " ".join(one["text"] for one in seen["documents"]).split()[:WORDS]
                shares.append(share(words(" ".join(shown)), known[seen["id"]]))
                users.append(user)
        print(f"{system}: {shown_with_interval(shares, users)}")
        if system == "memory":
            base = shares
        elif base:
            less = [own - other for own, other in zip(shares, base, strict=True)]
            print(f"    less memory: {shown_with_interval(less, users)}")


def shown_with_interval(values: list[float], users: list[str]) -> str:
    rows = np.flatnonzero(~np.isnan(values))
    column = scores("difference", np.array(values))
    ((low, high),) = intervals_of([column], users, rows, resamples=1000, confidence=0.95, seed=0).values()
    return f"{np.nanmean(values):.3f} [{low:.3f}, {high:.3f}]"


if __name__ == "__main__":
    if sys.argv[1] == "--sample":
        sample(int(sys.argv[2]), *map(Path, sys.argv[3:5]))
    else:
        main(*sys.argv[1:])
