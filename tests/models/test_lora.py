"""Adapters: the added product, merging, dropout, and files that PEFT reads and writes."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import save_llama, save_t5

from pbr_jax.base.types import UserError
from pbr_jax.models import adapter_file, causal_lm, lora, t5
from pbr_jax.models.causal_lm_layers import Projection

torch: Any = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")

# PEFT asks transformers by an old name.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

IDS = np.random.default_rng(0).integers(0, 97, (3, 11), dtype=np.int32)
TARGETS = ("query", "value", "down")
PEFT_NAMES = {"query": "q_proj", "value": "v_proj", "down": "down_proj"}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("llama")
    return folder, save_llama(folder)


@pytest.fixture(scope="module")
def flan(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("t5")
    return folder, save_t5(folder)


def random_adapter(params: Any, targets: tuple[str, ...] = TARGETS) -> Any:
    adapter = lora.init(jax.random.key(1), params, targets, 4)
    leaves, structure = jax.tree.flatten(adapter)
    keys = jax.random.split(jax.random.key(2), len(leaves))
    return structure.unflatten([0.3 * jax.random.normal(k, x.shape) for k, x in zip(keys, leaves)])


def causal_logits(model: Any, params: Any, ids: np.ndarray = IDS, **options: Any) -> np.ndarray:
    positions = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
    return np.asarray(
        causal_lm.logits(params, model.apply(params, jnp.asarray(ids), positions, **options).hidden)
    )


def t5_logits(model: Any, params: Any) -> np.ndarray:
    mask = jnp.ones(IDS.shape, bool)
    ids = jnp.asarray(IDS)
    return np.asarray(t5.logits(params, model.apply(params, ids, mask, ids[:, :5])))


@pytest.mark.long
def test_merged_equals_added_in_every_layer(llama):
    model, params, _ = causal_lm.load(llama[0])
    adapter = random_adapter(params)
    beside = causal_logits(model, lora.attached(params, adapter, 2.0))
    within = causal_logits(model, lora.merged(params, adapter, 2.0))
    np.testing.assert_allclose(beside, within, atol=2e-5)
    assert np.abs(beside - causal_logits(model, params)).max() > 0.1


@pytest.mark.parametrize("targets", [("query", "vaule"), ()])
def test_maps_that_the_model_does_not_have_are_named(llama, targets):
    _, params, _ = causal_lm.load(llama[0])
    with pytest.raises(UserError, match="the model has down, gate, key, output, query, up, value"):
        lora.init(jax.random.key(0), params, targets, 4)


def test_dropout_follows_the_rows_numbers_and_not_their_places(llama):
    _, params, config = causal_lm.load(llama[0])
    model = causal_lm.causal_lm(config, dropout=0.5)
    weights = lora.attached(params, random_adapter(params), 2.0)
    key, order = jax.random.key(3), np.array([2, 0, 1])
    rows = jnp.array([7, 1, 5], jnp.int32)
    dropped = causal_logits(model, weights, key=key, rows=rows)
    assert np.abs(dropped - causal_logits(model, weights)).max() > 0.01
    np.testing.assert_allclose(
        causal_logits(model, weights, IDS[order], key=key, rows=rows[order]), dropped[order], atol=1e-5
    )
    packed = causal_logits(model, weights, key=key, rows=rows, tokens=40)
    np.testing.assert_allclose(packed, dropped, atol=1e-5)


@pytest.mark.long
def test_layers_that_are_computed_again_have_the_same_gradient(llama):
    _, params, config = causal_lm.load(llama[0])
    adapter = random_adapter(params)

    def gradient(remat: bool) -> Any:
        model = causal_lm.causal_lm(config, dropout=0.3, remat=remat)

        def total(adapter: Any) -> Any:
            weights = lora.attached(params, adapter, 2.0)
            positions = jnp.broadcast_to(jnp.arange(IDS.shape[1]), IDS.shape)
            hidden = model.apply(
                weights, jnp.asarray(IDS), positions, key=jax.random.key(3), rows=jnp.arange(3)
            ).hidden
            return (hidden**2).sum()

        return jax.jit(jax.grad(total))(adapter)

    for one, other in zip(jax.tree.leaves(gradient(False)), jax.tree.leaves(gradient(True)), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4 * float(np.abs(one).max()))


def test_an_adapter_in_float32_learns_beside_narrow_weights(llama):
    model, params, _ = causal_lm.load(llama[0], jnp.bfloat16)
    adapter = random_adapter(params)
    weights = lora.attached(params, adapter, 1.0)
    assert weights["layers"]["query"]["lora_a"].dtype == jnp.float32
    found = causal_logits(model, weights)
    wide, wide_params, _ = causal_lm.load(llama[0])
    exact = causal_logits(wide, lora.attached(wide_params, adapter, 1.0))
    assert np.abs(found - exact).max() < 0.15 * np.abs(exact).max()


# -- files -----------------------------------------------------------------------------------------


def written(folder: Path, adapter: Any, modules: dict[str, str], **options: Any) -> Path:
    told: dict[str, Any] = dict(rank=4, alpha=8.0, dropout=0.1, base="tiny", task="CAUSAL_LM")
    adapter_file.write(folder, adapter, modules, **(told | options))
    return folder


def test_peft_reads_what_is_written_here(llama, tmp_path: Path):
    peft = pytest.importorskip("peft")
    folder, _ = llama
    model, params, _ = causal_lm.load(folder)
    adapter = random_adapter(params)
    saved = written(tmp_path / "adapter", adapter, causal_lm.MODULES)
    fresh = transformers.LlamaForCausalLM.from_pretrained(folder).eval()
    tuned = peft.PeftModel.from_pretrained(fresh, str(saved)).eval()
    with torch.no_grad():
        wanted = tuned(torch.tensor(IDS.astype(np.int64))).logits.numpy()
    found = causal_logits(model, lora.merged(params, adapter, 2.0))
    np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("rslora", [False, pytest.param(True, marks=pytest.mark.long)])
def test_what_peft_writes_is_read_here(llama, tmp_path: Path, rslora: bool):
    peft = pytest.importorskip("peft")
    folder, _ = llama
    names = [PEFT_NAMES[name] for name in TARGETS]
    options = peft.LoraConfig(
        r=4, lora_alpha=6, target_modules=names, task_type="CAUSAL_LM", use_rslora=rslora
    )
    fresh = transformers.LlamaForCausalLM.from_pretrained(folder)
    tuned = peft.get_peft_model(fresh, options).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in tuned.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.3)
        wanted = tuned(torch.tensor(IDS.astype(np.int64))).logits.numpy()
    tuned.save_pretrained(tmp_path)
    model, params, _ = causal_lm.load(folder)
    found = causal_logits(model, adapter_file.tuned(tmp_path, causal_lm.MODULES, params))
    np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.long
def test_t5s_dropout_is_of_what_adapters_read_and_follows_rows(flan):
    _, params, config = t5.load(flan[0])
    model, ids, mask = t5.t5(config, dropout=0.4), jnp.asarray(IDS), jnp.ones_like(IDS, bool)
    apply = jax.jit(model.apply)

    def hidden(rows: list[int], key: int | None, params: Any) -> np.ndarray:
        some = jnp.array(rows)
        dropped = None if key is None else jax.random.key(key)
        return np.asarray(apply(params, ids[some], mask[some], ids[some, :5], dropped, some))

    plain = hidden([0, 1, 2], None, params)
    np.testing.assert_array_equal(hidden([0, 1, 2], 7, params), plain)  # without an adapter nothing is lost
    leaves, structure = jax.tree.flatten_with_path(random_adapter(params))
    paths = ("encoder/layers/query", "decoder/layers/value", "decoder/layers/cross_query", "cross/value",
             "encoder/layers/down", "decoder/layers/down")  # fmt: skip
    for path in paths:
        # The other maps' adapters are zeros, so that all are one program.
        one = [
            leaf * (jax.tree_util.keystr(name[:-1], simple=True, separator="/") == path)
            for name, leaf in leaves
        ]
        beside = lora.attached(params, structure.unflatten(one), 0.5)
        whole = hidden([0, 1, 2], 7, beside)
        assert np.abs(whole - hidden([0, 1, 2], None, beside)).max() > 1e-3, path
        assert np.abs(whole - hidden([0, 1, 2], 8, beside)).max() > 1e-3, path
        np.testing.assert_allclose(hidden([2, 0], 7, beside), whole[[2, 0]], atol=1e-5, err_msg=path)


def test_a_maps_dropout_scales_what_is_kept():
    """B A times what was kept, divided by its share; no token loses what another does."""
    layer, draw = Projection(3, False, jnp.float32, 0.25), np.random.default_rng(0)
    x, numbers = jnp.asarray(draw.normal(size=(10, 64)), jnp.float32), jnp.arange(10)
    kernel, a, b = (draw.normal(size=shape).astype(np.float32) for shape in ((3, 64), (64, 64), (3, 64)))
    whole = {"kernel": 0 * kernel, "lora_a": np.eye(64, dtype=np.float32), "lora_b": b}
    wide = Projection(64, False, jnp.float32, 0.25)  # with the identity for B it shows what was kept
    seen = {"kernel": np.zeros((64, 64), np.float32), "lora_a": whole["lora_a"], "lora_b": whole["lora_a"]}
    rngs = {"dropout": jax.random.key(3)}
    kept = np.asarray(wide.apply({"params": jax.tree.map(jnp.asarray, seen)}, x, numbers, rngs=rngs))
    lost = kept == 0
    np.testing.assert_allclose(kept, np.where(lost, 0, x / 0.75), rtol=1e-6)
    assert 0.15 < lost.mean() < 0.35
    assert len({row.tobytes() for row in lost}) == 10
    given = jax.tree.map(jnp.asarray, whole | {"kernel": kernel, "lora_a": a})
    found = layer.apply({"params": given}, x, numbers, rngs=rngs)
    np.testing.assert_allclose(np.asarray(found), x @ kernel.T + kept @ a.T @ b.T, rtol=1e-4, atol=1e-4)


@pytest.mark.long
def test_t5_and_peft_read_each_other(flan, tmp_path: Path):
    peft = pytest.importorskip("peft")
    folder, _ = flan
    model, params, config = t5.load(folder)
    adapter = random_adapter(params, targets=("query", "value"))
    saved = written(tmp_path / "adapter", adapter, t5.modules(config), task="SEQ_2_SEQ_LM")
    fresh = transformers.T5ForConditionalGeneration.from_pretrained(folder).eval()
    tuned = peft.PeftModel.from_pretrained(fresh, str(saved)).eval()
    ids = torch.tensor(IDS.astype(np.int64))
    with torch.no_grad():
        wanted = tuned(input_ids=ids, decoder_input_ids=ids[:, :5]).logits.numpy()
    found = t5_logits(model, adapter_file.tuned(saved, t5.modules(config), params))
    np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())


def change(folder: Path, **fields: Any) -> None:
    file = folder / adapter_file.CONFIG
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"peft_type": "IA3"}, "found an adapter of the kind 'IA3', want LORA"),
        ({"use_dora": True}, "found use_dora True; only plain LoRA is read"),
        ({"init_lora_weights": "pissa"}, "found init_lora_weights 'pissa'; only plain"),
        ({"a_kind_of_tomorrow": {"x": 1}}, "found a_kind_of_tomorrow"),
        ({"r": 0}, "found r 0 and lora_alpha 8.0, want positive"),
        ({"lora_alpha": "8"}, "found r 4 and lora_alpha '8'"),
        ({"r": True}, "found r True"),
        (
            {"target_modules": ["q_proj", "v_proj", "o_proj", "k_proj"]},
            "found nothing for model.layers.0.self",
        ),
        ({"r": 5}, "where the model needs"),
    ],
)
def test_an_adapter_of_another_kind_is_one_clear_line(llama, tmp_path: Path, fields, message):
    _, params, _ = causal_lm.load(llama[0])
    folder = written(tmp_path, random_adapter(params), causal_lm.MODULES)
    change(folder, **fields)
    with pytest.raises(UserError) as error:
        adapter_file.read(folder, causal_lm.MODULES, params)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_an_adapter_of_another_model_is_one_clear_line(llama, flan, tmp_path: Path):
    _, params, _ = causal_lm.load(llama[0])
    _, other, config = t5.load(flan[0])
    folder = written(tmp_path / "a", random_adapter(other, targets=("query",)), t5.modules(config))
    with pytest.raises(UserError, match="which the model has no map for; want an adapter of the model"):
        adapter_file.read(folder, causal_lm.MODULES, params)
    with pytest.raises(UserError, match=r"found no adapter_config\.json, want a folder that PEFT saved"):
        adapter_file.read(tmp_path, causal_lm.MODULES, params)
    (folder / adapter_file.WEIGHTS).write_bytes(b"\0" * 100)
    with pytest.raises(UserError, match="cannot be read as safetensors"):
        adapter_file.read(folder, causal_lm.MODULES, params)


QUERY = "base_model.model.model.layers.1.self_attn.q_proj.lora_{}.weight"


@pytest.mark.parametrize(
    ("letters", "value", "message"),
    [
        ("B", None, "one of the two matrices of layers/query alone"),
        ("AB", None, "found nothing for model.layers.1.self_attn.q_proj"),
        ("A", np.nan, "lora_A.weight that are not finite"),
    ],
)
def test_a_damaged_adapter_is_one_clear_line(llama, tmp_path: Path, letters, value, message):
    from safetensors.numpy import load_file, save_file

    _, params, _ = causal_lm.load(llama[0])
    folder = written(tmp_path, random_adapter(params), causal_lm.MODULES)
    tensors = load_file(folder / adapter_file.WEIGHTS)
    for letter in letters:
        old = tensors.pop(QUERY.format(letter))
        if value is not None:
            tensors[QUERY.format(letter)] = np.full_like(old, value)
    save_file(tensors, folder / adapter_file.WEIGHTS)
    with pytest.raises(UserError, match=message):
        adapter_file.read(folder, causal_lm.MODULES, params)


def test_all_parameters_of_another_model_are_one_clear_line(llama, tmp_path: Path):
    from pbr_jax.models.params_file import save_params

    _, params, _ = causal_lm.load(llama[0])
    save_params(jax.tree.map(lambda leaf: np.zeros((1, *leaf.shape)), params), tmp_path / adapter_file.PARAMS)
    with pytest.raises(UserError, match="found other parameters; want an adapter of the model"):
        adapter_file.tuned(tmp_path, causal_lm.MODULES, params)
