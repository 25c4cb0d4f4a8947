"""JAX's devices replaced by shapes: a run is rehearsed for a slice of chips that this machine does not have.

The run's own code runs, from texts to batches, over a cache of its own. What it would compute on chips
is recorded instead: the function, the shapes of its arguments and where they would lie. Its results are zeros
that take no memory. So no weights are read, and nothing is computed with them.

`install` changes JAX and parts of this package. It is called in a process of its own, before the rest of the
package is imported.
"""

import functools
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import Tracer
from jax.experimental import topologies
from jax.sharding import NamedSharding, Sharding, SingleDeviceSharding

from pbr_jax.base.types import UserError

CHILD = "PBR_JAX_REHEARSES"
"""Set in the environment of a process that rehearses."""


class Chip(NamedTuple):
    """What one device of a slice has: GiB that programs may use; and what it does in a second: operations of
    bfloat16 products, bytes to and from its memory, bytes to other chips."""

    memory: float
    flops: float
    bandwidth: float
    links: float


CHIPS = {  # https://docs.cloud.google.com/tpu/docs; a device of v4 is half a chip
    "v4": Chip(15.75, 137.5e12, 614e9, 150e9),
    "v5e": Chip(15.75, 197e12, 819e9, 200e9),
    "v5p": Chip(95.74, 459e12, 2765e9, 600e9),
    "v6e": Chip(31.25, 918e12, 1640e9, 400e9),
}


def chip(topology: str) -> Chip:
    """Of a slice such as v5e:2x4. Raises UserError for another chip."""
    kind = topology.partition(":")[0]
    if kind not in CHIPS:
        raise UserError(
            f"--topology {topology}: no such chip; want {', '.join(CHIPS)} with a grid, such as v5e:2x4"
        )
    return CHIPS[kind]


def devices(topology: str) -> list[Any]:
    """The devices of a slice. Raises UserError for one that the compiler does not know."""
    chip(topology)
    try:
        return list(topologies.get_topology_desc(platform="tpu", topology_name=topology).devices)
    except Exception as error:  # libtpu's, in several lines
        why = " ".join(str(error).split())[:200]
        raise UserError(
            f"--topology {topology}: the TPU compiler has no such slice ({why}); give a chip and its grid, "
            "such as v5e:2x4 or v5p:2x2x2"
        ) from error


class Shaped(np.ndarray):
    """Zeros that take no memory, and where they would lie; None: where the program says."""

    sharding: Sharding | None = None

    def __array_finalize__(self, obj: Any) -> None:
        self.sharding = None

    def addressable_data(self, index: int) -> "Shaped":
        return self

    def astype(self, dtype: Any, *_: Any, **__: Any) -> "Shaped":  # pyright: ignore[reportIncompatibleMethodOverride]
        return zeros(self, self.sharding, dtype)


def zeros(like: Any, sharding: Sharding | None = None, dtype: Any = None) -> Shaped:
    """Of the shape and type of something."""
    made = np.broadcast_to(np.zeros((), dtype or like.dtype), np.shape(like)).view(Shaped)
    made.sharding = sharding
    return made


@dataclass
class Program:
    """A function with the shapes of its arguments, as traced. `stage`: that called it first; `places`: the
    groups of chips that compute it, each its own calls."""

    stage: str
    name: str
    jitted: Any
    arguments: tuple[Any, ...]
    named: dict[str, Any]
    traced: Any
    calls: int = 0
    places: set[frozenset[int]] = field(default_factory=set)


class Recorder:
    """The programs that a run would compute on a slice. `stage`: that computes now."""

    def __init__(self, topology: str) -> None:
        self.topology, self.devices, self.stage = topology, devices(topology), ""
        self._free = int(chip(topology).memory * 2**30)  # on each chip, as far as weights were placed
        self._programs: dict[Any, Program] = {}

    @property
    def programs(self) -> list[Program]:
        return [*self._programs.values()]

    def called(self, name: str, jitted: Any, arguments: Any, named: Any, out: Any) -> Any:
        """Notes a call, and gives zeros for its results. `out`: their shardings; None: the program's."""
        leaves, structure = jax.tree.flatten((arguments, named))
        shaped = [leaf for leaf in leaves if isinstance(leaf, Shaped)]
        placed = {(x.shape, x.dtype): x.sharding for x in shaped if x.sharding is not None}
        first = None if placed else SingleDeviceSharding(self.devices[0])
        shapes = [_shape(leaf, first) for leaf in leaves]
        key = id(jitted), structure, *map(_known, shapes)
        if key not in self._programs:
            one, other = jax.tree.unflatten(structure, shapes)
            traced = jitted.trace(*one, **other)
            self._programs[key] = Program(self.stage, name, jitted, one, other, traced)
        program = self._programs[key]
        program.calls += 1
        program.places.add(frozenset(chip.id for where in placed.values() for chip in where.device_set))
        found = program.traced.out_info
        if name == "_merge_block":  # other rows in each place, or rankings would have one document
            rows, end = np.arange(found[1].shape[1], dtype=np.int32), sum(arguments[3:5])
            return zeros(found[0]), np.broadcast_to(np.where(rows < end, rows, -1), found[1].shape)
        if out is not None:
            spread = functools.partial(jax.tree.map, is_leaf=lambda x: isinstance(x, Sharding))
            return spread(lambda how, part: jax.tree.map(lambda x: zeros(x, how), part), out, found)
        return jax.tree.map(lambda x: zeros(x, placed.get((x.shape, x.dtype))), found)

    def put(self, tree: Any, device: Any = None, **_: Any) -> Any:
        """`jax.device_put`."""
        return jax.tree.map(lambda x: zeros(x, device), tree) if isinstance(device, Sharding) else tree

    def placed(self, shape: tuple[int, ...], where: Sharding, read: Callable[..., Any]) -> Shaped:
        """`jax.make_array_from_callback`, which weights are placed with."""
        part = read((slice(0, 0),) * len(shape))
        self._free -= math.prod(where.shard_shape(shape)) * part.dtype.itemsize
        return zeros(np.broadcast_to(np.zeros((), part.dtype), shape), where)

    def for_rows(self, *_: Any) -> int:
        """`prefill.for_rows`: its share of what weights leave free."""
        return 1 << max(self._free // 4, 1).bit_length() - 1


def _shape(leaf: Any, otherwise: Sharding | None) -> Any:
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic):
        return leaf
    where = leaf.sharding if isinstance(leaf, Shaped) else None
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where or otherwise)


def _known(leaf: Any) -> Any:
    """What tells arguments of two programs apart; not which chips of the slice hold them."""
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    where = leaf.sharding
    how = (where.spec, *where.mesh.shape.items()) if isinstance(where, NamedSharding) else None
    return leaf.shape, leaf.dtype, how


class _Jitted:
    """What `jax.jit` makes of a function of this package."""

    def __init__(self, recorder: Recorder, made: Any, function: Any, out: Any) -> None:
        self._recorder, self._made, self._out = recorder, made, out
        functools.update_wrapper(self, function, updated=())
        self._name = getattr(function, "__qualname__", type(function).__name__).partition(".")[0]

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((arguments, named))):
            return self._made(*arguments, **named)
        return self._recorder.called(self._name, self._made, arguments, named, self._out)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._made, name)


recorder: Recorder | None = None
"""Of this process, once `install` was called."""


def install(topology: str) -> None:
    """Replaces JAX's devices by those of a slice, and what computes on them by `recorder`."""
    global recorder
    recorder = made = Recorder(topology)
    jax.config.update("jax_enable_compilation_cache", False)
    count = len(made.devices)
    _replace(
        jax,
        jit=functools.partial(_jit, made, jax.jit),
        device_put=made.put,
        default_backend=lambda: "tpu",
        devices=lambda *_: made.devices,
        local_devices=lambda *_, **__: made.devices,
        device_count=lambda *_: count,
        local_device_count=lambda *_: count,
        make_array_from_callback=made.placed,
        make_array_from_process_local_data=lambda where, rows: zeros(rows, where),
    )
    # In this order: a module that imports one of these names finds the replaced one.
    rules, pretrained = import_module("pbr_jax.models.rules"), import_module("pbr_jax.models.pretrained")
    _replace(pretrained, read_tensors=functools.partial(_tensors, pretrained.read_tensors))
    _replace(rules, assign=functools.partial(_assigned, rules))
    kept: list[Any] = []
    _replace(
        import_module("pbr_jax.models.params_file"),
        save_params=lambda params, path: (path.write_text(str(len(kept))), kept.append(params)),
        load_params=lambda path: kept[int(path.read_text())],
    )
    _replace(import_module("pbr_jax.train.checkpoints"), Checkpoints=_Checkpoints)
    prefill = import_module("pbr_jax.llm.engine.prefill")
    _replace(prefill, for_rows=made.for_rows)
    _replace(prefill.PrefillEngine, zeros=_room)


def _replace(owner: Any, **values: Any) -> None:
    for name, value in values.items():
        setattr(owner, name, value)


def _jit(recorder: Recorder, real: Any, function: Any = None, **options: Any) -> Any:
    """`jax.jit`: others' functions are compiled as ever."""
    if function is None:
        return functools.partial(_jit, recorder, real, **options)
    inner = function.func if isinstance(function, functools.partial) else function
    ours = (getattr(inner, "__module__", None) or "").startswith("pbr_jax")
    made = real(function, **options)
    return _Jitted(recorder, made, inner, options.get("out_shardings")) if ours else made


def _room(engine: Any, shape: tuple[int, ...], heads: int) -> Shaped:
    """`PrefillEngine.zeros`."""
    empty = np.broadcast_to(np.zeros((), engine.params["embedding"].dtype), shape)
    return zeros(empty, engine._heads(heads))


def _assigned(rules: Any, tensors: Any, table: Any, target: Any, **options: Any) -> Any:
    """`rules.assign`, of shapes alone."""
    put = options.get("put", lambda path, leaf: leaf)
    return rules.unflatten({path: put(path, zeros(leaf)) for path, leaf in rules.flatten(target).items()})


def _tensors(read: Callable[[Path], Any], path: Path) -> Any:
    """`pretrained.read_tensors`; of a folder that has no weights yet, nothing."""
    bare = (path / "config.json").is_file() and not [
        name for name in os.listdir(path) if "safetensors" in name
    ]
    return import_module("pbr_jax.models.pretrained").Tensors({}) if bare else read(path)


class _Checkpoints:
    """`train.checkpoints.Checkpoints` that writes nothing: the last state is the best."""

    latest = best = None

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> "_Checkpoints":
        return self

    def __exit__(self, *_: object) -> None: ...

    def save(self, *_: object) -> None: ...
