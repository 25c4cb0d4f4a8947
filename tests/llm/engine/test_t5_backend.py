"""The T5 backend against Hugging Face's generate, torch's cross-entropy and torch's gradients."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import save_byte_tokenizer

from pbr_jax import config as schema
from pbr_jax.base import prefetch
from pbr_jax.base.types import UserError
from pbr_jax.llm import LLM, TooLong
from pbr_jax.llm.engine import t5_backend
from pbr_jax.llm.engine.t5_backend import T5LLM
from pbr_jax.llm.protocol import Sampling

torch: Any = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")

PROMPTS = (
    "the cat",
    "a",
    "on the mat the hat sat",
    "café 😀",
    "the cat",
    "",
    "hat",
    "x y z 1 2 3 4 5 6 7 8 9",
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A folder with a random FLAN-like model and a byte-level tokenizer that ends texts; the torch model."""
    path = tmp_path_factory.mktemp("tiny")
    assert save_byte_tokenizer(path, ("<pad>", "</s>", "<unk>"), end="</s>") < 264
    sizes = transformers.T5Config(
        vocab_size=264, d_model=32, d_kv=8, d_ff=40, num_layers=2, num_heads=4,
        feed_forward_proj="gated-gelu", tie_word_embeddings=False, decoder_start_token_id=0, n_positions=48,
    )  # fmt: skip
    torch.manual_seed(3)
    model = transformers.T5ForConditionalGeneration(sizes).eval()
    model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(std=0.2)
            if "norm" in name:
                parameter.add_(1.0)
        model.lm_head.weight[1] *= 1.5  # rows stop at different steps
    model.save_pretrained(path)
    return path, model


@pytest.fixture(scope="module")
def llm(tiny):
    return T5LLM(tiny[0], batch_size=4)


def long(ids):
    return torch.tensor([list(ids)])


def continuation(reference, ids, new, num_beams):
    """Tokens of one prompt by Hugging Face, alone, up to the end token."""
    tokens = reference.generate(
        long(ids), attention_mask=torch.ones_like(long(ids)), max_new_tokens=new, num_beams=num_beams,
        do_sample=False, length_penalty=1.0, early_stopping=False, eos_token_id=1, pad_token_id=0,
        decoder_start_token_id=0,
    )[0, 1:].tolist()  # fmt: skip
    return tokens[: tokens.index(1)] if 1 in tokens else tokens


@pytest.mark.long
@pytest.mark.parametrize("num_beams", [1, 3])
def test_texts_equal_hugging_face(tiny, llm, num_beams):
    reference = tiny[1]
    wanted = [continuation(reference, llm._codec.encode(prompt), 12, num_beams) for prompt in PROMPTS]
    lengths = {len(tokens) for tokens in wanted}
    assert min(lengths) < 12  # some stop early
    assert len(lengths) > 1
    found = llm.generate(PROMPTS, Sampling(12, num_beams=num_beams))
    assert found == [llm._codec.decode(tokens) for tokens in wanted]
    stop = (max(found, key=len)[2:4],)
    cut = llm.generate(PROMPTS, Sampling(12, num_beams=num_beams, stop=stop))
    assert cut == [text.partition(*stop)[0] for text in found] != found


@pytest.mark.long
def test_score_equals_cross_entropy(tiny, llm):
    reference = tiny[1]
    targets = ["dog", " hat", "a longer answer", "é", "dog", "1", "", "</s>"]
    for prompt, target, score in zip(PROMPTS, targets, llm.score(PROMPTS, targets)):
        first, second = llm._codec.encode(prompt), llm._codec.encode_target(target)
        assert first[-1] == 1
        assert score.tokens == len(second)
        if not second:
            assert score == (0.0, 0)
            continue
        with torch.no_grad():
            rows = reference(input_ids=long(first), decoder_input_ids=long([0, *second[:-1]])).logits[0]
        loss = torch.nn.functional.cross_entropy(rows, long(second)[0], reduction="sum")
        assert score.total == pytest.approx(-float(loss), abs=1e-4)


@pytest.mark.long
def test_batches_do_not_change_results(tiny, llm):
    """Alone or among others: the same texts by every way of decoding, and the same scores."""
    alone, prompts = T5LLM(tiny[0], batch_size=1), PROMPTS[:3]
    for way in (Sampling(5), Sampling(5, num_beams=2), Sampling(5, temperature=0.8, top_p=0.9, seed=5)):
        assert alone.generate(prompts, way) == llm.generate(prompts, way)
    one, many = (model.score(prompts, ["cat hat"] * 3) for model in (alone, llm))
    np.testing.assert_allclose([s.total for s in one], [s.total for s in many], atol=1e-4)


@pytest.mark.long
def test_sampling_is_seeded_by_the_prompt_and_its_occurrence(llm):
    options: dict[str, Any] = dict(max_new_tokens=5, temperature=1.5)
    first = llm.generate(["the cat", "hat", "the cat"], Sampling(**options, seed=1))
    assert first == llm.generate(["the cat", "hat", "the cat"], Sampling(**options, seed=1))
    assert first != llm.generate(["the cat", "hat", "the cat"], Sampling(**options, seed=2))
    assert first[0] != first[2]
    # Another order and other company: the same draws for the same occurrences.
    again = llm.generate(["a", "hat", "the cat", "x", "the cat"], Sampling(**options, seed=1))
    assert [again[2], again[1], again[4]] == first


def test_a_resumed_call_recomputes_only_unfinished_batches(llm):
    """Interrupted after any number of batches, the repeated call gives the same answers and the same rest."""
    targets = ["dog", "", "cat", "hat", "dog", "1", "2", "3"]
    calls: list[Any] = [
        lambda **k: llm.generate(PROMPTS, Sampling(5, temperature=0.8, top_p=0.9, seed=5), **k),
        lambda **k: llm.score(PROMPTS, targets, **k),
    ]
    for call in calls:
        batches: list[dict[int, Any]] = []
        whole = call(on_batch=lambda places, found: batches.append(dict(zip(places, found))))  # noqa: B023
        assert len(batches) == 2
        for finished in range(3):
            done = {k: v for batch in batches[:finished] for k, v in batch.items()}
            seen: list[list[int]] = []
            assert call(done=done, on_batch=lambda places, _: seen.append(list(places))) == whole  # noqa: B023
            assert seen == [list(batch) for batch in batches[finished:]]
        place = next(iter(batches[0]))
        assert call(done={place: whole[place]}) == whole


def test_a_batch_is_fetched_after_the_next_was_started(tiny, monkeypatch):
    happened, score, fetch = [], t5_backend.score, jax.device_get

    def started(*arguments, **options):
        happened.append("start")
        return score(*arguments, **options)

    def fetched(arrays):
        happened.append("fetch")
        return fetch(arrays)

    monkeypatch.setattr(t5_backend, "score", started)
    monkeypatch.setattr(prefetch.jax, "device_get", fetched)
    T5LLM(tiny[0], batch_size=2).score([f"the cat {i}" for i in range(6)], ["dog"] * 6)
    assert happened == ["start", "start", "fetch", "start", "fetch", "fetch"]


def test_equal_prompts_are_computed_once(llm, monkeypatch):
    rows, generate = [], t5_backend.generate
    monkeypatch.setattr(
        t5_backend,
        "generate",
        lambda params, ids, *rest, **k: (rows.append(len(ids)), generate(params, ids, *rest, **k))[1],
    )
    texts = llm.generate(["the cat", "hat", "the cat"], Sampling(5))
    assert rows == [2]
    assert texts[0] == texts[2]


def test_one_prompt_that_is_too_long_does_not_cost_the_others_their_answers(llm):
    texts, scores = {}, {}
    prompts = ["the cat", "a" * 48, "hat"]
    with pytest.raises(TooLong, match="prompt 1 has 49 tokens, over the context of 48; lower prompt"):
        llm.generate(prompts, Sampling(4), on_batch=lambda i, t: texts.update(zip(i, t)))
    assert [texts[0], texts[2]] == llm.generate(["the cat", "hat"], Sampling(4))
    with pytest.raises(TooLong, match="prompt 1 has 49"):
        llm.score(prompts, ["x"] * 3, on_batch=lambda i, s: scores.update(zip(i, s)))
    assert sorted(scores) == [0, 2]


@pytest.mark.long
def test_a_prompt_that_is_cut_keeps_its_two_ends(tiny):
    cut = T5LLM(tiny[0], overflow="cut")
    whole, kept = "head" + "m" * 90 + "tail.", "head" + "m" * 38 + "tail."  # and the end token
    assert cut.score([whole], ["cat"]) == cut.score([kept], ["cat"])
    assert cut.generate([whole], Sampling(3)) == cut.generate([kept], Sampling(3))
    with pytest.raises(TooLong, match="followed by 49"):
        cut.score(["a"], ["b" * 49])


@pytest.mark.long
@pytest.mark.parametrize("options", [{}, {"num_beams": 2}])
def test_logits_that_are_not_numbers_are_an_error(tiny, tmp_path, options):
    import safetensors.numpy

    for file in tiny[0].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    weights["decoder.final_layer_norm.weight"][3] = np.nan
    safetensors.numpy.save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    broken = T5LLM(tmp_path)
    with pytest.raises(UserError, match="not numbers"):
        broken.generate(["the cat"], Sampling(3, **options))
    with pytest.raises(UserError, match="not numbers"):
        broken.score(["the cat"], ["x"])


def test_messages_are_joined_by_blank_lines(llm):
    messages = [{"role": "system", "content": "be"}, {"role": "user", "content": "brief"}]
    assert llm.render(messages) == "be\n\nbrief"
    assert llm.num_tokens(messages) == len("be\n\nbrief") + 1  # the end token
    assert llm.count("brief") == 5
    assert llm.truncate("brief", 3) == "bri"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.generate(["a" * 48], Sampling(7)), r"prompt 0 has 49 tokens, .* 48; lower prompt\.max"),
        (
            lambda m: m.generate(["a"], Sampling(49)),
            r"followed by 49 tokens.* lower generate\.max_new_tokens",
        ),
        (lambda m: m.score(["b"], ["c" * 49]), "prompt 0 is followed by 49 tokens"),
        (lambda m: m.generate(["a"], Sampling(1, temperature=-1.0)), "temperature is -1"),
        *(
            (
                lambda m, k=k: m.generate(["a"], Sampling(1, num_beams=k)),
                f"generate.num_beams is {k}, .*vocabulary",
            )
            for k in (500, 10**9)
        ),
        (
            lambda m: m.generate(["a"], Sampling(1, num_beams=2, temperature=1.0)),
            "must be 1 with a temperature",
        ),
    ],
)
def test_mistakes_are_user_errors(tiny, call, message):
    with pytest.raises(UserError, match=message):
        call(T5LLM(tiny[0]))


@pytest.mark.long
def test_load_is_lazy_and_reads_the_config(tiny):
    config = schema.LLM(model=str(tiny[0]), context=64, batch_size=3, dtype="bfloat16", tensor_parallel=2)
    found = t5_backend.T5LLM.load(config)
    assert isinstance(found, LLM)
    assert found.context == 64  # above the 48 of the model: distances have no bound
    assert "_replicas" not in vars(found)
    assert len(found.generate(["a" * 60, "b", "c"], Sampling(2))) == 3
    kernels = [replica.params["encoder"]["layers"]["query"]["kernel"] for replica in found._replicas]
    assert {kernel.dtype for kernel in kernels} == {jnp.dtype(jnp.bfloat16)}
    shards = [shard for kernel in kernels for shard in kernel.addressable_shards]
    assert {shard.data.shape for shard in shards} == {(2, 16, 32)}
    assert [shard.device for shard in shards] == jax.devices()  # four replicas of two devices


def test_fingerprint_tells_weights_and_formats_apart(tiny, tmp_path):
    path = tiny[0]
    first = T5LLM(path).fingerprint
    assert first == T5LLM(path, batch_size=2).fingerprint
    assert first != T5LLM(path, dtype="bfloat16").fingerprint
    for file in path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert T5LLM(tmp_path).fingerprint == first
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 9}))
    assert T5LLM(tmp_path).fingerprint != first
