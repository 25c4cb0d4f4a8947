"""Attention of long texts: blockwise against all keys at a time, in memory and time.

    python benchmarks/attention.py [--tokens 2048 4096] [--rows 1] [--dtype bfloat16] [--block 512]

`attention`: of a layer with 9 query heads that share 3 key heads of width 64 (SmolLM2-135M's), computed again
for its gradient. `model`: a decoder of that shape, 2 layers, random weights: its last states (what scoring
computes) and the gradient of all of its weights. "all keys" is what texts of up to 1,024 tokens take. Printed
are the temporary bytes that XLA plans, the shortest of some runs, and the largest difference of the outputs,
relative to the largest of their values. On a GPU it runs there as it is.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pbr_jax.models import attention, causal_lm, long_attention
from pbr_jax.models.causal_lm_config import CausalLMConfig
from pbr_jax.models.layers import precision
from pbr_jax.models.rope import Rope

KEYS, SHARED, WIDTH = 3, 3, 64
CONFIG = CausalLMConfig(
    vocab_size=2048, width=576, mlp_width=1536, num_layers=2, num_heads=KEYS * SHARED, num_kv_heads=KEYS,
    head_width=WIDTH, context=1 << 20, rope=Rope(width=WIDTH),
)  # fmt: skip
Case = tuple[str, Callable[..., Any], tuple[Any, ...]]


def of_a_layer(tokens: int, rows: int, dtype: Any) -> Iterator[Case]:
    draw = np.random.default_rng(0)
    query = jnp.asarray(draw.normal(size=(rows * tokens, KEYS * SHARED, WIDTH)) * WIDTH**-0.5, dtype)
    keys, values = (jnp.asarray(draw.normal(size=(rows, KEYS, tokens, WIDTH)), dtype) for _ in range(2))
    positions = jnp.broadcast_to(jnp.arange(tokens), (rows, tokens))

    weights = jnp.asarray(draw.normal(size=(rows * tokens, KEYS * SHARED * WIDTH)), jnp.float32)

    def attend(*arrays: Any) -> Any:
        layout = attention.Layout(positions, None, None)
        with precision(dtype):
            return attention.attend(arrays[0], [(*arrays[1:], positions)], layout, None, None)

    def loss(*arrays: Any) -> Any:
        again = jax.checkpoint(lambda *x: attend(*x))  # another function each time, so that it is traced anew
        return (again(*arrays) * weights).sum()

    yield "attention", attend, (query, keys, values)
    yield "attention, gradient", jax.grad(loss, (0, 1, 2)), (query, keys, values)


def of_a_model(tokens: int, rows: int, dtype: Any) -> Iterator[Case]:
    model = causal_lm.causal_lm(CONFIG, dtype)
    weights = jax.random.normal(jax.random.key(2), (rows, tokens, CONFIG.width))
    params = model.init(jax.random.key(0))
    ids = jax.random.randint(jax.random.key(1), (rows, tokens), 0, CONFIG.vocab_size)
    positions = jnp.broadcast_to(jnp.arange(tokens), ids.shape)

    def read(params: Any, ids: Any) -> Any:
        return model.apply(params, ids, positions).hidden

    def loss(params: Any, ids: Any) -> Any:
        return (read(params, ids) * weights).sum()

    yield "model", read, (params, ids)
    yield "model, gradient", jax.grad(loss), (params, ids)


def measured(function: Callable[..., Any], arrays: tuple[Any, ...], repeats: int) -> tuple[int, float, Any]:
    """Temporary bytes, seconds, and what was computed."""
    compiled = jax.jit(lambda *x: function(*x)).lower(*arrays).compile()
    found, seconds = jax.block_until_ready(compiled(*arrays)), []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(compiled(*arrays))
        seconds.append(time.perf_counter() - start)
    analysis: Any = compiled.memory_analysis()
    return analysis.temp_size_in_bytes, min(seconds), found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, nargs="+", default=[2048, 4096])
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--block", type=int, help="other queries and keys at a time than the default")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.block:
        long_attention.BLOCKS = {jax.default_backend(): arguments.block}
    print(jax.devices()[0].device_kind, jax.__version__, arguments.dtype, flush=True)
    print("| what | tokens | all keys: MiB, ms | blockwise: MiB, ms | difference |\n|---|---|---|---|---|")
    for tokens in arguments.tokens:
        for cases in (of_a_layer, of_a_model):
            for name, function, arrays in cases(tokens, arguments.rows, jnp.dtype(arguments.dtype)):
                cells, outputs = [], []
                for attention.LONG in (tokens, tokens - 1):
                    size, seconds, found = measured(function, arrays, arguments.repeats)
                    cells.append(f"{size / 2**20:,.0f}, {1e3 * seconds:,.0f}")
                    outputs.append([np.asarray(x, np.float32) for x in jax.tree.leaves(found)])
                apart = max(float(np.abs(a - b).max() / np.abs(a).max()) for a, b in zip(*outputs))
                print(f"| {name} | {tokens:,} | {' | '.join(cells)} | {apart:.1e} |", flush=True)


if __name__ == "__main__":
    main()
