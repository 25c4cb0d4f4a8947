"""An adapter beside a model's weights, against transformers, which reads both."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from pbr_jax import llm
from pbr_jax.base.types import UserError
from pbr_jax.models import bert
from pbr_jax.options import LLM

torch: Any = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")
peft: Any = pytest.importorskip("peft")

# PEFT asks transformers by an old name.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


def add(folder: Path, names: list[str], into: Path) -> None:
    """A random adapter of these maps, saved by PEFT."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    torch.manual_seed(len(names))
    options = peft.LoraConfig(r=4, target_modules=names, task_type="CAUSAL_LM", init_lora_weights=False)
    peft.get_peft_model(model, options).save_pretrained(into)


@pytest.mark.long
def test_it_belongs_to_the_model_unless_another_is_asked_for(tiny: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny, tmp_path / "both")
    add(tiny, ["q_proj", "v_proj"], tmp_path / "both")
    add(tiny, ["o_proj"], tmp_path / "other")

    def model(folder: Path, adapter: Path | None = None) -> Any:
        return llm._backend(LLM(model=str(folder), adapter=str(adapter or "")))

    def score(folder: Path, adapter: Path | None = None) -> float:
        return model(folder, adapter).score(["abc"], ["def"])[0].total

    codec = llm.chat.load(tiny)
    first, second = codec.encode("abc"), codec.encode_target("def")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "both")
    with torch.no_grad():
        logits = theirs(torch.tensor([[*first, *second]])).logits[0].log_softmax(-1)
    wanted = sum(float(logits[len(first) - 1 + place, token]) for place, token in enumerate(second))
    assert score(tmp_path / "both") == pytest.approx(wanted, abs=1e-3)
    assert score(tiny, tmp_path / "both") == pytest.approx(wanted, abs=1e-3)
    assert abs(score(tiny) - wanted) > 0.01
    other = score(tiny, tmp_path / "other")
    assert score(tmp_path / "both", tmp_path / "other") == other != pytest.approx(wanted, abs=1e-3)
    assert model(tmp_path / "both").fingerprint != model(tiny).fingerprint


def test_of_an_encoder_it_is_refused(tmp_path: Path) -> None:
    sizes: dict[str, Any] = dict(num_hidden_layers=1, num_attention_heads=2, hidden_size=8, vocab_size=9)
    transformers.BertModel(transformers.BertConfig(**sizes)).save_pretrained(tmp_path)
    bert.load(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match=r"adapters of encoders are not read; merge it into the weights"):
        bert.load(tmp_path)
