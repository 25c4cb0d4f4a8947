"""What every stage of a run costs as users are added: CPU seconds, peak memory, and the growth exponent.

    python benchmarks/growth.py [--users 2000 20000] [--systems dense bm25 ...] [--folder DIR]
    python benchmarks/growth.py --users 1000 10000 --documents 100 \\
        --systems bm25 dense changes-bm25 changes-dense forget

Made-up users with dated documents of 12 words each, a training question and an evaluated one. "import" is
`pbr-jax data import` of two CSV files; the systems are `pbr-jax run` with no generation, a random encoder
(BERT of one layer, 16 wide) and a random language model (Llama of one layer, 16 wide), for the encoder's
and the model's FLOPs are not the subject. Every system and size is a process of its own, which first runs
200 users, so that nothing is compiled in what is measured. Runs of a size share a cache, in the order
given: what an earlier one has made is not made again. Where "import" is not among the systems, missing
data is imported first. A stage's peak is of the process while the stage is made. CPU seconds are of all
threads and children. Other work makes them longer: once in a CPU second a fixed loop is timed, and they
are given as if it always took as long as it ever took at the least. The exponent is log(CPU ratio) /
log(users ratio), from the first size to the last. "the rest" is what no stage does: keys, users as
vectors, evaluation, files. "changes-SYSTEM" opens the run that SYSTEM has made: 100 calls of each kind, each
of another user, after one that is not counted. "forget" is `pbr-jax forget --user` in all of these runs, and
the last of a folder.
"""

import argparse
import csv
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path
from statistics import fmean
from typing import Any

WARM = 200  # users
COHORTS, TOPIC, WORDS = 40, 60, 12
SMALL = 0.5  # CPU seconds: what takes less at the largest size has no exponent
CALLS = 30  # of each kind, of an opened run
CHILD = "--child"


# -- data ----------------------------------------------------------------------------------------------


def tables(folder: Path, users: int, each: int) -> None:
    """Questions and documents as CSV files; a user's words are those of a cohort, half of the time."""
    folder.mkdir(parents=True)
    draw, begin = random.Random(users), date(2015, 1, 1)
    with (folder / "documents.csv").open("w") as documents, (folder / "questions.csv").open("w") as questions:
        shown, asked = csv.writer(documents), csv.writer(questions)
        shown.writerow(("id", "user", "time", "text"))
        asked.writerow(("id", "user", "time", "question", "answer"))
        for user in range(users):
            words: list[str] = []
            for number in range(each):
                words, day = _words(draw, user, WORDS), begin + timedelta(30 * number + draw.randrange(30))
                shown.writerow((f"{user}-{number}", f"u{user}", day, f"{' '.join(words)} {user}"))
            day = begin + timedelta(30 * each + draw.randrange(1000))
            said = " ".join(_words(draw, user, 4))
            asked.writerow((f"q{user}", f"u{user}", day, " ".join(words[:6]), f"{words[8]} {said}"))


def _words(draw: random.Random, user: int, count: int) -> list[str]:
    own = user % COHORTS * TOPIC
    return [f"w{(own if draw.random() < 0.5 else 0) + draw.randrange(TOPIC)}" for _ in range(count)]


def training_questions(folder: Path) -> None:
    """Every user's question of the training split, in the middle of the history."""
    with (folder / "dev.jsonl").open() as dev, (folder / "train.jsonl").open("w") as train:
        for line in map(json.loads, dev):
            train.write(json.dumps({**line, "id": f"t{line['id']}", "time": "2017-01-01"}) + "\n")


def models(folder: Path) -> None:
    """A random encoder of the words, and a random language model of bytes."""
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, pre_tokenizers, processors
    from tokenizers import models as kinds

    torch.manual_seed(0)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{i}" for i in range(COHORTS * TOPIC)), *"0123456789"]
    sizes: Any = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    bert = transformers.BertConfig(
        vocab_size=len(words), max_position_embeddings=64, initializer_range=0.5, **sizes
    )
    transformers.BertModel(bert).save_pretrained(folder / "encoder")
    tokenizer = Tokenizer(kinds.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(str(folder / "encoder" / "tokenizer.json"))
    names = ["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(kinds.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    tokenizer.add_special_tokens(names[:2])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    llama = transformers.LlamaConfig(
        vocab_size=len(names), max_position_embeddings=4096, num_key_value_heads=2, initializer_range=0.3,
        bos_token_id=0, eos_token_id=1, pad_token_id=0, **sizes,
    )  # fmt: skip
    transformers.LlamaForCausalLM(llama).save_pretrained(folder / "llm")
    tokenizer.save(str(folder / "llm" / "tokenizer.json"))


# -- systems -------------------------------------------------------------------------------------------


def config(system: str, root: Path, models: Path) -> Any:
    """A system's config at a size that costs little beside what grows with users."""
    from pbr_jax.config import Config, Eval, Feedback, UserEncoder, tuning
    from pbr_jax.config import Training as Train
    from pbr_jax.methods import generate, neighbours, retrieve, select
    from pbr_jax.options import LLM, Benchmark, Encoder, Labels, Stream

    few = Train(epochs=1, batch_size=64, patience=None)
    judged = str(models / "encoder")
    choices: dict[str, dict[str, Any]] = {
        "dense": {"retrieve": retrieve.Dense()},
        "bm25": {"retrieve": retrieve.BM25()},
        "fused": {"retrieve": retrieve.Fused(of=(retrieve.BM25(), retrieve.Dense()))},
        "mean": {"retrieve": retrieve.Dense(), "neighbours": neighbours.Mean(m=4)},
        "cfrag": {
            "neighbours": neighbours.Contrastive(m=4),
            "user_encoder": UserEncoder(max_documents=16, training=few),
            "feedback": Feedback(metric="likelihood", limit=32),
            "retrieve": retrieve.Tuned(k=3, training=tuning(epochs=1)),
            "select": select.Tuned(k=3, model=judged, max_length=32, training=tuning(epochs=1)),
        },
        "clusterrag": {
            "neighbours": neighbours.Cohorts(m=2),
            "retrieve": retrieve.TwoStage(k=2),
            "select": select.TopK(k=2),
        },
        "purple": {
            "limit_training": 64,
            "retrieve": retrieve.Dense(k=20),
            "select": select.Purple(
                k=3, num_layers=1, num_heads=2, rollouts=2, query_tokens=16, record_tokens=16, training=few
            ),
        },
        "luf": {
            "stream": Stream(size=200),
            "retrieve": retrieve.Luf(k=10, moves="map", starts="last", labels=Labels(kind="self", depth=10)),
        },
    }
    return Config(
        system=system,
        collaboration="text",
        benchmark=Benchmark(name="own", root=str(root)),
        encoder=Encoder(model=judged, normalize="yes" if system == "luf" else "auto"),
        llm=LLM(model=str(models / "llm")),
        generate=generate.Nothing(),
        eval=Eval(likelihood="off"),
        **choices[system],
    )


# -- one process ---------------------------------------------------------------------------------------


class Stages:
    """CPU seconds, seconds, peak GiB and pace (CPU seconds of a fixed loop) of parts of this process."""

    def __init__(self) -> None:
        self.found: dict[str, list[float]] = {}
        self.most, self._paces = 0.0, [_pace()]
        signal.signal(signal.SIGPROF, lambda *_: self._paces.append(_pace()))
        signal.setitimer(signal.ITIMER_PROF, 1, 1)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        begun, first = (_cpu(), time.perf_counter()), len(self._paces)
        self.most = max(self.most, _peak())
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from now on
        self._paces.append(_pace())
        yield
        self._paces.append(_pace())
        cpu, wall, peak, _ = self.found.get(name, [0.0, 0.0, 0.0, 0.0])
        self.most, spent = max(self.most, _peak()), (_cpu() - begun[0], time.perf_counter() - begun[1])
        self.found[name] = [cpu + spent[0], wall + spent[1], max(peak, _peak()), fmean(self._paces[first:])]


def _pace() -> float:
    start = time.thread_time()
    sum(i * i for i in range(50_000))
    return time.thread_time() - start


def _cpu() -> float:
    return sum(os.times()[:4])


def _peak() -> float:
    found = re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) / 2**20 if found else math.nan


def child(system: str, folder: Path, users: int) -> None:
    """Measures one system at one size, and prints what it took as JSON."""
    stages = Stages()
    try:
        _measure(system, folder, users, stages)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)  # the handler goes before the process does
    print(json.dumps(stages.found))


def _measure(system: str, folder: Path, users: int, stages: Stages) -> None:
    if system == "import":
        from pbr_jax.importing.columns import Columns
        from pbr_jax.importing.writing import import_table

        source, out = folder / f"tables-{users}", folder / f"own-{users}"
        shutil.rmtree(out, ignore_errors=True)
        with stages.timed("import"):
            columns = Columns(user="user", time="time", input="question", output="answer", id="id")
            import_table(source / "questions.csv", out, columns, documents=source / "documents.csv")
        training_questions(out)
    elif system == "report":
        from pbr_jax.cli.main import main

        with stages.timed("report"):
            runs = [str(path) for path in sorted(folder.glob(f"run-*-{users}"))]
            assert main(["report", *runs, "--format", "html", "--out", str(folder / "report.html")]) == 0
    elif system == "forget":
        from pbr_jax.cli.main import main

        os.environ["PBR_JAX_CACHE"] = str(folder / f"cache-{users}")
        with stages.timed("pbr-jax forget --user"):
            assert main(["forget", "--user", "u0", "--out", str(folder / "receipt.json")]) == 0
    elif system.startswith("changes-"):
        _changes(system.removeprefix("changes-"), folder, users, stages)
    else:
        _run(system, folder, users, stages)


def _run(system: str, folder: Path, users: int, stages: Stages) -> None:
    from pbr_jax.experiment import evaluation as results
    from pbr_jax.experiment import run as experiment
    from pbr_jax.graph import nodes as graph

    made = {size: config(system, folder / f"own-{size}", folder) for size in (WARM, users)}
    os.environ["PBR_JAX_CACHE"] = tempfile.mkdtemp(prefix="pbr_jax-growth-")
    experiment.run(made[WARM], Path(os.environ["PBR_JAX_CACHE"], "out"))
    os.environ["PBR_JAX_CACHE"] = str(folder / f"cache-{users}")
    _wrap(graph, "obtain", lambda args: args[4], stages, argument=2)
    _wrap(results, "evaluated", lambda _: "evaluate", stages)
    with stages.timed("all"):
        experiment.run(made[users], folder / f"run-{system}-{users}")
    cpu, wall, peak, pace = stages.found.pop("all")
    rest = [cpu - sum(s[0] for s in stages.found.values()), wall - sum(s[1] for s in stages.found.values())]
    stages.found |= {"the rest": [*rest, peak, pace], "all": [cpu, wall, stages.most, pace]}


def _changes(system: str, folder: Path, users: int, stages: Stages) -> None:
    import pbr_jax

    os.environ["PBR_JAX_CACHE"] = str(folder / f"cache-{users}")
    with stages.timed("open"):
        opened = pbr_jax.open(folder / f"run-{system}-{users}")
    with stages.timed("copy"):
        opened.start_copy()
    draw, others = random.Random(users), iter(random.Random(0).sample(range(1, users), 5 * (CALLS + 1)))

    def add(user: int, count: int) -> None:
        opened.add(f"u{user}", [" ".join(_words(draw, user, WORDS)) for _ in range(count)])

    def search(user: int) -> None:
        assert opened.search(f"u{user}", " ".join(_words(draw, user, 6)))

    calls: dict[str, Callable[[int], Any]] = {
        "search": search,
        "add 1": lambda user: add(user, 1),
        "add 100": lambda user: add(user, 100),
        "add 1, search": lambda user: (add(user, 1), search(user)),
        "forget": lambda user: opened.forget(f"u{user}"),
    }
    for name, call in calls.items():
        call(next(others))
        with stages.timed(f"{name}, {CALLS} times"):
            for _ in range(CALLS):
                call(next(others))


def _wrap(
    module: Any, name: str, label: Callable[[Any], str], stages: Stages, argument: int | None = None
) -> None:
    """Times a function of a module, or the function that is an argument of it."""
    original = getattr(module, name)

    def timed(work: Any, called: str) -> Any:
        def run(*args: Any, **named: Any) -> Any:
            with stages.timed(called):
                return work(*args, **named)

        return run

    def wrapped(*args: Any, **named: Any) -> Any:
        told = label(args)
        if argument is None:
            return timed(original, told)(*args, **named)
        return original(*args[:argument], timed(args[argument], told), *args[argument + 1 :], **named)

    setattr(module, name, wrapped)


# -- all of them ---------------------------------------------------------------------------------------


def measured(system: str, folder: Path, users: int) -> dict[str, list[float]]:
    words = [sys.executable, __file__, CHILD, system, "--folder", str(folder), "--users", str(users)]
    told = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
    found = json.loads(told.splitlines()[-1])
    with (folder / "growth.jsonl").open("a") as file:
        file.write(json.dumps({"system": system, "users": users, "stages": found}) + "\n")
    return found


def table(folder: Path, sizes: list[int]) -> None:
    """All that was measured in a folder at these sizes."""
    found: dict[str, dict[int, dict[str, list[float]]]] = {}
    for line in map(json.loads, (folder / "growth.jsonl").open()):
        found.setdefault(line["system"], {})[line["users"]] = line["stages"]
    best = min(s[3] for of in found.values() for stages in of.values() for s in stages.values())
    few, many = sizes[0], sizes[-1]
    heads = [f"{size:,} users: CPU s, s, peak GiB" for size in sizes]
    print("| system | stage | " + " | ".join(heads) + " | exponent |")
    print("|---|---|" + "---|" * len(sizes) + "---|")
    for system, of in found.items():
        for stage, last in of.get(many, {}).items():
            cpu = {n: of[n][stage][0] * best / of[n][stage][3] for n in sizes if stage in of.get(n, {})}
            cells = [
                "{:.1f}, {:.1f}, {:.2f}".format(cpu[n], *of[n][stage][1:3]) if n in cpu else "–"
                for n in sizes
            ]
            grown = "–"
            if few in cpu and few < many and last[0] >= SMALL:
                grown = f"{math.log(cpu[many] / max(cpu[few], 1e-2)) / math.log(many / few):.2f}"
            print(f"| {system} | {stage} | {' | '.join(cells)} | {grown} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    systems = ["import", "dense", "bm25", "mean", "cfrag", "clusterrag", "purple", "luf", "report"]
    parser.add_argument("--users", type=int, nargs="+", default=[2000, 20_000])
    parser.add_argument("--documents", type=int, default=50)
    parser.add_argument("--systems", nargs="+", default=systems)
    parser.add_argument("--folder", type=Path)
    parser.add_argument(CHILD, help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.child:
        return child(told.child, told.folder, told.users[0])
    with tempfile.TemporaryDirectory() as temporary:
        folder = told.folder or Path(temporary)
        if not (folder / "encoder").exists():
            folder.mkdir(exist_ok=True, parents=True)
            models(folder)
        for size in (WARM, *told.users):
            if not (folder / f"tables-{size}").exists():
                tables(folder / f"tables-{size}", size, told.documents)
        for size in (WARM, *([] if "import" in told.systems else told.users)):
            if not (folder / f"own-{size}").exists():
                measured("import", folder, size)
        for system in told.systems:
            for size in told.users:
                measured(system, folder, size)
        table(folder, told.users)
    return None


if __name__ == "__main__":
    main()
