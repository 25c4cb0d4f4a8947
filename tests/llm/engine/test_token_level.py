"""Token by token: scores, mixtures and attention, against torch and sums written out."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import servers
from test_jax_backend import PROMPTS, ids_of, write_pair

from pbr_jax import llm as llms
from pbr_jax.base.types import UserError
from pbr_jax.llm.cache import Cached
from pbr_jax.llm.engine.jax_backend import JaxLLM
from pbr_jax.llm.protocol import Mixture, Sampling, TooLong, Watch
from pbr_jax.options import LLM

torch: Any = pytest.importorskip("torch")
TARGETS = ["dog", " hat", "a long answer of many tokens", "é", "dog", "1", "", "end"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_pair(tmp_path_factory.mktemp("tiny"))


def log_probabilities(reference: Any, ids: list[int]) -> np.ndarray:
    """[v]: log p of what follows these tokens."""
    with torch.no_grad():
        return reference(torch.tensor([ids])).logits[0, -1].double().log_softmax(-1).numpy()


def test_the_tokens_scores_are_torchs_and_add_up_to_the_score(tiny):
    path, reference = tiny
    llm = JaxLLM(path, batch_size=4)
    rows = llm.token_scores(PROMPTS, TARGETS)
    assert [(sum(row), len(row)) for row in rows] == llm.score(PROMPTS, TARGETS)
    for prompt, target, row in zip(PROMPTS, TARGETS, rows, strict=True):
        ids, wanted = ids_of(llm, prompt), []
        for token in llm._codec.encode_target(target):
            wanted.append(log_probabilities(reference, ids)[token])
            ids = [*ids, token]
        np.testing.assert_allclose(row, wanted, atol=1e-4)


def greedy(reference: Any, prompts: list[list[int]], weights: list[float], new: int) -> list[int]:
    """The most probable token of the mixture, one after another."""
    found: list[int] = []
    while len(found) < new and found[-1:] != [1]:
        rows = [log_probabilities(reference, prompt + found) for prompt in prompts]
        found.append(int(np.einsum("d,dv->v", weights, np.exp(rows)).argmax()))
    return found


@pytest.mark.long
@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_mixture_decodes_what_the_mixed_distributions_say(tiny, batch_size: int):
    path, reference = tiny
    llm = JaxLLM(path, batch_size=batch_size)
    asked = [
        Mixture(PROMPTS[:3], (0.5, 0.3, 0.2)),
        Mixture(PROMPTS[3:5], (0.9, 0.1)),
        Mixture(PROMPTS[5:], (0.2, 0.3, 0.5)),
        Mixture(PROMPTS[:2], (0.0, 1.0)),
        Mixture(PROMPTS[:1]),
    ]
    told: dict[int, list[int]] = {}
    found = llm.extend(asked, Sampling(12), on_batch=lambda places, rows: told.update(zip(places, rows)))
    assert found == [told[i] for i in range(len(asked))]
    for mixture, tokens in zip(asked, found, strict=True):
        prompts = [ids_of(llm, prompt) for prompt in mixture.prompts]
        assert tokens == greedy(reference, prompts, list(mixture.weights), 12)
    assert llm.text(found[3]) == llm.generate([PROMPTS[1]], Sampling(12))[0]
    assert llm.text(found[4]) == llm.generate([PROMPTS[0]], Sampling(12))[0]
    assert found[0] not in ([*map(list, (found[3], found[4]))])  # a mixture, not one of its parts


@pytest.mark.long
def test_samples_of_a_mixture_follow_its_distribution(tiny):
    path, reference = tiny
    llm, pair = JaxLLM(path, batch_size=4), PROMPTS[:2]
    rows = [log_probabilities(reference, ids_of(llm, prompt)) for prompt in pair]
    wanted = np.einsum("d,dv->v", (0.7, 0.3), np.exp(rows))
    drawn = [
        llm.extend([Mixture(pair, (0.7, 0.3))], Sampling(1, temperature=1.0, seed=seed))[0][0]
        for seed in range(300)
    ]
    best = int(wanted.argmax())
    assert abs(drawn.count(best) / 300 - wanted[best]) < 4 * (wanted[best] / 300) ** 0.5
    assert drawn[:3] == [
        llm.extend([Mixture(pair, (0.7, 0.3))], Sampling(1, temperature=1.0, seed=seed))[0][0]
        for seed in range(3)
    ]


def said(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]


def test_attention_equals_torchs_maps_for_every_token_of_a_span(tmp_path: Path):
    model = servers.write_tiny(tmp_path)
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    llm = JaxLLM(tmp_path)
    del model
    content = "first text | second text | asked"
    spans = ((0, 10), (13, 24))
    asked = [
        Watch(said(content), spans, (27, 32)),
        Watch(said("first text | second text | N/A"), spans, (27, 30)),
        Watch(said(content), spans, (25, 32), True),
        Watch(said("short"), ((0, 2), (2, 2)), (3, 5)),
    ]
    for watch, found in zip(asked, llm.attention(asked), strict=True):
        ids, (where, *places) = llm._codec.locate(watch.messages, [watch.query, *watch.spans])
        assert ids == llm._codec.encode(watch.messages)
        end = len(ids) if watch.to_end else where.stop
        with torch.no_grad():
            maps = reference(torch.tensor([ids]), output_attentions=True).attentions
        mass = np.stack([one[0].numpy() for one in maps])[:, :, where.start : end].mean(2).sum((0, 1))
        for place, row in zip(places, found, strict=True):
            assert len(row) == len(place)
            np.testing.assert_allclose(row, mass[place.start : place.stop], atol=1e-4)


def test_tokens_are_found_where_texts_spell_out_control_tokens(tmp_path: Path):
    servers.write_tiny(tmp_path)
    codec = JaxLLM(tmp_path)._codec
    special = next(iter(codec._controls.values()))
    content = f"a {special} b | see {special} | end"
    first, last = content.index("b |"), content.index("end")
    ids, (one, two) = codec.locate(said(content), [(first, first + 1), (last, last + 3)])
    assert ids == codec.encode(said(content))
    assert codec.tokenizer.decode([ids[i] for i in one]).strip() == "b"
    assert codec.tokenizer.decode([ids[i] for i in two]).strip() == "end"


@pytest.mark.long
def test_answers_are_kept_and_found_again_nothing_is_asked_twice(tiny, file, monkeypatch):
    first = Cached(JaxLLM(tiny[0], batch_size=4), file)
    asked = [Mixture(PROMPTS[:2], (0.5, 0.5)), Mixture(PROMPTS[:2], (0.9, 0.1))]
    found = first.extend(asked, Sampling(5)), first.token_scores(PROMPTS[:2], TARGETS[:2])
    again = Cached(JaxLLM(tiny[0], batch_size=4), file, offline=True)
    assert (again.extend(asked, Sampling(5)), again.token_scores(PROMPTS[:2], TARGETS[:2])) == found
    with pytest.raises(UserError, match="1 of 1 answers are not in"):
        again.extend([asked[0]._replace(weights=(0.4, 0.6))], Sampling(5))
    with pytest.raises(UserError, match="1 of 1 answers are not in"):
        again.extend([asked[0]], Sampling(6))
    with pytest.raises(UserError, match="1 of 1 answers are not in"):
        again.extend([asked[0]], Sampling(5, temperature=1.0))


@pytest.mark.long
def test_a_prompt_too_long_is_told_of_when_others_are_answered(tiny):
    llm, told = JaxLLM(tiny[0]), []
    asked = [Mixture(("x" * 200, "a")), Mixture(("b", "c"), (0.5, 0.5))]
    with pytest.raises(TooLong) as error:
        llm.extend(asked, Sampling(3), on_batch=lambda places, rows: told.append(places))
    assert (error.value.index, told) == (0, [[1]])
    with pytest.raises(TooLong):
        llm.attention([Watch(said("y" * 200), ((0, 3),), (5, 9))])


def test_a_server_has_no_tokens_to_lead(file):
    llm = llms.load(LLM(backend="http", url="http://127.0.0.1:9/v1", model="m"))
    with pytest.raises(UserError, match="decoder-only"):
        llm.extend([Mixture(("a",))], Sampling(1))
