"""The in-process language model against Hugging Face's generate and torch's cross-entropy."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import save_byte_tokenizer

from pbr_jax import config as schema
from pbr_jax import llm as llms
from pbr_jax.base.types import UserError
from pbr_jax.llm.engine import decoding, jax_backend, prefill, prefixes
from pbr_jax.llm.engine.jax_backend import JaxLLM
from pbr_jax.llm.protocol import Sampling, Score, TooLong, listening
from pbr_jax.models import causal_lm, pretrained

torch: Any = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")

PROMPTS = (
    "the cat", "a", "on the mat the hat sat", "café 😀", "the cat", "mat",
    "x y z 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15", "and then the cat sat and the mat sat",
)  # fmt: skip


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_pair(tmp_path_factory.mktemp("tiny"))


def write_pair(path: Path) -> tuple[Path, Any]:
    """A folder with a small random model and a byte-level tokenizer without merges, and torch's model."""
    sizes = transformers.LlamaConfig(
        vocab_size=save_byte_tokenizer(path), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=96,
        initializer_range=0.3, tie_word_embeddings=False, bos_token_id=0, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(3)
    model = transformers.LlamaForCausalLM(sizes).eval()
    with torch.no_grad():
        model.lm_head.weight[1] += 0.35  # rows stop at different steps
    model.save_pretrained(path)
    return path, model


def ids_of(llm, text):
    return llm._codec.encode(text)


def continuation(reference, ids, new):
    """Greedy tokens of one prompt by Hugging Face, up to the end token."""
    whole = torch.tensor([ids])
    tokens = reference.generate(
        whole, attention_mask=torch.ones_like(whole), max_new_tokens=new, do_sample=False
    )[0, len(ids) :].tolist()
    return tokens[: tokens.index(1)] if 1 in tokens else tokens


@pytest.mark.long
def test_greedy_equals_hugging_face(tiny):
    path, reference = tiny
    llm = JaxLLM(path, batch_size=4)
    wanted = [continuation(reference, ids_of(llm, prompt), 20) for prompt in PROMPTS]
    lengths = {len(tokens) for tokens in wanted}
    assert len(lengths) > 2  # some stop early, some do not
    assert 20 in lengths
    assert llm.generate(PROMPTS, Sampling(20)) == [llm._codec.decode(tokens) for tokens in wanted]


@pytest.mark.long
@pytest.mark.parametrize("num_beams", [pytest.param(2, marks=pytest.mark.long), 3])
def test_beams_equal_hugging_face(tiny, num_beams):
    path, reference = tiny
    llm, wanted = JaxLLM(path, batch_size=4), []
    for prompt in PROMPTS:
        whole = torch.tensor([ids_of(llm, prompt)])
        tokens = reference.generate(whole, max_new_tokens=9, num_beams=num_beams, do_sample=False)
        wanted.append(llm._codec.decode(tokens[0, whole.shape[1] :].tolist()))
    assert llm.generate(PROMPTS, Sampling(9, num_beams=num_beams)) == wanted
    greedy = llm.generate(PROMPTS, Sampling(9))
    assert wanted != greedy
    done = {index: wanted[index] for index in (0, 2, 3)}
    assert llm.generate(PROMPTS, Sampling(9, num_beams=num_beams), done=done) == wanted


@pytest.mark.long
def test_four_replicas_of_two_devices_give_what_one_device_gives(tiny, monkeypatch):
    """Texts, beams and scores; every replica does a part of them."""
    path, _ = tiny
    one, grid = JaxLLM(path, batch_size=4), JaxLLM(path, batch_size=4, devices=2)
    places = [engine.params["layers"]["gate"]["kernel"].sharding.device_set for engine in grid._engines]
    assert [len(of) for of in places] == [2] * 4
    assert set.union(*places) == set(jax.devices())
    busy, read = set[int](), prefill.PrefillEngine.read

    def reading(self, *arguments, **named):
        busy.add(id(self))
        return read(self, *arguments, **named)

    monkeypatch.setattr(prefill.PrefillEngine, "read", reading)
    assert grid.generate(PROMPTS, Sampling(9)) == one.generate(PROMPTS, Sampling(9))
    prompts = [f"{prompt} {i}" for i in range(16) for prompt in PROMPTS]
    targets = ["dog hat"] * len(prompts)
    found, wanted = grid.score(prompts, targets), one.score(prompts, targets)
    np.testing.assert_allclose([s.total for s in found], [s.total for s in wanted], atol=1e-4)
    assert busy > set(map(id, grid._engines))  # and the one of `one`
    beams = Sampling(5, num_beams=2)
    assert grid.generate(PROMPTS, beams) == one.generate(PROMPTS, beams)


def test_score_equals_cross_entropy(tiny):
    path, reference = tiny
    llm = JaxLLM(path, batch_size=4)
    targets = ["dog", " hat", "a long answer of many tokens", "é", "dog", "1", "", "</s>"]
    for prompt, target, score in zip(PROMPTS, targets, llm.score(PROMPTS, targets)):
        first, second = ids_of(llm, prompt), llm._codec.encode_target(target)
        assert score.tokens == len(second)
        if not second:
            assert score == (0.0, 0)
            assert score.mean == 0.0
            continue
        with torch.no_grad():
            rows = reference(torch.tensor([first + second])).logits[0, len(first) - 1 : -1]
        loss = torch.nn.functional.cross_entropy(rows, torch.tensor(second), reduction="sum")
        assert score.total == pytest.approx(-float(loss), abs=1e-4)
        assert score.mean == pytest.approx(-float(loss) / len(second), abs=1e-4)


@pytest.mark.long
def test_batching_and_padding_do_not_change_results(tiny):
    """Alone or among others: the same greedy texts, samples and scores."""
    (one, many), prompts = (JaxLLM(tiny[0], batch_size=size) for size in (1, 8)), PROMPTS[1:5]
    for sampling in (Sampling(5), Sampling(5, temperature=0.8, top_p=0.9, seed=5)):
        assert one.generate(prompts, sampling) == many.generate(prompts, sampling)
    alone, together = (llm.score(prompts, ["cat hat mat"] * len(prompts)) for llm in (one, many))
    np.testing.assert_allclose([s.total for s in alone], [s.total for s in together], atol=1e-4)


@pytest.mark.long
def test_sampling_is_seeded_by_prompt_and_occurrence(tiny):
    llm = JaxLLM(tiny[0], batch_size=8)
    options: dict[str, Any] = dict(max_new_tokens=12, temperature=1.0)
    first = llm.generate(["the cat"] * 4, Sampling(**options, seed=1))
    assert first == llm.generate(["the cat"] * 4, Sampling(**options, seed=1))
    assert first != llm.generate(["the cat"] * 4, Sampling(**options, seed=2))
    assert len(set(first)) > 1  # equal prompts are different draws
    among = llm.generate(["mat", "the cat", "a", "the cat", "mat"], Sampling(**options, seed=1))
    assert [among[1], among[3]] == first[:2]
    assert among[0] != among[4]


@pytest.mark.long
@pytest.mark.parametrize("temperature", [0.0, pytest.param(0.7, marks=pytest.mark.long)])
def test_a_resumed_call_gives_the_same_texts_and_computes_only_the_rest(tiny, temperature):
    """Interrupted after any number of answers; and whatever other answers are known."""
    llm, sampling = JaxLLM(tiny[0], batch_size=2), Sampling(6, temperature=temperature, seed=3)
    found: list[tuple[int, str]] = []
    whole = llm.generate(PROMPTS, sampling, on_batch=lambda i, t: found.extend(zip(i, t)))
    assert sorted(index for index, _ in found) == list(range(len(PROMPTS)))
    for finished in range(len(found) + 1):
        done, seen = dict(found[:finished]), set[int]()
        assert llm.generate(PROMPTS, sampling, done=done, on_batch=lambda i, t: seen.update(i)) == whole  # noqa: B023
        assert seen == set(range(len(PROMPTS))) - set(done)
    # An equal prompt's answer is its own.
    assert llm.generate(PROMPTS, sampling, done={0: "kept from before"}) == ["kept from before", *whole[1:]]


@pytest.mark.long
def test_an_interruption_leaves_what_was_finished(tiny):
    llm, kept = JaxLLM(tiny[0], batch_size=2), {}

    def stop_after_two(indices, texts):
        kept.update(zip(indices, texts))
        if len(kept) >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        llm.generate(PROMPTS, Sampling(6), on_batch=stop_after_two)
    whole = llm.generate(PROMPTS, Sampling(6))
    assert all(whole[index] == text for index, text in kept.items())
    assert llm.generate(PROMPTS, Sampling(6), done=kept) == whole


@pytest.mark.parametrize("stop", [(), ("a", "zq")])
def test_a_listener_hears_the_beginnings_of_answers_and_changes_none(tiny, stop):
    prompts, heard = list(PROMPTS[:4]), {}

    def hear(prompt, text):
        heard.setdefault(prompt, []).append(text)

    sampling = Sampling(40, stop=stop, temperature=1.0, seed=3)
    silent = JaxLLM(tiny[0]).generate([*prompts, "a"], sampling)
    with listening(hear):
        assert JaxLLM(tiny[0]).generate([*prompts, "a"], sampling) == silent
    assert "a" not in heard  # two draws of one prompt cannot be distinguished
    assert sum(map(len, heard.values())) > 2
    for prompt, texts in heard.items():
        final = silent[prompts.index(prompt)]
        assert all(final.startswith(text) for text in texts)
        assert sorted(texts, key=len) == texts
    if not stop:
        assert any(len(text) > 0 for texts in heard.values() for text in texts)


def test_a_model_that_can_think_is_not_heard(tiny, tmp_path):
    folder = shutil.copytree(tiny[0], tmp_path / "thinks")
    assert not JaxLLM(folder)._codec.thinks
    save_byte_tokenizer(folder, ("<s>", "</think>"))
    llm, heard = JaxLLM(folder), []
    assert llm._codec.thinks
    with listening(lambda *of: heard.append(of)):
        llm.generate(["the cat"], Sampling(40))
    assert heard == []


def test_equal_prompts_are_decoded_once(tiny, monkeypatch):
    llm, seen = JaxLLM(tiny[0], batch_size=4), []
    decode = decoding.decode

    def watched(reader, prompts, *rest, **named):
        seen.extend(prompts)
        return decode(reader, prompts, *rest, **named)

    monkeypatch.setattr(decoding, "decode", watched)
    texts = llm.generate(["the cat", "mat", "the cat", "the cat"], Sampling(5))
    assert len(seen) == 2
    assert texts[0] == texts[2] == texts[3] != texts[1]


def test_labels_of_one_token_cost_one_reading_of_their_prompt(tiny, monkeypatch):
    path, _ = tiny
    llm, sizes, plant = JaxLLM(path), [], prefixes.tree

    def tree(*arguments):
        found = plant(*arguments)
        sizes.append(found.size)
        return found

    monkeypatch.setattr(prefixes, "tree", tree)
    together = llm.score(["the cat"] * 5, list("12345"))
    assert sizes == [len(ids_of(llm, "the cat"))]
    alone = [llm.score(["the cat"], [label])[0].total for label in "12345"]
    assert [score.total for score in together] == pytest.approx(alone, rel=1e-5)


def test_scores_that_are_done_are_kept_and_the_rest_is_told(tiny):
    llm, seen = JaxLLM(tiny[0], batch_size=4), {}
    targets = ["cat hat"] * len(PROMPTS)
    whole = llm.score(PROMPTS, targets, on_batch=lambda i, s: seen.update(zip(i, s)))
    assert [seen[index] for index in range(len(PROMPTS))] == whole
    kept = Score(-1.5, 7)
    again = llm.score(PROMPTS, targets, done={2: kept})
    assert again[2] == kept
    np.testing.assert_allclose([s.total for s in again[3:]], [s.total for s in whole[3:]], atol=1e-5)


@pytest.mark.parametrize("count", [1, 5, 40])
@pytest.mark.long
def test_many_prompts_of_every_length_equal_hugging_face(tiny, count):
    """More prompts than rows, of all lengths, with shared beginnings; scored and continued."""
    path, reference = tiny
    generator, llm = np.random.default_rng(count), JaxLLM(path, batch_size=6)
    prompts = [
        "shared start of all of them"[: generator.integers(1, 27)] + "x" * int(generator.integers(0, 30))
        for _ in range(count)
    ]
    new = 9
    wanted = [llm._codec.decode(continuation(reference, ids_of(llm, prompt), new)) for prompt in prompts]
    assert llm.generate(prompts, Sampling(new)) == wanted
    targets = ["abcdefghij"[: generator.integers(1, 10)] for _ in prompts]
    for prompt, target, score in zip(prompts, targets, llm.score(prompts, targets)):
        first, second = ids_of(llm, prompt), llm._codec.encode_target(target)
        with torch.no_grad():
            rows = reference(torch.tensor([first + second])).logits[0, len(first) - 1 : -1]
        loss = torch.nn.functional.cross_entropy(rows, torch.tensor(second), reduction="sum")
        assert score.total == pytest.approx(-float(loss), abs=1e-4)


def test_no_prompts_give_no_texts(tiny):
    llm = JaxLLM(tiny[0])
    assert llm.generate([], Sampling(3)) == []
    assert llm.score([], []) == []


def test_classes_hold_every_prompt_that_fits_and_few_make_no_class_of_their_own():
    lengths = [int(n) for n in np.random.default_rng(0).integers(1, 300, 50)]
    classes = jax_backend._classes(lengths, 8)
    assert sorted(place for _, members in classes for place in members) == list(range(50))
    assert all(lengths[place] <= width for width, members in classes for place in members)
    widths = [width for width, _ in classes]
    assert widths == sorted(set(widths))
    assert all(len(members) >= 8 for _, members in classes[:-1])
    assert jax_backend._classes([], 8) == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.generate(["a" * 90], Sampling(7)), r"90 .* 7 more .* 96; lower prompt\.max_tokens"),
        (lambda m: m.score(["b" * 90], ["c" * 7]), r"90 tokens and 7 more .* 96"),
        (lambda m: m.generate(["a", ""], Sampling(7)), "prompt 1 is empty"),
        (lambda m: m.generate(["a"], Sampling(0)), "max_new_tokens is 0"),
        (lambda m: m.generate(["a"], Sampling(1, temperature=-1.0)), "temperature is -1"),
        (lambda m: m.generate(["a"], Sampling(1, top_p=0.0)), "top_p is 0"),
        (lambda m: m.generate(["a"], Sampling(1, num_beams=0)), "num_beams is 0"),
        *(
            (
                lambda m, k=k: m.generate(["a"], Sampling(1, num_beams=k)),
                f"generate.num_beams is {k}, .*vocabulary",
            )
            for k in (500, 10**9)
        ),
        (lambda m: m.generate(["a"], Sampling(1, num_beams=2, temperature=0.5)), "1 with a temperature"),
    ],
)  # fmt: skip
def test_mistakes_are_user_errors(tiny, call, message):
    with pytest.raises(UserError, match=message):
        call(JaxLLM(tiny[0]))


@pytest.mark.long
def test_one_prompt_that_is_too_long_does_not_cost_the_others_their_answers(tiny):
    llm, texts, scores = JaxLLM(tiny[0], batch_size=4), {}, {}
    prompts = [*PROMPTS, "z" * 96, "z" * 97]
    with pytest.raises(TooLong, match=rf"prompt {len(PROMPTS)} has 96 .* llm\.overflow cut") as told:
        llm.generate(prompts, Sampling(4), on_batch=lambda i, t: texts.update(zip(i, t)))
    assert [texts[i] for i in range(len(PROMPTS))] == llm.generate(PROMPTS, Sampling(4))
    assert str(told.value.of("question '7'")).startswith("the prompt of question '7' has 96 tokens")
    targets = ["cat"] * len(prompts)
    with pytest.raises(TooLong, match=f"prompt {len(PROMPTS)} has 96"):
        llm.score(prompts, targets, on_batch=lambda i, s: scores.update(zip(i, s)))
    assert sorted(scores) == list(range(len(PROMPTS)))


@pytest.mark.long
def test_a_prompt_that_is_cut_keeps_its_two_ends(tiny):
    path, _ = tiny
    cut = JaxLLM(path, overflow="cut")
    whole, kept = "head" + "m" * 150 + "tail.", "head" + "m" * 44 + "m" * 40 + "tail."
    assert cut.generate([whole], Sampling(3)) == cut.generate([kept], Sampling(3))
    assert cut.score([whole], ["cat"]) == cut.score([kept], ["cat"])
    assert cut.fingerprint != JaxLLM(path).fingerprint
    assert JaxLLM(path, overflow="cut", context=64).fingerprint != cut.fingerprint  # other prompts are read
    assert JaxLLM(path, context=64).fingerprint == JaxLLM(path).fingerprint  # others are refused
    with pytest.raises(TooLong, match="97 more"):
        cut.score(["a"], ["b" * 97])
    # Prompts that are alike once they are cut are not two draws from one.
    twins = ["head" + "m" * n + "tail." for n in (150, 160)]
    drawn: dict[str, Any] = {"max_new_tokens": 8, "temperature": 1.0, "seed": 3}
    assert cut.generate(twins, Sampling(**drawn))[1] == cut.generate(twins[1:], Sampling(**drawn))[0]


def test_tokens_that_the_model_has_no_row_for_are_an_error(tiny, tmp_path):
    for file in tiny[0].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    state = json.loads((tmp_path / "tokenizer.json").read_text())
    most = max(state["model"]["vocab"].values()) + 99
    state["added_tokens"] += [{"id": most, "content": "hello", "special": False, "single_word": False,
                               "lstrip": False, "rstrip": False, "normalized": False}]  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    llm = JaxLLM(tmp_path)
    for call in (lambda: llm.score(["hello"], ["x"]), lambda: llm.score(["x"], ["hello"])):
        with pytest.raises(UserError, match=r"gives token \d+, and the model knows \d+"):
            call()


@pytest.mark.long
def test_logits_that_are_not_numbers_are_an_error(tiny, tmp_path):
    import safetensors.numpy

    for file in tiny[0].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    weights["model.norm.weight"][3] = np.nan
    safetensors.numpy.save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    llm = JaxLLM(tmp_path)
    for call in (
        lambda: llm.score(["the cat"], ["mat"]),
        lambda: llm.generate(["the cat"], Sampling(2)),
        lambda: llm.generate(["the cat"], Sampling(2, temperature=1.0, top_p=0.9)),
        lambda: llm.generate(["the cat"], Sampling(2, num_beams=2)),
    ):
        with pytest.raises(UserError, match="logits are not numbers"):
            call()


def test_keys_and_values_are_made_where_their_heads_are(tiny):
    reader = JaxLLM(tiny[0], devices=2)._engine
    pool = reader._pool([10])
    held = reader.past(4, 32)
    for array, heads in ((pool.keys, 2), (pool.values, 2), (held.keys, 2)):
        assert len(array.sharding.device_set) == 2
        assert array.addressable_shards[0].data.shape[heads] == array.shape[heads] // 2


@pytest.mark.long
def test_a_prompt_with_many_targets_stands_in_memory_once(tiny, monkeypatch):
    seen, apply = [], prefill.past_of

    def watched(pool, before):
        seen.append((before.shared.shape, before.own.shape))
        return apply(pool, before)

    monkeypatch.setattr(prefill, "past_of", watched)
    monkeypatch.setattr(prefill, "log_probabilities", prefill.log_probabilities.__wrapped__)
    prompt = "one long prompt that many answers follow, and that no row of them copies: it is "
    targets = [f"t{i}" for i in range(40)]
    llm = JaxLLM(tiny[0])
    scores = llm.score([prompt] * 40, targets)
    assert any(shared[0] for shared, _ in seen)
    # Up to eight rows have 64 slots of their own, needed or not.
    assert all(own[1] == 0 or (own[0] <= 8 and own[1] == 64) for _, own in seen)
    alone = [llm.score([prompt], [target])[0].total for target in targets[:5]]
    np.testing.assert_allclose([s.total for s in scores[:5]], alone, atol=1e-4)


def test_every_product_in_float32_has_all_of_its_bits(tiny):
    """Accelerators would take fewer."""
    reader = JaxLLM(tiny[0])._engine
    ids = jnp.zeros((2, 5), jnp.int32)
    positions = jnp.tile(jnp.arange(5, dtype=jnp.int32), (2, 1))

    def whole(params):
        return causal_lm.logits(params, reader.apply(params, ids, positions).hidden)

    text = str(jax.make_jaxpr(whole)(reader.params))
    products = re.findall(r"dot_general\[.*?\]\s+\w+ \w+", text, flags=re.DOTALL)
    assert len(products) >= 10
    assert all("Precision.HIGHEST" in product for product in products)


@pytest.mark.long
def test_the_longest_allowed_prompt_works(tiny):
    llm = JaxLLM(tiny[0])
    [score] = llm.score(["b" * 90], ["c" * 6])
    assert np.isfinite(score.total)
    assert len(llm.generate(["b" * 90], Sampling(6))) == 1


def test_load_is_cached_and_lazy(tiny):
    path, _ = tiny
    config = schema.LLM(model=str(path), context=64, batch_size=4)
    llm = llms.load(config)
    assert llm._llm is llms.load(schema.LLM(model=str(path), context=64, batch_size=4))._llm
    assert llm.count("cat") == 3
    assert "_engines" not in vars(llm._llm)
    with pytest.raises(UserError, match="context of 64"):
        llm.generate(["a" * 64], Sampling(1))
    with pytest.raises(UserError, match=r"llm\.context is 97"):
        llms.load(schema.LLM(model=str(path), context=97)).generate(["a"], Sampling(1))


def test_fingerprint_tells_weights_formats_platforms_and_templates_apart(tiny, tmp_path, monkeypatch):
    path, _ = tiny
    first = JaxLLM(path)
    assert first.fingerprint == JaxLLM(path, batch_size=2).fingerprint
    assert first.fingerprint != JaxLLM(path, dtype="bfloat16").fingerprint
    assert first.fingerprint != JaxLLM(path, date="2025-01-01").fingerprint
    before = first.fingerprint
    for owner, name in ((jax, "default_backend"), (jax, "__version__")):
        with monkeypatch.context() as other:
            other.setattr(owner, name, (lambda: "tpu") if name == "default_backend" else "9.9.9")
            assert JaxLLM(path).fingerprint != before
    for file in path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert JaxLLM(tmp_path).fingerprint == first.fingerprint
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "x"}))
    assert JaxLLM(tmp_path).fingerprint != first.fingerprint


@pytest.mark.long
def test_bfloat16_generates(tiny):
    assert len(JaxLLM(tiny[0], dtype="bfloat16").generate(PROMPTS, Sampling(4))) == len(PROMPTS)


QUESTIONS = (
    "What is the capital of France?",
    "Name three colours.",
    "Why is the sky blue?",
    "Write a haiku about rain.",
    "Translate 'good morning' into Spanish.",
    "What is 12 + 30?",
    "Who wrote Hamlet?",
    "List two fruits.",
    "Explain photosynthesis in one sentence.",
    "Give a synonym of happy.",
    "What does a compiler do?",
    "Paraphrase: the meeting was put off until Monday.",
    "What is the largest planet?",
    "Name a prime above 10.",
    "How do bees make honey?",
    "Suggest a title for a book about the sea.",
    "Is water wet?",
    "Count to five.",
    "Summarise: cats sleep most of the day and hunt at night.",
    "What is the opposite of cold?",
)


@pytest.mark.long
def test_embedded_model_answers_as_hugging_face_does(embedded_by_transformers):
    """SmolLM2's GGUF read by transformers into torch float32: the same 12 greedy tokens on 20 questions."""
    llm = JaxLLM(pretrained.locate("SmolLM2-135M-Instruct"), batch_size=20)
    prompts = [[{"role": "user", "content": question}] for question in QUESTIONS]
    encoded = [llm._codec.encode(prompt) for prompt in prompts]
    width = max(map(len, encoded))
    padded = torch.tensor([[2] * (width - len(ids)) + ids for ids in encoded])
    mask = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in encoded])
    rows = embedded_by_transformers.generate(
        padded, attention_mask=mask, max_new_tokens=12, do_sample=False, eos_token_id=2, pad_token_id=2
    )[:, width:].tolist()
    assert llm.generate(prompts, Sampling(12)) == [llm._codec.decode(tokens) for tokens in rows]
