"""From data to result: pbr_jax beside the plain script that a user would write instead.

    python benchmarks/end_to_end.py dense --root LAMP_7_FOLDER --count 60
    python benchmarks/end_to_end.py memory --root LOCOMO_FOLDER
    python benchmarks/end_to_end.py rewards --root LAMP_7_FOLDER --count 16
    python benchmarks/end_to_end.py check --root LAMP_7_FOLDER --count 200

`dense`: the 4 nearest documents of each question, and log p(target | prompt). `memory`: the 10 best
sessions of each question, by BM25 of sessions and of passages and by vectors of passages.
`rewards`: 16 sets of 5 of the 20 nearest documents of each question, scored. `check`: each question
with its user's nearest documents, with those of another user and with none, scored. The plain
script is sentence-transformers, rank_bm25 and Hugging Face's model, with the same weights: it
encodes all texts at once, reads one prompt at a time, and asks for logits of the target alone.

Each run is a process of its own. "cold" has empty caches, "compiled" the programs that the cold run
compiled. Printed are wall seconds, CPU seconds (user and system) and peak memory of each, and the
plain script's CPU seconds divided by ours: medians over pairs, with the range. On a machine that
others use, only CPU seconds and memory mean something. The plain script's prompts have other words
than ours, so that the mean losses that both print agree roughly, not exactly.
"""

import argparse
import importlib
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
llm: Any = importlib.import_module("llm")  # benchmarks/llm.py: prompts, and the model in torch

SYSTEM = "You rephrase tweets in the voice of one particular person. Reply with the tweet only."
SHOWN, CANDIDATES, CHOSEN, SETS = 4, 20, 5, 16
WORDS = 60  # of a passage

Options = argparse.Namespace  # `root`, `count`, `encoder` and `model` of a job


# --- what a user would write instead -------------------------------------------------------------------


def located(name: str) -> Path:
    """The folder or file of a model, which both sides read."""
    from pbr_jax.models.pretrained import locate

    return locate(name)


def sentence_encoder(options: Options) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(located(options.encoder)), device="cpu")


def lamp(options: Options, split: str) -> list[tuple[str, list[str], str]]:
    """(question, texts of the user's history, target) of the first questions."""
    golds = json.loads((options.root / f"{split}_outputs.json").read_text())["golds"]
    targets = {one["id"]: one["output"] for one in golds}
    questions = json.loads((options.root / f"{split}_questions.json").read_text())[: options.count]
    return [(q["input"], [d["text"] for d in q["profile"]], targets[q["id"]]) for q in questions]


def nearest(asked: Sequence[tuple[str, list[str], str]], k: int, options: Options) -> list[list[str]]:
    """The documents of each user that are nearest to the question."""
    model = sentence_encoder(options)
    texts = list(dict.fromkeys(text for _, profile, _ in asked for text in profile))
    place = {text: i for i, text in enumerate(texts)}
    vectors = model.encode(texts, convert_to_numpy=True)
    queries = model.encode([question for question, _, _ in asked], convert_to_numpy=True)
    found = []
    for (_, profile, _), query in zip(asked, queries, strict=True):
        scores = vectors[[place[text] for text in profile]] @ query
        found.append([profile[i] for i in np.argsort(-scores)[:k]])
    return found


def losses(prompts: Iterable[tuple[str, Sequence[str], str]], options: Options) -> list[float]:
    """Nats per token of each target, after the question and the documents."""
    from transformers import AutoTokenizer

    path, pairs = located(options.model), []
    file = {"gguf_file": path.name} if path.is_file() else {}
    tokenizer: Any = AutoTokenizer.from_pretrained(path.parent if file else path, **file)
    for question, documents, target in prompts:
        shown = "".join(f"tweet: {text}\n" for text in documents)
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": shown + question}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        pairs.append([tokenizer(one, add_special_tokens=False)["input_ids"] for one in (text, target)])
    totals = llm.Peer(path, "float32").score(pairs, last=True)
    return [-total / len(second) for total, (_, second) in zip(totals, pairs, strict=True)]


def plain_dense(options: Options) -> str:
    asked = lamp(options, "dev")
    shown = nearest(asked, SHOWN, options)
    found = losses([(q, d, target) for (q, _, target), d in zip(asked, shown, strict=True)], options)
    return f"nats per token {np.mean(found):.3f}"


def plain_rewards(options: Options) -> str:
    asked, draw = lamp(options, "train"), random.Random(0)
    sets = [
        (q, draw.sample(documents, min(CHOSEN, len(documents))), target)
        for (q, _, target), documents in zip(asked, nearest(asked, CANDIDATES, options), strict=True)
        for _ in range(SETS)
    ]
    return f"nats per token {np.mean(losses(sets, options)):.3f}"


def plain_check(options: Options) -> str:
    asked = lamp(options, "dev")
    others = [(q, asked[i - 1][1], target) for i, (q, _, target) in enumerate(asked)]
    arms = [nearest(asked, SHOWN, options), nearest(others, SHOWN, options), [[]] * len(asked)]
    prompts = [(q, d, target) for arm in arms for (q, _, target), d in zip(asked, arm, strict=True)]
    own, other, none = np.split(np.array(losses(prompts, options)), 3)
    places = np.random.default_rng(0).integers(0, len(asked), (2000, len(asked)))
    low, high = np.quantile((other - own)[places].mean(axis=1), [0.025, 0.975])
    gains = f"own less none {np.mean(none - own):.3f}, own less another's {np.mean(other - own):.3f}"
    return f"{gains} ({low:.3f} to {high:.3f})"


def plain_memory(options: Options) -> str:
    from rank_bm25 import BM25Okapi

    def words(text: str) -> list[str]:
        return re.findall(r"\w+", text.lower())

    def scaled(scores: np.ndarray) -> np.ndarray:
        return (scores - scores.mean()) / (scores.std() or 1.0)

    model, recalls = sentence_encoder(options), list[float]()
    for conversation in json.loads((options.root / "locomo10.json").read_text()):
        talk = conversation["conversation"]
        names = [name for name in talk if re.fullmatch(r"session_\d+", name) and talk[name]]
        sessions = [" ".join(f"{turn['speaker']}: {turn['text']}" for turn in talk[name]) for name in names]
        pieces = [text.split() for text in sessions]
        passages = [
            (i, " ".join(piece[start : start + WORDS]))
            for i, piece in enumerate(pieces)
            for start in range(0, len(piece), WORDS)
        ]
        owner = np.array([i for i, _ in passages])
        starts = np.flatnonzero(np.diff(owner, prepend=-1))
        vectors = model.encode([text for _, text in passages], convert_to_numpy=True)
        whole = BM25Okapi([words(text) for text in sessions])
        parts = BM25Okapi([words(text) for _, text in passages])
        rows = [qa for qa in conversation["qa"] if qa["evidence"]]
        queries = model.encode([qa["question"] for qa in rows], convert_to_numpy=True)
        for qa, query in zip(rows, queries, strict=True):
            by_words = scaled(whole.get_scores(words(qa["question"])))[owner]
            total = by_words + scaled(parts.get_scores(words(qa["question"]))) + 2 * scaled(vectors @ query)
            best = np.argsort(-np.maximum.reduceat(total, starts))[:10]
            wanted = {f"session_{turn.split(':')[0].lstrip('D')}" for turn in qa["evidence"]}
            recalls.append(len(wanted & {names[i] for i in best}) / len(wanted))
    return f"{len(recalls)} questions, recall@10 {np.mean(recalls):.3f}"


# --- ours ----------------------------------------------------------------------------------------------


def run(options: Options, words: Sequence[str], name: str, split: str, *fields: str) -> dict[str, Any]:
    """The results of a command; of a check {}."""
    from pbr_jax.cli.main import main as command

    data = ["--benchmark.name", name, "--benchmark.root", str(options.root), "--benchmark.split", split]
    models = ["--encoder.model", options.encoder, "--llm.model", options.model]
    with tempfile.TemporaryDirectory() as folder:
        if code := command([*words, *data, *models, *fields, "--out", f"{folder}/out"]):
            raise SystemExit(code)
        results = Path(folder, "out", "results.json")
        return json.loads(results.read_text()) if results.is_file() else {}


def our_dense(options: Options) -> str:
    scored = ("--limit", str(options.count), "--generate.method", "none", "--eval.likelihood", "on")
    found = run(options, ["run", "dense"], "lamp_7", "dev", *scored)
    return f"nats per token {found['metrics']['target_nll']:.3f}"


def our_memory(options: Options) -> str:
    found = run(options, ["run", "memory"], "locomo", "locomo10")
    return f"{found['n']} questions, recall@10 {found['metrics']['recall@10']:.3f}"


def our_rewards(options: Options) -> str:
    """As a step of PURPLE's training asks for them, by the functions that it calls."""
    import pbr_jax.llm
    from pbr_jax.options import LLM, Encoder
    from pbr_jax.text.encode import TextEncoder

    asked, draw = list(islice(llm.examples(options.root, "train"), options.count)), random.Random(0)
    encoder, model = TextEncoder(Encoder(model=options.encoder)), pbr_jax.llm.load(LLM(model=options.model))
    vectors = encoder.encode([document.text for one in asked for document in one.profile])
    queries, prompts, targets, start = encoder.encode([one.query for one in asked], role="query"), [], [], 0
    for one, query in zip(asked, queries, strict=True):
        best = np.argsort(-(vectors[start : start + len(one.profile)] @ query))[:CANDIDATES]
        start += len(one.profile)
        for _ in range(SETS):
            chosen = draw.sample(best.tolist(), min(CHOSEN, len(best)))
            prompts.append(llm.write(model, one, [one.profile[i] for i in chosen]))
            targets.append(one.target)
    scores = model.score(prompts, targets)
    return f"nats per token {np.mean([-score.mean for score in scores]):.3f}"


def our_check(options: Options) -> str:
    run(options, ["check"], "lamp_7", "dev", "--limit", str(options.count), "--minutes", "600")
    return "see the page above"


# --- the comparison ------------------------------------------------------------------------------------

JOBS: dict[str, dict[str, Callable[[Options], str]]] = {
    "dense": {"ours": our_dense, "plain": plain_dense},
    "memory": {"ours": our_memory, "plain": plain_memory},
    "rewards": {"ours": our_rewards, "plain": plain_rewards},
    "check": {"ours": our_check, "plain": plain_check},
}


def measured(side: str, options: Options, folder: str, programs: str) -> tuple[float, float, float]:
    """Wall seconds, CPU seconds and peak GiB of one process, with its own cache of results in `folder`."""
    environment = os.environ | {"PBR_JAX_CACHE": folder, "JAX_COMPILATION_CACHE_DIR": programs}
    words = [options.job, "--root", str(options.root), "--count", str(options.count), "--side", side]
    words += ["--encoder", options.encoder, "--model", options.model]
    start = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, __file__, *words], env=environment, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        told = child.stdout.read().decode().strip().splitlines()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{side} ended with exit code {child.returncode}")
    found = time.perf_counter() - start, used.ru_utime + used.ru_stime, used.ru_maxrss / 2**20
    print(f"  {side}: {found[0]:.1f} s, {found[1]:.1f} CPU s, {found[2]:.2f} GiB; {told[-1]}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--count", type=int, default=60, help="questions; memory takes all")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--encoder", default="all-MiniLM-L6-v2", help="an embedded model or a folder")
    parser.add_argument("--model", default=llm.MODEL, help="an embedded model, a GGUF file or a folder")
    parser.add_argument("--side", choices=["ours", "plain"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(JOBS[options.job][options.side](options))
        return
    runs: dict[str, list[tuple[float, float, float]]] = {"cold": [], "compiled": [], "plain": []}
    for _ in range(options.pairs):
        with tempfile.TemporaryDirectory() as folder:
            for name in runs:
                side = "plain" if name == "plain" else "ours"
                runs[name].append(measured(side, options, f"{folder}/{name}", f"{folder}/programs"))
    for name, rows in runs.items():
        wall, cpu, memory = (statistics.median(column) for column in zip(*rows, strict=True))
        ratios = [plain[1] / own[1] for own, plain in zip(rows, runs["plain"], strict=True)]
        print(
            f"{name:9}{wall:8.1f} s{cpu:8.1f} CPU s{memory:7.2f} GiB, "
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        )


if __name__ == "__main__":
    main()
