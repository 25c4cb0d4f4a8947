"""Folders of language models: every field and tensor is read as transformers reads it, or refused."""

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pbr_jax.base.types import UserError
from pbr_jax.models import adapter_file, causal_lm, lora

torch: Any = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")

SIZES: dict[str, Any] = dict(
    vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.3, bos_token_id=0, eos_token_id=1,
    pad_token_id=2,
)  # fmt: skip
WINDOW: dict[str, Any] = dict(head_dim=12, query_pre_attn_scalar=7, sliding_window=6)
CONFIGS = {
    "llama": transformers.LlamaConfig(**SIZES, tie_word_embeddings=False),
    "mistral": transformers.MistralConfig(**SIZES, sliding_window=6),
    "qwen2": transformers.Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": transformers.Qwen3Config(**SIZES, head_dim=8),
    "phi3": transformers.Phi3Config(**SIZES, sliding_window=6),
    "gemma2": transformers.Gemma2Config(**SIZES, **WINDOW),
    "gemma3": transformers.Gemma3TextConfig(**SIZES, **WINDOW),
}
RUNS_OWN = {"dtype", "torch_dtype"}  # what the run says (llm.dtype)
IDS = np.random.default_rng(0).integers(3, 61, (2, 20), dtype=np.int64)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A random model of each family, as transformers saves it."""
    made = {}
    for name, config in CONFIGS.items():
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        with torch.no_grad():
            for part, parameter in model.named_parameters():
                if "norm" in part:
                    parameter.add_(0.3 * torch.randn_like(parameter))
        made[name] = tmp_path_factory.mktemp(name)
        model.save_pretrained(made[name])
    return made


def theirs(folder: Path) -> np.ndarray | None:
    """Transformers' logits; None where it does not read the folder, or has weights that the folder lacks."""
    with contextlib.suppress(Exception):
        model, told = transformers.AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="eager", output_loading_info=True, dtype=torch.float32
        )
        if not any(told.values()):
            with torch.no_grad():
                return model.eval()(torch.tensor(IDS)).logits.numpy()
    return None


def ours(folder: Path, adapter: Path | None = None) -> np.ndarray:
    model, params, config = causal_lm.load(folder)
    if adapter is not None:
        params = adapter_file.tuned(adapter, causal_lm.modules(config), params)
    positions = jnp.broadcast_to(jnp.arange(IDS.shape[1]), IDS.shape)
    hidden = model.apply(params, jnp.asarray(IDS, jnp.int32), positions).hidden
    return np.asarray(causal_lm.logits(params, hidden, config.logit_cap))


def same(found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted, atol=2e-5 * max(1, np.abs(wanted).max()))


def changed(value: Any) -> Iterator[Any]:
    """Other values of a field, of its own kind and of others."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from (value | {name: other} for other in changed(inner))
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield from (value * 2, value + 1)
    elif isinstance(value, list):
        yield value[::-1]
    elif isinstance(value, str):
        yield from ("gelu", "linear")
    else:
        yield from (True, 5, 0.5)


def rewritten(folder: Path, into: Path, **fields: Any) -> Path:
    shutil.copytree(folder, into, dirs_exist_ok=True)
    content = json.loads((into / "config.json").read_text())
    (into / "config.json").write_text(json.dumps(content | fields))
    return into


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.long] * (n != "gemma2")) for n in CONFIGS]
)
def test_a_field_that_is_not_read_changes_nothing_in_transformers(
    name: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    """Every field that it writes, with other values; what is read is compared in the next test."""
    folder = folders[name]
    before, wanted = causal_lm.read_config(folder), theirs(folder)
    assert wanted is not None
    seen = set()
    for field, value in json.loads((folder / "config.json").read_text()).items():
        for other in changed(value) if field not in RUNS_OWN else ():
            changed_folder = rewritten(folder, tmp_path, **{field: other})
            try:
                read = causal_lm.read_config(changed_folder)
            except UserError:
                continue
            if read != before:
                seen.add(field)
            elif (found := theirs(changed_folder)) is not None:
                same(found, wanted)
    assert {"rms_norm_eps", "rope_parameters"} <= seen


@pytest.mark.long
@pytest.mark.parametrize("name", CONFIGS)
def test_a_field_that_is_read_is_read_as_by_transformers(
    name: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = folders[name]
    before, compared = causal_lm.read_config(folder), 0
    for field, value in json.loads((folder / "config.json").read_text()).items():
        for other in changed(value) if field not in RUNS_OWN else ():
            changed_folder = rewritten(folder, tmp_path, **{field: other})
            with contextlib.suppress(UserError):
                if causal_lm.read_config(changed_folder) != before:
                    wanted = theirs(changed_folder)
                    if wanted is not None:
                        same(ours(changed_folder), wanted)
                        compared += 1
    assert compared > 2


@pytest.mark.long
@pytest.mark.parametrize("name", CONFIGS)
def test_every_tensor_of_a_file_is_used_or_named(name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    """Each is changed in turn, a head too where the config says that it is the embedding."""
    from safetensors.numpy import load_file, save_file

    folder = rewritten(folders[name], tmp_path)
    tensors = load_file(folder / "model.safetensors")
    tensors.setdefault("lm_head.weight", tensors["model.embed_tokens.weight"])
    save_file(tensors, folder / "model.safetensors")
    before = jax.tree.leaves_with_path(causal_lm.load(folder)[1])
    for part, tensor in (tensors | {"model.layers.0.extra.weight": np.ones(3, np.float32)}).items():
        save_file(tensors | {part: tensor + 1}, folder / "model.safetensors")
        if "extra" in part:
            with pytest.raises(UserError, match=f"unused: {part}"):
                causal_lm.load(folder)
            continue
        after = jax.tree.leaves_with_path(causal_lm.load(folder)[1])
        assert len(after) > len(before) or any(
            not np.array_equal(one, other) for (_, one), (_, other) in zip(before, after, strict=True)
        ), part


@pytest.mark.parametrize("name", ["qwen2", "gemma2", "llama"])
def test_a_head_that_differs_from_a_tied_embedding_is_the_head(
    name: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    from safetensors.numpy import load_file, save_file

    folder = rewritten(folders[name], tmp_path, tie_word_embeddings=True)
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = np.random.default_rng(1).normal(size=(61, 32)).astype(np.float32)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    wanted = theirs(folder)
    assert wanted is not None
    same(ours(folder), wanted)


@pytest.mark.parametrize(("outer", "inner"), [(False, True), (True, False), (True, True)])
def test_the_tie_of_a_model_that_sees_images_is_said_outside(
    outer: bool, inner: bool, folders: dict[str, Path], tmp_path: Path
) -> None:
    content = json.loads((folders["gemma3"] / "config.json").read_text())
    both = {"model_type": "gemma3", "tie_word_embeddings": outer}
    (tmp_path / "config.json").write_text(
        json.dumps(both | {"text_config": content | {"tie_word_embeddings": inner}})
    )
    read = transformers.AutoConfig.from_pretrained(tmp_path)
    assert causal_lm.read_config(tmp_path).tied == read.tie_word_embeddings == outer


# -- adapters --------------------------------------------------------------------------------------------


def peft_adapter(folder: Path, names: list[str], into: Path) -> np.ndarray:
    """A random adapter of these maps that PEFT saved, and the logits with it."""
    peft = pytest.importorskip("peft")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    torch.manual_seed(1)
    options = peft.LoraConfig(
        r=4, lora_alpha=6, target_modules=names, task_type="CAUSAL_LM", init_lora_weights=False
    )
    tuned = peft.get_peft_model(model, options).eval()
    tuned.save_pretrained(into)
    with torch.no_grad():
        return tuned(torch.tensor(IDS)).logits.numpy()


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("phi3", ["qkv_proj", "o_proj"]),
        ("phi3", ["gate_up_proj", "down_proj"]),
        ("llama", ["q_proj", "up_proj"]),
    ],
)
def test_adapters_that_peft_writes_of_fused_and_single_maps(
    name: str, names: list[str], folders: dict[str, Path], tmp_path: Path
) -> None:
    wanted = peft_adapter(folders[name], names, tmp_path)
    same(ours(folders[name], tmp_path), wanted)
    assert np.abs(wanted - ours(folders[name])).max() > 0.1


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
@pytest.mark.parametrize(
    "targets", [("query", "value"), ("value", "output", "up"), ("gate", "up", "key", "down")]
)
def test_peft_reads_what_is_written_of_fused_maps(
    targets: tuple[str, ...], folders: dict[str, Path], tmp_path: Path
) -> None:
    peft = pytest.importorskip("peft")
    _, params, config = causal_lm.load(folders["phi3"])
    adapter = lora.init(jax.random.key(0), params, targets, 3)
    leaves, tree = jax.tree.flatten(adapter)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    adapter = tree.unflatten([0.3 * jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, leaves)])
    modules = causal_lm.modules(config)
    adapter_file.write(
        tmp_path, adapter, modules, rank=3, alpha=6.0, dropout=0.0, base="phi3", task="CAUSAL_LM"
    )
    fresh = transformers.AutoModelForCausalLM.from_pretrained(folders["phi3"], attn_implementation="eager")
    with torch.no_grad():
        wanted = peft.PeftModel.from_pretrained(fresh, tmp_path).eval()(torch.tensor(IDS)).logits.numpy()
    same(ours(folders["phi3"], tmp_path), wanted)
    merged = lora.merged(params, adapter, 2.0)
    back = adapter_file.tuned(tmp_path, modules, params)
    for one, other in zip(jax.tree.leaves(merged), jax.tree.leaves(back), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
