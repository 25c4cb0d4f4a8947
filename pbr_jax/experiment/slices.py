"""What each program of a run takes on a slice of TPUs, compiled for it by a machine that has none.

The run is rehearsed in a process of its own (`stand_in`). Of each function the call with the most operations
is compiled by the TPU compiler's library, libtpu. Calls of other shapes are taken to be as fast for their
operations.
"""

import importlib.util
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax

from pbr_jax.base import terminal
from pbr_jax.base.tables import Table
from pbr_jax.base.types import UserError
from pbr_jax.experiment.compiled_text import Collective, Products, collectives, products
from pbr_jax.experiment.stand_in import CHILD, Chip, Program, Recorder, chip
from pbr_jax.graph import Node, Stage, walk

_MIB, _GIB = 2**20, 2**30
_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",  # or libtpu asks the network what machine this is
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_EXEC_TIME_OPTIMIZATION_EFFORT": "-1",  # a ninth of the time, and more temporaries than with 0
    CHILD: "1",
}
_NAMES = {
    "compiled": "step",
    "extend": "read shared",
    "admit": "read prompts",
    "advance": "write answers",
    "log_probabilities": "score",
    "merge_block": "search",
    "forward": "encode",
    "states_program": "encode",
    "TokenEncoder": "encode",
    "cross_encoder": "read pairs",
    "from_arrays": "choose",
    "draw": "draw profiles",
}
_ERROR = "pbr-jax: error: "


def elsewhere(topology: str, words: Sequence[str]) -> tuple[str, str]:
    """The table of a run with these words of the command line, from a process of its own, and what is wrong
    with it; "": nothing."""
    chip(topology)
    if importlib.util.find_spec("libtpu") is None:
        raise UserError("--topology needs the TPU compiler; install it with: pip install 'pbr-jax[tpu]'")
    command = [sys.executable, "-m", "pbr_jax", "run", *words, "--dry", "--topology", topology]
    with tempfile.TemporaryDirectory(prefix="pbr_jax-") as folder:
        environment = _ENVIRONMENT | os.environ | {"JAX_PLATFORMS": "cpu", "PBR_JAX_CACHE": folder}
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, env=environment, **pipes) as child:
            told = []
            for line in child.stderr or ():
                told.append(line.rstrip())
                if line.startswith("compiling ") and ":" in line:
                    terminal.err(told[-1])
            text = child.stdout.read() if child.stdout else ""
    if not child.returncode:
        return text, ""
    wrong = [line.removeprefix(_ERROR) for line in told if line.startswith(_ERROR)]
    if not wrong:
        raise RuntimeError(f"the rehearsal ended with {child.returncode}: {' '.join(told[-20:])}")
    return text, wrong[-1]


class Row(NamedTuple):
    """A function of a run on a slice; sizes are bytes of one chip.

    `held`: of arguments, results and temporaries; more than the chip has where it does not fit. `moved`: to
    and from memory in a call, at least. `limits`: seconds that each part of a chip needs for a call, at best.
    `seconds`: of all calls.
    """

    stage: str
    name: str
    calls: int
    cost: Products
    weights: int
    optimizer: int
    held: float
    temporaries: int = 0
    moved: int = 0
    exchanged: Mapping[str, Collective] = {}
    compiled: float = 0.0
    limits: Mapping[str, float] = {}
    seconds: float = 0.0


def rehearsed(last: Node, recorder: Recorder) -> list[str]:
    """Computes what a run needs, with stand-ins for all numbers. What could not be, with the reason."""
    failed: dict[int, str] = {}
    for node in walk(last):
        if any(id(need) in failed for need in node.needs.values()):
            failed[id(node)] = ""
            continue
        recorder.stage = node.label if isinstance(node, Stage) else recorder.stage
        try:
            _ = node.value
        except (UserError, LookupError, ValueError, TypeError, AttributeError) as error:
            if os.environ.get("PBR_JAX_TRACEBACK"):
                raise
            failed[id(node)] = f"not counted: {recorder.stage}: {' '.join(str(error).split())[:200]}"
    return [*filter(None, failed.values())]


def rows(recorder: Recorder) -> list[Row]:
    """A row for each function with products, in the order of their first calls."""
    groups: dict[Any, list[tuple[Program, Products]]] = {}
    for program in recorder.programs:
        cost = products(program.traced.jaxpr, _trips(program))
        if cost.flops:
            alike = program.name, jax.tree.structure((program.arguments, program.named))
            groups.setdefault(alike, []).append((program, cost))
    return [_row(group, chip(recorder.topology)) for group in groups.values()]


def _row(group: list[tuple[Program, Products]], has: Chip) -> Row:
    program, cost = max(group, key=lambda pair: pair[1])
    name, trips = program.name.lstrip("_"), _trips(program)
    weights, optimizer = _weights(program)
    row = Row(
        program.stage,
        _NAMES.get(name, name.replace("_", " ")),
        sum(one.calls for one, _ in group),
        cost,
        weights,
        optimizer,
        weights + optimizer,
    )
    if row.held > has.memory * _GIB:
        return row
    terminal.doing(f"compiling {row.stage}: {row.name}", slow=True)
    start = time.perf_counter()
    try:
        compiled = program.traced.lower().compile()
    except jax.errors.JaxRuntimeError as error:
        if (used := re.search(r"Used ([\d.]+)([MG]) of [\d.]+[MG] hbm", str(error))) is None:
            raise
        return row._replace(held=float(used[1]) * {"M": _MIB, "G": _GIB}[used[2]])
    seconds, memory = time.perf_counter() - start, compiled.memory_analysis()
    stays = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    exchanged = collectives(compiled.as_text(), trips)
    # What a loop of unknown length reads, such as weights, it reads each time.
    moved = stays * (trips if name == "advance" else 1) + 2 * memory.temp_size_in_bytes
    spread = max(1, *map(len, program.places))
    links = sum(one.bytes * (2 if kind == "all-reduce" else 1) for kind, one in exchanged.items())
    limits = {
        "products": cost.passes / spread / has.flops,
        "memory": moved / has.bandwidth,
        "links": links / has.links,
    }
    each = max(limits.values()) / cost.passes
    return row._replace(
        held=stays + memory.temp_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        moved=moved,
        exchanged=exchanged,
        compiled=seconds,
        limits=limits,
        seconds=sum(one.calls * each * own.passes / len(one.places) for one, own in group),
    )


def _trips(program: Program) -> int:
    """How often loops run whose ends depend on values: until the longest answer is written, and all blocks of
    target tokens are scored."""
    if program.name == "advance":
        return program.arguments[2].tokens.shape[1]
    if program.name == "log_probabilities":
        return -(-program.arguments[3].shape[0] // 128)
    return program.named.get("max_new_tokens") or program.named.get("new") or 1


def _weights(program: Program) -> tuple[int, int]:
    """Bytes of weights and of the optimizer's state."""
    first, *rest = program.arguments
    if hasattr(first, "opt_state"):
        return _on_chip([first.params, rest[-1]]), _on_chip(first.opt_state)
    return _on_chip(first if isinstance(first, Mapping) else []), 0


def _on_chip(tree: Any) -> int:
    leaves = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.ShapeDtypeStruct)]
    shapes = [leaf.sharding.shard_shape(leaf.shape) if leaf.sharding else leaf.shape for leaf in leaves]
    return sum(math.prod(shape) * leaf.dtype.itemsize for shape, leaf in zip(shapes, leaves))


# -- what is printed -----------------------------------------------------------------------------------

_HEADER = ["program", "calls", "compile s", "weights MiB", "optimizer MiB", "temporaries MiB", "of a chip"]
_HEADER += ["FLOPs", "MiB moved", "ms", "bound by", "seconds", "collectives: number × MiB"]


def table(found: Sequence[Row], failed: Sequence[str], recorder: Recorder) -> str:
    """The rows and their sum, as text."""
    has = chip(recorder.topology)
    total = ["all", f"{sum(row.calls for row in found):,}", f"{sum(row.compiled for row in found):.1f}"]
    total += [""] * 8 + [f"{sum(row.seconds for row in found):.3g}", ""]
    notes = [
        "Estimates: no chip was used. ms of a call and seconds of all are what a chip's peaks allow at best.",
        "Sizes are of one chip, FLOPs of all; each row shows the function's call with the most FLOPs.",
        "The compiler made little effort; with JAX_EXEC_TIME_OPTIMIZATION_EFFORT=0 temporaries are fewer.",
    ]
    title = f"Compiled for {recorder.topology}: {len(recorder.devices)} chips of {has.memory:g} GiB"
    return Table(title, _HEADER, [*(_cells(row, has) for row in found), total], [*notes, *failed]).text()


def _cells(row: Row, has: Chip) -> list[str]:
    mib = [f"{size / _MIB:,.0f}" for size in (row.weights, row.optimizer, row.temporaries)]
    bound = max(row.limits, key=row.limits.__getitem__, default="")
    each = [f"{kind} {of.number} × {of.bytes / of.number / _MIB:.3g}" for kind, of in row.exchanged.items()]
    cells = [f"{row.stage}: {row.name}", f"{row.calls:,}", f"{row.compiled:.1f}", *mib]
    cells += [f"{row.held / _GIB / has.memory:.1%}", f"{row.cost.flops:.3g}", f"{row.moved / _MIB:,.0f}"]
    cells += [f"{1e3 * row.limits.get(bound, 0):.3g}", bound or "does not fit", f"{row.seconds:.3g}"]
    return [*cells, ", ".join(each)]


def refusal(found: Sequence[Row], recorder: Recorder) -> str:
    """What does not fit a chip, and the option that helps; "": all does."""
    memory = chip(recorder.topology).memory * _GIB
    for row in found:
        if row.held > memory:
            return (
                f"{row.stage}: {row.name} needs {row.held / _GIB:.1f} GiB of a chip, and one of "
                f"{recorder.topology} has {memory / _GIB:g}; {_help(row, memory, len(recorder.devices))}"
            )
    return ""


def _help(row: Row, memory: float, devices: int) -> str:
    share = min(devices, 1 << math.ceil(math.log2(max(1.0, 1.5 * row.weights / memory))))
    divided = f"divide its weights with --llm.tensor_parallel {share}"
    if row.name == "encode":
        return "lower --encoder.batch_tokens, or set --encoder.dtype bfloat16"
    if row.name == "step" and row.weights + row.optimizer < memory:
        return "raise its training.accumulate, or set --generator.remat yes"
    if row.weights < memory:
        return "lower --llm.batch_size or --llm.context"
    return f"set --llm.dtype bfloat16 (--generator.training.dtype where it is trained), or {divided}"
