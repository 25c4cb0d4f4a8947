"""A server is asked what the model in this process is asked: both answer alike, whatever its defaults are.

The server is transformers: its own template, tokenizer, decoding and log-probabilities.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import servers
import transformers
from reference_server import Reference
from safetensors.numpy import load_file

from pbr_jax import config as schema
from pbr_jax import run
from pbr_jax.config import Config, override
from pbr_jax.llm.engine.jax_backend import JaxLLM
from pbr_jax.llm.http.backend import HTTPLLM
from pbr_jax.llm.protocol import Sampling
from pbr_jax.models import pretrained

pytestmark = pytest.mark.long

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}[a]"
    "{% if enable_thinking is not defined or enable_thinking %}hmm: {% endif %}"
)
PROMPTS: Any = [
    "the cat", "a", "on the mat the hat sat on the mat",
    [{"role": "user", "content": "hi"}], [{"role": "user", "content": "naïve café 😀"}],
    [{"role": "system", "content": "be brief"}, {"role": "user", "content": "why?"}],
]  # fmt: skip
TARGETS = [" hat", "dog", "", "a long answer of many tokens", "é", "1"]


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model whose template lets it think unless it is told not to."""
    folder = tmp_path_factory.mktemp("thinker")
    servers.write_tiny(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return folder


@pytest.fixture(scope="module")
def reference(thinker: Path) -> Reference:
    import torch

    sizes: Any = transformers.LlamaConfig.from_pretrained(thinker)
    model = transformers.LlamaForCausalLM(sizes).eval()
    weights = load_file(thinker / "model.safetensors").items()
    model.load_state_dict({name: torch.from_numpy(value) for name, value in weights})
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=f"{thinker}/tokenizer.json")
    tokenizer.chat_template = TEMPLATE
    return Reference(model, tokenizer)


def far(url: str, folder: Path, **fields: Any) -> HTTPLLM:
    return HTTPLLM(schema.LLM(backend="http", model="m", url=url, tokenizer=str(folder), **fields))


@pytest.mark.parametrize("dialect", ["vllm", "echo", "sglang"])
def test_texts_and_scores_are_those_of_the_model_in_this_process(
    thinker: Path, reference: Reference, dialect: Any
):
    near = JaxLLM(thinker, batch_size=8)
    texts, scores = near.generate(PROMPTS, Sampling(12)), near.score(PROMPTS, TARGETS)
    assert len(set(texts)) == len(PROMPTS)
    with reference.serve() as server:
        llm = far(server.url, thinker, log_probs=dialect)
        assert llm.generate(PROMPTS, Sampling(12)) == texts
        for here, there in zip(scores, llm.score(PROMPTS, TARGETS), strict=True):
            assert there.tokens == here.tokens
            assert there.total == pytest.approx(here.total, abs=1e-4)


def test_without_these_fields_the_servers_own_defaults_and_thoughts_come_through(
    thinker: Path, reference: Reference
):
    """So the test above can fail."""
    near = JaxLLM(thinker, batch_size=8)
    texts, scores = near.generate(PROMPTS, Sampling(12)), near.score(PROMPTS, TARGETS)
    with reference.serve() as server:
        silent = far(server.url, thinker, log_probs="echo", server="openai")
        assert sum(a != b for a, b in zip(silent.generate(PROMPTS, Sampling(12)), texts)) >= 4
        assert silent.score(PROMPTS[3:4], TARGETS[3:4])[0].total != pytest.approx(scores[3].total, abs=0.1)
        thinks = '{"chat_template_kwargs": {"enable_thinking": true}}'
        thinking = far(server.url, thinker, extra_body=thinks).generate(PROMPTS[3:], Sampling(12))
        assert sum(a != b for a, b in zip(thinking, texts[3:])) >= 2


@pytest.mark.long
@pytest.mark.data
def test_forty_real_prompts_are_answered_and_scored_alike(
    embedded_by_transformers: Any, real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "cache"))
    path = pretrained.locate("SmolLM2-135M-Instruct")
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    fields = {"benchmark.name": "lamp_7", "benchmark.root": str(real_data / "LaMP_7"), "limit": 40}
    fields |= {"retrieve.method": "bm25", "generate.max_new_tokens": 16, "generate.method": "ipa"}
    near = run(override(Config(), fields), tmp_path / "near")
    with Reference(embedded_by_transformers, tokenizer).serve() as server:
        served = {"llm.backend": "http", "llm.url": server.url, "llm.tokenizer": str(path)}
        served |= {"llm.log_probs": "vllm", "llm.price_prompt": 1.0}
        there = run(override(Config(), {**fields, **served}), tmp_path / "there")
        # One answer and one score each; equal prompts, and empty targets, would be fewer.
        assert there.values["counts"]["server_calls"] == len(server.requests) == 80
    same = 0
    for one, other in zip(near.records(), there.records(), strict=True):
        assert other["metrics"]["target_nll"] == pytest.approx(one["metrics"]["target_nll"], abs=1e-3)
        assert other["prompt_tokens"] == one["prompt_tokens"]
        same += one["prediction"] == other["prediction"]
    assert same >= 38  # two equally probable tokens may be told apart by the last bit
    print(same, near.metrics["target_nll"], there.metrics["target_nll"], there.values["counts"])
