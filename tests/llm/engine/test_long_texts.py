"""Texts around LongRoPE's original context: scored together, alone and by transformers; continued past it."""

import json
from pathlib import Path
from typing import Any

import pytest
from tiny import save_byte_tokenizer

from pbr_jax.llm import TooLong
from pbr_jax.llm.engine.jax_backend import JaxLLM
from pbr_jax.llm.protocol import Sampling

torch: Any = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")

ORIGINAL = 60


@pytest.fixture(scope="module")
def phi(tmp_path_factory) -> tuple[Path, Any]:
    """A random Phi-3 that was stretched from 60 to 128 tokens, one token a byte, and torch's."""
    path = tmp_path_factory.mktemp("phi")
    config = transformers.Phi3Config(
        vocab_size=save_byte_tokenizer(path), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.3,
        tie_word_embeddings=False, bos_token_id=0, eos_token_id=1, pad_token_id=0,
        original_max_position_embeddings=ORIGINAL,
        rope_parameters={
            "rope_type": "longrope", "rope_theta": 50.0, "original_max_position_embeddings": ORIGINAL,
            "short_factor": [1.0, 1.1, 1.3, 1.7], "long_factor": [1.5, 4.0, 9.0, 12.0],
        },
    )  # fmt: skip
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    model.save_pretrained(path)
    assert json.loads((path / "config.json").read_text())["original_max_position_embeddings"] == ORIGINAL
    return path, model


def logits(model: Any, ids: list[int]) -> Any:
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]


@pytest.mark.long
def test_scores_together_are_scores_alone_and_those_of_transformers(phi):
    """Prompts share 40 tokens; with their targets they end below, at and above the original context."""
    path, model = phi
    llm = JaxLLM(path)
    start = "forty tokens that all the prompts share!"
    assert len(start) == 40
    ends = ["0123456", "0123456789", "0123456789abcdef", "0123456789abcdefghijklmnop" * 2]
    prompts = [start + end for end in ends for _ in range(4)]
    targets = ["abcd", "abcdefghij", "x" * 13, "y" * 14] * len(ends)
    lengths = [len(p) + len(t) for p, t in zip(prompts, targets)]
    assert {ORIGINAL, ORIGINAL + 1} <= set(lengths)
    together = llm.score(prompts, targets)
    for prompt, target, score in zip(prompts, targets, together):
        first, second = llm._codec.encode(prompt), llm._codec.encode_target(target)
        rows = logits(model, [*first, *second])[len(first) - 1 : -1].log_softmax(-1)
        wanted = float(rows.gather(1, torch.tensor(second)[:, None]).sum())
        assert score.total == pytest.approx(wanted, abs=1e-4)
        assert llm.score([prompt], [target])[0].total == pytest.approx(score.total, abs=1e-4)


@pytest.mark.long
def test_beams_that_would_grow_past_the_original_context_are_refused_by_name(phi):
    """They cannot be read anew; prompts on either side of it are searched."""
    llm, found = JaxLLM(phi[0], batch_size=8), dict[int, str]()
    prompts = ["p" * n for n in (20, 50, 51, 60, 61, 90)]
    with pytest.raises(
        TooLong, match=r"prompt 2 has 51 tokens and 10 more follow, past the 60 .*num_beams 1"
    ):
        llm.generate(prompts, Sampling(10, num_beams=2), on_batch=lambda i, t: found.update(zip(i, t)))
    assert sorted(found) == [0, 1, 4, 5]


@pytest.mark.long
def test_an_answer_that_grows_past_the_original_context_is_as_if_read_anew_with_every_token(phi):
    path, model = phi
    llm, new = JaxLLM(path, batch_size=8), 12
    prompts = ["p" * n for n in (20, 47, 48, 49, 53, 58, 59, 60, 61, 90)]
    wanted = []
    for prompt in prompts:
        ids, count = list(llm._codec.encode(prompt)), 0
        start = len(ids)
        while count < new:
            ids.append(int(logits(model, ids)[-1].argmax()))
            count += 1
            if ids[-1] == 1:
                break
        wanted.append(llm._codec.decode(ids[start:]))
    found = dict[int, str]()
    texts = llm.generate(prompts, Sampling(new), on_batch=lambda i, t: found.update(zip(i, t)))
    assert texts == wanted
    assert [found[i] for i in range(len(prompts))] == texts
    stop = (texts[3][9:11], texts[4][3:5])  # behind the border, and before it
    assert llm.generate(prompts, Sampling(new, stop=stop)) == [
        min((text.partition(one)[0] for one in stop), key=len) for text in texts
    ]
