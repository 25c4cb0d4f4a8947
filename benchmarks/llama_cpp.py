"""The in-process language model against llama.cpp's server, with the same GGUF file and the same tokens.

    python -m venv VENV && VENV/bin/pip install xllamacpp
    python benchmarks/llama_cpp.py --root LAMP_7_FOLDER --python VENV/bin/python

`prompts`: prompts of questions with four documents, and of different users; llama.cpp without its cache of
prompts. `profiles`: PURPLE's prompts, sampled sets of 5 documents of one question, sorted; with the cache.
`decode`: 64 greedy tokens after short prompts, one after another and 8 at once, without reading the prompts
(the CPU seconds of 65 tokens less those of one). We score every target, llama.cpp only reads. Both sides
take turns. Rates are tokens per CPU second, user and system, of all threads: twice as many in a second of
two idle cores that work all the time. llama.cpp runs with one thread and with two, of which one waits for the
other where other programs run. The share is that of the operations per CPU second of a large product in
float32, with 2 operations for each parameter outside the embedding and token that was computed.

How far log-probabilities differ is measured by targets, of which llama.cpp is asked token by token, and by
greedy answers.
"""

import argparse
import importlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

CHILD, NEW, TOGETHER = "--child", 64, 8
Ids = Sequence[int]


# --- llama.cpp, in an environment of its own -------------------------------------------------------------


def child(model: str, threads: int) -> None:
    """Answers a line of requests with a line of answers and the CPU seconds that they took."""
    import xllamacpp  # type: ignore[import-not-found]

    options = xllamacpp.CommonParams()
    options.model.path, options.n_ctx, options.n_parallel = model, 2048 * TOGETHER, TOGETHER
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = threads
    options.verbosity, options.cache_ram_mib = -1, 0
    server = xllamacpp.Server(options)
    print(server.listening_address, flush=True)
    for line in sys.stdin:
        at_once, requests = json.loads(line)
        used = time.process_time()
        with ThreadPoolExecutor(at_once) as pool:
            answers = list(pool.map(server.handle_completions, requests))
        print(json.dumps([time.process_time() - used, answers]), flush=True)


class Server:
    """llama.cpp's server in a process of its own."""

    def __init__(self, python: Path, model: Path, threads: int) -> None:
        words = [str(python), __file__, CHILD, str(model), str(threads)]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise SystemExit(f"{python} starts no llama.cpp; pip install xllamacpp there")

    def __call__(
        self, prompts: Sequence[Ids], new: int, at_once: int = 1, **options: Any
    ) -> tuple[float, list[Any]]:
        """CPU seconds and answers, one prompt at a time or several at once."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        common = {"n_predict": new, "temperature": 0, "cache_prompt": False, **options}
        requests = [{"prompt": list(ids), **common} for ids in prompts]
        print(json.dumps([at_once, requests]), file=self._process.stdin, flush=True)
        used, answers = json.loads(self._process.stdout.readline())
        return used, answers

    def close(self) -> None:
        self._process.communicate()


# --- ours --------------------------------------------------------------------------------------------------


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of all threads, and the result."""
    used = time.process_time()
    found = work()
    return time.process_time() - used, found


def computed(llm: Any, pairs: Sequence[tuple[Ids, Ids]]) -> int:
    """Tokens that scoring computes, where common beginnings are read once."""
    from pbr_jax.llm.engine import prefixes

    whole = {(*first, *second[:-1]): len(first) - 1 for first, second in pairs}
    ids, most = list(whole), min(llm._engine.window, max(32, -(-len(whole) // len(llm._engines))))
    return sum(
        prefixes.tree([ids[i] for i in window], [whole[ids[i]] for i in window]).size
        for window in prefixes.windows(ids, most)
    )


def product() -> float:
    """Operations per CPU second of a large product in float32, as JAX computes it."""
    import jax
    import jax.numpy as jnp

    x = jax.random.normal(jax.random.key(0), (2048, 2048), jnp.float32)
    multiply = jax.jit(jnp.matmul)
    multiply(x, x).block_until_ready()
    used = [timed(lambda: multiply(x, x).block_until_ready())[0] for _ in range(15)]
    return 2 * 2048**3 / statistics.median(used)


# --- the comparison ----------------------------------------------------------------------------------------


def compare(name: str, sides: dict[str, Callable[[], tuple[float, int, float]]], repeats: int) -> None:
    """Runs sides in turn. Each gives CPU seconds, tokens, and operations (nan: not counted)."""
    found: dict[str, list[tuple[float, int, float]]] = {side: [] for side in sides}
    for number in range(repeats):
        for side in sorted(sides, reverse=bool(number % 2)):
            found[side].append(sides[side]())
    best = product()
    for side, runs in found.items():
        rates = [tokens / used for used, tokens, _ in runs]
        share = statistics.median(operations / used for used, _, operations in runs) / best
        ratios = [rate / (own[1] / own[0]) for rate, own in zip(rates, found["ours"], strict=True)]
        print(
            f"{name}, {side}: {statistics.median(rates):.1f} tokens per CPU second "
            f"({min(rates):.1f} to {max(rates):.1f}), {statistics.median(ratios):.3f} of ours "
            f"({min(ratios):.3f} to {max(ratios):.3f}); {share:.1%} of {best / 1e9:.0f} GFLOP/s; "
            f"{runs[0][1]} tokens in {statistics.median(used for used, *_ in runs):.1f} CPU s",
            flush=True,
        )


def read(llm: Any, prompts: Sequence[Any], targets: Sequence[str], each: float, **options: Any) -> Any:
    """The sides of a comparison of prompts that are read. `each`: operations for a token."""
    pairs = [(llm._codec.encode(p), llm._codec.encode_target(t)) for p, t in zip(prompts, targets)]
    whole = sorted((*first, *second[:-1]) for first, second in pairs)
    asked, done = sum(map(len, whole)), computed(llm, pairs)
    print(f"{len(whole)} prompts, {asked} tokens asked, {done} computed by ours")

    def ours() -> tuple[float, int, float]:
        return timed(lambda: llm.score(prompts, targets))[0], asked, done * each

    def theirs(server: Server) -> Callable[[], tuple[float, int, float]]:
        def run() -> tuple[float, int, float]:
            used, answers = server(whole, 0, id_slot=0, **options)
            return used, asked, each * sum(answer["timings"]["prompt_n"] for answer in answers)

        return run

    ours()  # compiles
    return ours, theirs


def decode(llm: Any, prompts: Sequence[Ids], at_once: int, each: float) -> Any:
    """The sides of a comparison of answers that are decoded."""
    from pbr_jax.llm import Sampling

    groups = [prompts[i : i + at_once] for i in range(0, len(prompts), at_once)]

    def answers(new: int) -> int:
        sampling, total = Sampling(new), 0
        for group in groups:
            places = list(range(len(group)))
            done = llm._decoded([tuple(ids) for ids in group], places, [True] * len(group), sampling)
            total += sum(len(tokens) for batch in done for _, tokens in batch)
        return total

    def ours() -> tuple[float, int, float]:
        (short, few), (long, many) = timed(lambda: answers(1)), timed(lambda: answers(NEW + 1))
        return long - short, many - few, (many - few) * each

    def theirs(server: Server) -> Callable[[], tuple[float, int, float]]:
        def run() -> tuple[float, int, float]:
            used, tokens = [], []
            for new in (1, NEW + 1):
                took, said = server(prompts, new, at_once)
                used.append(took)
                tokens.append(sum(answer["usage"]["completion_tokens"] for answer in said))
            return used[1] - used[0], tokens[1] - tokens[0], (tokens[1] - tokens[0]) * each

        return run

    ours()
    return ours, theirs


def said_of(answer: Any) -> list[Any]:
    """The tokens of an answer, with their log-probabilities."""
    return answer["choices"][0]["logprobs"]["content"]


def agreement(llm: Any, server: Server, prompts: Sequence[Any], targets: Sequence[str]) -> None:
    """How far the log-probabilities of targets differ, and how many greedy tokens are equal."""
    from pbr_jax.llm import Sampling

    ours = np.concatenate(llm.token_scores(prompts, targets))
    theirs: list[float] = []
    for prompt, target in zip(prompts, targets, strict=True):
        first, second = llm._codec.encode(prompt), llm._codec.encode_target(target)
        for place, token in enumerate(second):  # the bias makes it the answer, and changes no probability
            bias = {"logit_bias": [[token, 1000.0]], "n_probs": 1, "cache_prompt": True, "id_slot": 0}
            _, (answer,) = server([(*first, *second[:place])], 1, **bias)
            (said,) = said_of(answer)
            assert said["id"] == token, said
            theirs.append(said["logprob"])
    apart = np.array(theirs) - ours
    print(
        f"log-probabilities of {len(apart)} tokens of {len(targets)} targets: ours {-ours.mean():.4f}, "
        f"llama.cpp {-np.mean(theirs):.4f} nats per token; single ones differ by {np.abs(apart).mean():.4f} "
        f"in the mean, {np.abs(apart).max():.4f} at most"
    )
    ids = [tuple(llm._codec.encode(prompt)) for prompt in prompts]
    decoded = llm._decoded(ids, list(range(len(ids))), [True] * len(ids), Sampling(NEW))
    own = {place: tokens for batch in decoded for place, tokens in batch}
    _, answers = server(ids, NEW, n_probs=1)
    theirs_ids = [[said["id"] for said in said_of(answer)] for answer in answers]
    same = [
        next((n for n, (a, b) in enumerate(zip(own[place], tokens)) if a != b), None)
        for place, tokens in enumerate(theirs_ids)
    ]
    first = sum(own[place][:1] == tokens[:1] for place, tokens in enumerate(theirs_ids))
    print(
        f"greedy answers: {same.count(None)} of {len(ids)} equal, {first} with the same first token; others "
        f"differ after {statistics.median([n for n in same if n is not None] or [0])} tokens (median)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, required=True, help="a folder with LaMP-7's train and dev files")
    parser.add_argument("--python", type=Path, required=True, help="of an environment with xllamacpp")
    parser.add_argument("--what", nargs="+", default=["agreement", "prompts", "profiles", "decode"])
    parser.add_argument("--count", type=int, default=60, help="prompts of different users")
    parser.add_argument("--queries", type=int, default=16)
    parser.add_argument("--profiles", type=int, default=16)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="of llama.cpp")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()

    from jax.tree import leaves

    from pbr_jax.llm.engine.jax_backend import JaxLLM
    from pbr_jax.models.pretrained import locate

    shared: Any = importlib.import_module("llm")  # benchmarks/llm.py
    path = locate(shared.MODEL)
    llm = JaxLLM(path, dtype="float32", batch_size=shared.BATCH)
    each = 2.0 * sum(x.size for x in leaves(llm._engine.params["layers"]))
    servers = {threads: Server(options.python, path, threads) for threads in options.threads}
    prompts = shared.lamp_prompts(options.root, llm, options.count)
    targets = [e.target for e, _ in zip(shared.examples(options.root, "dev"), prompts)]

    def turns(name: str, ours: Any, theirs: Any) -> None:
        others = {f"llama.cpp, {n} thread{'s' * (n > 1)}": theirs(server) for n, server in servers.items()}
        compare(name, {"ours": ours, **others}, options.repeats)

    if "agreement" in options.what:
        agreement(llm, servers[options.threads[0]], prompts[:20], targets[:20])
    if "prompts" in options.what:
        turns("prompts", *read(llm, prompts, targets, each))
    if "profiles" in options.what:
        sampled, wanted = shared.purple_prompts(options.root, llm, options.queries, options.profiles)
        turns("profiles", *read(llm, sampled, wanted, each, cache_prompt=True))
    if "decode" in options.what:
        asked = (e.query for e, _ in zip(shared.examples(options.root, "dev"), range(TOGETHER)))
        stories = [[{"role": "user", "content": f"Write a long story that begins: {text}"}] for text in asked]
        short = list(map(llm._codec.encode, stories))
        turns("decode, one by one", *decode(llm, short[:2], 1, each))
        turns(f"decode, {TOGETHER} at once", *decode(llm, short, TOGETHER, each))
    for server in servers.values():
        server.close()


if __name__ == "__main__":
    child(sys.argv[2], int(sys.argv[3])) if sys.argv[1:2] == [CHILD] else main()
