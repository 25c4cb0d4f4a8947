"""The in-process language model against Hugging Face's in torch, in turn, in one process.

    python benchmarks/llm.py score --root LAMP_7_FOLDER
    python benchmarks/llm.py targets --root LAMP_7_FOLDER
    python benchmarks/llm.py generate --root LAMP_7_FOLDER

`score` gives log p(target | prompt) of PURPLE-shaped prompts: for each of 16 users of the train split, 32
profiles of 5 documents, drawn in order and all equally likely, from 20. The peer reads one prompt at a time.
`targets` scores 64 targets after one prompt of 700 tokens, and prints the most memory that the process had.
Both say how many programs were compiled.
`generate` continues the prompts of 64 users of the dev split with the 4 documents that BM25 finds. The peer
gets batches, padded on the left: in the order of the file, and sorted by length. Both have the same
weights in `--dtype`, decode greedily and use all cores, or the same GPU where JAX has one; there `score` also
says which share of the rate of a large matrix product its products of weights reach.
"""

import argparse
import random
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from pbr_jax.llm import Sampling

MODEL = "SmolLM2-135M-Instruct"
NEW_TOKENS = 64
BATCH = 32
Prompt = list[dict[str, str]]


def purple_prompts(root: Path, llm: Any, queries: int, profiles: int) -> tuple[list[Prompt], list[str]]:
    """The prompts of sampled profiles, and the target of each."""
    generator = random.Random(0)
    chosen = islice((e for e in examples(root, "train") if len(e.profile) >= 20), queries)
    written, targets = [], []
    for example in chosen:
        records = generator.sample(example.profile, 20)
        for _ in range(profiles):
            written.append(write(llm, example, generator.sample(records, 5)))
            targets.append(example.target)
    return written, targets


def lamp_prompts(root: Path, llm: Any, count: int) -> list[Prompt]:
    """The prompts of a BM25 run."""
    from pbr_jax.text.bm25 import BM25

    written = []
    for example in islice(examples(root, "dev"), count):
        scores = BM25([document.text for document in example.profile]).scores(example.query)
        best = np.argsort(-scores, kind="stable")[:4]
        written.append(write(llm, example, [example.profile[place] for place in best]))
    return written


def examples(root: Path, split: str) -> Any:
    from pbr_jax.config import Benchmark
    from pbr_jax.data import read

    return read(Benchmark(name="lamp_7", root=str(root), split=split))


def write(llm: Any, example: Any, documents: Sequence[Any]) -> Prompt:
    from pbr_jax.tasks import released
    from pbr_jax.text import prompts

    wording = released("lamp_7").wording("own")
    return prompts.write(
        wording, example, documents, count=llm.count, truncate=llm.truncate, max_tokens=512, gamma=0.6
    ).messages


class Peer:
    """The same weights, a GGUF file's or a folder's, read by transformers into torch."""

    def __init__(self, path: Path, dtype: str):
        import jax
        import torch
        import transformers

        self.torch: Any = torch
        self.device = "cuda" if jax.default_backend() == "gpu" else "cpu"
        found: Any = (
            _of_gguf(path) if path.is_file() else transformers.AutoModelForCausalLM.from_pretrained(path)
        )
        self.model: Any = found.eval().to(self.device, getattr(torch, dtype))

    def score(self, pairs: Sequence[tuple[list[int], list[int]]], last: bool = False) -> list[float]:
        """One prompt at a time; `last`: logits of the target alone, which has to be asked for."""
        torch, totals = self.torch, []
        with torch.inference_mode():
            for first, second in pairs:
                keep = len(second) + 1 if last else 0
                ids = torch.tensor([first + second], device=self.device)
                logits = self.model(ids, logits_to_keep=keep).logits[0]
                rows = logits[-len(second) - 1 : -1].float().log_softmax(dim=-1)
                totals.append(float(rows.gather(1, ids[0, -len(second) :, None]).sum()))
        return totals

    def generate(self, prompts: Sequence[list[int]], stops: list[int], ordered: bool) -> list[list[int]]:
        torch, found = self.torch, {}
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]) if ordered else i)
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            width = max(len(prompts[i]) for i in batch)
            ids = torch.zeros(len(batch), width, dtype=torch.long)
            mask = torch.zeros_like(ids)
            for row, i in enumerate(batch):
                ids[row, width - len(prompts[i]) :] = torch.tensor(prompts[i])
                mask[row, width - len(prompts[i]) :] = 1
            with torch.inference_mode():
                tokens = self.model.generate(
                    ids.to(self.device), attention_mask=mask.to(self.device), do_sample=False,
                    max_new_tokens=NEW_TOKENS, eos_token_id=stops, pad_token_id=stops[0],
                )[:, width:].tolist()  # fmt: skip
            found |= dict(zip(batch, tokens))
        return [found[i] for i in range(len(prompts))]


def _of_gguf(path: Path) -> Any:
    import transformers
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config: Any = transformers.AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    model: Any = transformers.LlamaForCausalLM(config)
    tensors = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    model.load_state_dict(tensors, strict=False)
    model.tie_weights()
    return model


def peak(dtype: str, size: int = 8192) -> float:
    """Operations a second of a large matrix product."""
    import jax
    import jax.numpy as jnp

    x = jax.random.normal(jax.random.key(0), (size, size), jnp.dtype(dtype))
    multiply = jax.jit(lambda x: jnp.matmul(x, x, precision="highest" if dtype == "float32" else None))
    multiply(x).block_until_ready()
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        jax.block_until_ready([multiply(x) for _ in range(8)])
        seconds.append((time.perf_counter() - start) / 8)
    return 2 * size**3 / statistics.median(seconds)


def compare(runs: dict[str, Callable[[], Any]], repeats: int, tokens: int) -> float:
    """Runs in turn, and the ratios of neighbouring runs against the first; returns that one's seconds."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
        print("  " + ", ".join(f"{name} {values[-1]:.1f} s" for name, values in seconds.items()), flush=True)
    ours, *_ = seconds
    for name, values in seconds.items():
        speed = (
            f"{name}: {statistics.median(values):.2f} s, {tokens / statistics.median(values):.0f} tokens/s"
        )
        ratios = [theirs / own for own, theirs in zip(seconds[ours], values)]
        print(
            speed + f"; {statistics.median(ratios):.3f} times ours ({min(ratios):.3f} to {max(ratios):.3f})"
        )
    return statistics.median(seconds[ours])


def first_scores(llm: Any, prompts: Sequence[Any], targets: Sequence[str]) -> list[float]:
    """The first scoring, with the programs that it compiled."""
    from jax import monitoring

    compiled: list[float] = []

    def count(event: str, duration_secs: float, **_: str | int) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(duration_secs)

    _ = llm._engine
    monitoring.register_event_duration_secs_listener(count)
    start = time.perf_counter()
    found = [score.total for score in llm.score(prompts, targets)]
    seconds = time.perf_counter() - start
    print(f"ours, first run: {seconds:.1f} s; {len(compiled)} programs compiled in {sum(compiled):.1f} s")
    return found


def targets(llm: Any, arguments: argparse.Namespace) -> None:
    some = list(islice(examples(arguments.root, "train"), 300))
    prompt = llm.truncate(" ".join(document.text for e in some for document in e.profile), 700)
    wanted = [example.target for example in some[:64]]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    first_scores(llm, [prompt] * 64, wanted)
    seconds = []
    for _ in range(arguments.repeats):
        start, used = time.perf_counter(), time.process_time()
        llm.score([prompt] * 64, wanted)
        seconds.append((time.perf_counter() - start, time.process_time() - used))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"a prompt of {llm.num_tokens(prompt)} tokens, 64 targets: {min(seconds)[0]:.2f} s")
    print(f"CPU seconds: {min(used for _, used in seconds):.2f}")
    print(f"most memory {peak / 2**20:.2f} GiB, {before / 2**20:.2f} GiB before the first scoring")


def score(llm: Any, peer: Peer, arguments: argparse.Namespace) -> None:
    from jax.tree import leaves as tree_leaves

    from pbr_jax.llm.engine import prefixes

    prompts, targets = purple_prompts(arguments.root, llm, arguments.queries, arguments.profiles)
    pairs = [
        (llm._codec.encode(prompt), llm._codec.encode_target(target))
        for prompt, target in zip(prompts, targets)
    ]
    whole = [first + second[:-1] for first, second in pairs]
    asked = sum(map(len, whole))
    distinct = list({ids: len(first) - 1 for ids, (first, _) in zip(map(tuple, whole), pairs)}.items())
    computed = sum(
        prefixes.tree([distinct[i][0] for i in window], [distinct[i][1] for i in window]).size
        for window in prefixes.windows([ids for ids, _ in distinct], llm._engine.window)
    )
    print(f"{len(pairs)} prompts, {len(distinct)} distinct; {asked} tokens asked, {computed} computed")
    ours = first_scores(llm, prompts, targets)
    sample = range(0, len(pairs), max(1, len(pairs) // 16))
    theirs = peer.score([pairs[i] for i in sample])
    difference = max(abs(ours[i] - t) for i, t in zip(sample, theirs))
    print(f"largest difference of {len(theirs)} scores: {difference:.1e}")
    seconds = compare(
        {
            "ours": lambda: llm.score(prompts, targets),
            "torch, one at a time": lambda: peer.score(pairs),
            "torch, one at a time, logits of targets": lambda: peer.score(pairs, last=True),
        },
        arguments.repeats,
        asked,
    )
    if peer.device != "cpu":
        weights = llm._engine.params
        layers, head = (sum(x.size for x in tree_leaves(weights[name])) for name in ("layers", "embedding"))
        done = 2 * (computed * layers + sum(len(second) for _, second in pairs) * head)
        most = peak(arguments.dtype)
        print(
            f"products of weights: {done / seconds / 1e12:.1f} TFLOP/s, {done / seconds / most:.1%} of the "
            f"{most / 1e12:.0f} that a large product reaches"
        )


def generate(llm: Any, peer: Peer, arguments: argparse.Namespace) -> None:
    prompts = lamp_prompts(arguments.root, llm, arguments.prompts)
    ids = [llm._codec.encode(prompt) for prompt in prompts]
    stops = sorted(llm._codec.stops)
    start = time.perf_counter()
    ours = llm.generate(prompts, Sampling(NEW_TOKENS))
    print(f"ours, first run (compilation included): {time.perf_counter() - start:.1f} s")
    tokens = peer.generate(ids, stops, ordered=True)
    made = [next((n for n, token in enumerate(row, 1) if token in stops), len(row)) for row in tokens]
    equal = sum(llm._codec.decode(row) == text for row, text in zip(tokens, ours))
    print(
        f"{len(ids)} prompts of {sum(map(len, ids)) / len(ids):.0f} tokens, "
        f"answers of {sum(made) / len(ids):.0f}"
    )
    print(f"equal answers: {equal} of {len(ids)}")
    compare(
        {
            "ours": lambda: llm.generate(prompts, Sampling(NEW_TOKENS)),
            f"torch, batches of {BATCH}": lambda: peer.generate(ids, stops, ordered=False),
            f"torch, batches of {BATCH} by length": lambda: peer.generate(ids, stops, ordered=True),
        },
        arguments.repeats,
        sum(made),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["score", "targets", "generate"])
    parser.add_argument("--root", type=Path, required=True, help="a folder with LaMP-7's train and dev files")
    parser.add_argument("--model", default=MODEL, help="an embedded model, a GGUF file or a folder")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--queries", type=int, default=16)
    parser.add_argument("--profiles", type=int, default=32)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()

    from pbr_jax.llm.engine.jax_backend import JaxLLM
    from pbr_jax.models.pretrained import locate

    path = locate(arguments.model)
    llm = JaxLLM(path, dtype=arguments.dtype, batch_size=BATCH)
    if arguments.what == "targets":
        targets(llm, arguments)
    else:
        {"score": score, "generate": generate}[arguments.what](llm, Peer(path, arguments.dtype), arguments)


if __name__ == "__main__":
    main()
