"""`--dry --topology`: programs of rehearsed runs, what they take, and what is refused."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from pbr_jax.cli.main import main
from pbr_jax.experiment import flops, slices
from pbr_jax.experiment.compiled_text import Collective, Products, collectives, products
from pbr_jax.models import bert, causal_lm
from pbr_jax.models.causal_lm_config import CausalLMConfig
from pbr_jax.models.rope import Rope
from pbr_jax.models.sharding import mesh

ROOT = Path(__file__).parents[2]
SIZES = st.integers(1, 3), st.sampled_from([1, 2, 4]), st.integers(1, 5), st.integers(2, 60)


@settings(max_examples=10)
@given(*SIZES)
def test_products_of_an_encoder_are_those_that_cost_counts(layers: int, heads: int, rows: int, tokens: int):
    config = bert.BertConfig(
        vocab_size=9,
        hidden_size=8 * heads,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=24,
        max_position_embeddings=64,
    )
    model, ids = bert.bert(config), jax.ShapeDtypeStruct((rows, tokens), jnp.int32)
    params = jax.eval_shape(model.init, jax.random.key(0))
    found = jax.make_jaxpr(lambda p, x: model.apply(p, x, segments=x))(params, ids)
    wanted = flops.bert(config, np.full(rows, tokens)).sum()
    assert products(found.jaxpr) == Products(wanted, 6 * wanted)


@settings(max_examples=10)
@given(*SIZES)
def test_products_of_a_language_model_are_those_that_cost_counts(
    layers: int, heads: int, rows: int, tokens: int
):
    config = CausalLMConfig(
        vocab_size=50,
        width=8 * heads,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=1,
        head_width=8,
        mlp_width=24,
        context=64,
        rope=Rope(width=8, theta=1e4),
    )
    model, ids = causal_lm.causal_lm(config, jnp.bfloat16), jax.ShapeDtypeStruct((rows, tokens), jnp.int32)
    params = jax.eval_shape(model.init, jax.random.key(0))
    found = jax.make_jaxpr(lambda p, x: causal_lm.logits(p, model.apply(p, x, x).hidden[:, -1]))(params, ids)
    wanted = flops.causal_lm(config).scored(np.full(rows, tokens - 1), np.ones(rows, np.int64)).sum()
    assert products(found.jaxpr).flops == pytest.approx(wanted, rel=0.1)


def test_loops_count_as_often_as_they_run():
    over = mesh(data=8)
    share = NamedSharding(over, P("data"))

    def f(x, w):
        def once(total, _):
            return jax.shard_map(
                lambda y: jax.lax.psum(y @ w, "data"), mesh=over, in_specs=P("data"), out_specs=P()
            )(total + x).repeat(8, axis=0), None

        return jax.lax.scan(once, jnp.zeros_like(x), None, length=5)[0]

    x, w = jnp.ones((16, 4)), jnp.ones((4, 4))
    compiled = jax.jit(f, in_shardings=(share, NamedSharding(over, P()))).lower(x, w).compile()
    found = collectives(compiled.as_text() or "")
    assert found["all-reduce"] == Collective(5, 5 * 2 * 4 * 4)
    assert products(jax.make_jaxpr(f)(x, w).jaxpr).flops == 5 * 8 * 2 * (2 * 4 * 4)


TPU_LOOP = """
%condition (p: (s32[], bf16[64,128])) -> pred[] {
  %p = (s32[]{:T(128)}, bf16[64,128]{1,0:T(8,128)(2,1)}) parameter(0)
  %limit.1 = s32[]{:T(128)} constant(5)
  %count = s32[]{:T(128)} get-tuple-element(%p), index=0
  ROOT %lt = pred[]{:T(512)} compare(%count, %limit.1), direction=LT
}

%body (p: (s32[], bf16[64,128])) -> (s32[], bf16[64,128]) {
  %p.1 = (s32[]{:T(128)}, bf16[64,128]{1,0:T(8,128)(2,1)}) parameter(0)
  %x = bf16[64,128]{1,0:T(8,128)(2,1)} get-tuple-element(%p.1), index=1
  %sum = bf16[64,128]{1,0:T(8,128)(2,1)S(1)} all-reduce(%x), replica_groups={{0,1}}, to_apply=%add
}

ENTRY %main (a: bf16[64,128]) -> bf16[64,128] {
  %t = (s32[]{:T(128)}, bf16[64,128]{1,0:T(8,128)(2,1)}) tuple(%zero, %a)
  %while = (s32[]{:T(128)}, bf16[64,128]{1,0:T(8,128)(2,1)}) while(%t), condition=%condition, body=%body
}
"""


def test_a_loop_of_a_tpu_program_counts_up_to_the_constant_of_its_condition():
    assert collectives(TPU_LOOP) == {"all-reduce": Collective(5, 5 * 64 * 128 * 2)}
    unknown = TPU_LOOP.replace("constant(5)", "parameter(1)")
    assert collectives(unknown, trips=7) == {"all-reduce": Collective(7, 7 * 64 * 128 * 2)}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--topology", "v5e:2x4"], "--cost and --topology tell what a run would take; add --dry"),
        (["--dry", "--topology", "h100:8"], "--topology h100:8: no such chip; want v4, v5e, v5p, v6e"),
        (["--dry", "--topology", "v5e:2x4"], "install it with: pip install 'pbr-jax[tpu]'"),
    ],
)
@pytest.mark.usefixtures("fresh_cache")
def test_what_cannot_be_compiled_is_one_line(words, told, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (tmp_path / "c.py").write_text((ROOT / "configs/bm25.py").read_text())
    fields = ["--generate.method", "none", "--limit", "2"]
    assert main(["run", str(tmp_path / "c.py"), *fields, *words]) == 2
    assert told in capfd.readouterr().err


# -- whole runs ----------------------------------------------------------------------------------------


ELSEWHERE = """
import jax, re, sys
from jax import export
from pbr_jax.experiment import stand_in
stand_in.CHIPS["cpu"] = stand_in.CHIPS["v5e"]
stand_in.devices = lambda topology, devices=tuple(jax.devices()): [*devices]
stand_in.install("cpu:8")
from pbr_jax.config import found, load, override
from pbr_jax.experiment import slices
from pbr_jax.experiment.plan import Plan
seen, fields = set(), dict(zip(sys.argv[2::2], sys.argv[3::2]))
for name in sys.argv[1].split(","):
    file = load(found(name))
    fields |= {"llm.tensor_parallel": 2, "limit": 2, "limit_training": 8}  # a mesh of its own
    fields |= {"select.num_layers": 1, "select.num_heads": 2} if name == "purple" else {}
    plan = Plan(override(file.config, fields, file.path))
    failed = slices.rehearsed(plan.last, stand_in.recorder)
    assert not failed, failed
for program in stand_in.recorder.programs:
    if id(program.jitted) in seen or not slices.products(program.traced.jaxpr).flops:
        continue
    seen.add(id(program.jitted))
    export.export(program.jitted, platforms=["cuda", "tpu"])(*program.arguments, **program.named)
    print("LOWERED", program.stage, program.name.lstrip("_"))
    if program.stage not in ("embed", "user_encoder", "feedback_retriever"):
        continue  # to compile the others takes minutes
    compiled = program.traced.lower().compile()
    held = slices._on_chip([program.arguments, program.named])
    memory = compiled.memory_analysis().argument_size_in_bytes
    gathered = re.findall(r" = \\w+\\[([\\d,]*)\\]\\S* all-gather", compiled.as_text())
    print("PROGRAM", program.stage, program.name.lstrip("_"), held, memory, *gathered)
"""


def in_process(tmp_path: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PBR_JAX_CACHE": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        **environment,
    }
    return subprocess.run(
        [sys.executable, *command], env=os.environ | environment, capture_output=True, text=True, cwd=tmp_path
    )


@pytest.mark.long
def test_programs_lower_for_gpus_and_tpus_and_take_the_bytes_that_are_said(tiny_models, tmp_path):
    """Rehearsed on virtual devices of the CPU, whose compiler says what arguments take."""
    fields = [word for pair in tiny_models.items() for word in pair]
    flags = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    done = in_process(tmp_path, "-c", ELSEWHERE, "cfrag,tuned,purple", *fields, **flags)
    assert done.returncode == 0, done.stderr[-3000:]
    trained = {tuple(line.split()[1:]) for line in done.stdout.splitlines() if line.startswith("LOWERED")}
    for stage in ("user_encoder", "retriever", "reranker", "generator", "purple"):
        assert (stage, "compiled") in trained
    lines = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("PROGRAM")]
    names = {(stage, name) for stage, name, *_ in lines}
    wanted = {("embed", "forward"), ("user_encoder", "compiled"), ("feedback_retriever", "advance")}
    assert wanted <= names
    for _, _, held, memory, *_ in lines:
        assert int(held) == pytest.approx(int(memory), rel=0.1, abs=1024)
    # A step gathers the vectors that its loss compares, [rows, width], and numbers of rows: no layer.
    for _, name, _, _, *gathered in lines:
        assert name != "compiled" or all(shape.count(",") < 2 for shape in gathered)


needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs the TPU compiler: pip install 'pbr-jax[tpu]'"
)


@needs_libtpu
@pytest.mark.long
def test_a_run_is_compiled_for_a_slice(tiny_models, tmp_path):
    words = [word for name, value in tiny_models.items() for word in (f"--{name}", value)]
    command = ["-m", "pbr_jax", "run", "cfrag", "--limit", "4", *words, "--dry", "--topology", "v5e:2x2"]
    done = in_process(tmp_path, *command)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Compiled for v5e:2x2: 4 chips of 15.75 GiB" in done.stdout
    for row in (
        "embed: encode",
        "user_encoder: step",
        "retriever: step",
        "reranker: step",
        "feedback_retriever: write answers",
        "likelihood: score",
    ):
        found = re.search(rf"^{row}.*? ([\d.]+)% .* (products|memory|links) ", done.stdout, re.MULTILINE)
        assert found is not None
        assert float(found[1]) > 0


@needs_libtpu
@pytest.mark.long
def test_what_does_not_fit_is_refused_with_what_helps(tiny_models, tmp_path):
    """A model of eight billion parameters in float32, of which there are only the sizes."""
    folder = tmp_path / "llama"
    folder.mkdir()
    config = json.loads((Path(tiny_models["llm.model"]) / "config.json").read_text())
    config |= {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "head_dim": 128}
    config |= {"num_attention_heads": 32, "num_key_value_heads": 8}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_bytes((Path(tiny_models["llm.model"]) / "tokenizer.json").read_bytes())
    words = ["run", "bm25", "--limit", "2", "--llm.model", str(folder), "--dry", "--topology", "v5e:2x4"]
    done = in_process(tmp_path, "-m", "pbr_jax", *words)
    assert done.returncode == 2, done.stderr[-3000:]
    assert "GiB of a chip, and one of v5e:2x4 has 15.75; set --llm.dtype bfloat16" in done.stderr
    assert slices.chip("v5e:2x4").memory == 15.75
