"""REPLUG and IC-RALM: likelihoods and answers against sums over documents written out, and through runs."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pbr_jax import run
from pbr_jax.base.types import Candidate, Document, Example, UserError
from pbr_jax.config import Config, override
from pbr_jax.llm import Sampling
from pbr_jax.llm.engine.jax_backend import JaxLLM
from pbr_jax.methods import generate
from pbr_jax.pipeline import Ranking, Scoring, Tally
from pbr_jax.tasks import released
from pbr_jax.text import prompts
from pbr_jax.text.bm25 import BM25
from pbr_jax.text.prompts import Written

torch: Any = pytest.importorskip("torch")
WORDING = released("lamp_7").prompt.own
TEXTS = ["tea is good for you", "football today again", "cats and tea", "violins in the park"]
TARGETS = ("what a day for tea", "cats", "football and violins and tea")
EXAMPLES = [Example(f"q{i}", "me", f"query {i}", f"rephrase {i}", target) for i, target in enumerate(TARGETS)]


def ranking(places: list[int], scores: list[float] | None = None) -> Ranking:
    return [
        Candidate(Document(str(i), "me", TEXTS[i], {"text": TEXTS[i]}), score, i)
        for i, score in zip(places, scores or [0.0] * len(places))
    ]


RANKINGS = [ranking([0, 1, 2], [0.5, 0.45, 0.2]), [], ranking([3], [0.1])]


@pytest.fixture(scope="module")
def llm(tiny_models) -> JaxLLM:
    return JaxLLM(Path(tiny_models["llm.model"]), batch_size=4)


@pytest.fixture(scope="module")
def write(llm) -> Callable[..., list[Written]]:
    def written(examples: Any, rankings: Any) -> list[Written]:
        return [
            prompts.write(
                WORDING, example, [c.document for c in own], count=llm.count, truncate=llm.truncate,
                max_tokens=900, gamma=0.6,
            )
            for example, own in zip(examples, rankings, strict=True)
        ]  # fmt: skip

    return written


@pytest.fixture(scope="module")
def log_p(tiny_models) -> Callable[[list[int]], np.ndarray]:
    """[v]: log p of what follows these tokens, by torch."""
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(tiny_models["llm.model"]).eval()

    def found(ids: list[int]) -> np.ndarray:
        with torch.no_grad():
            return reference(torch.tensor([ids])).logits[0, -1].double().log_softmax(-1).numpy()

    return found


def slot(method: Any, llm: JaxLLM, tally: Tally | None = None) -> Any:
    return method.slot(tally or Tally(), llm=llm, max_new_tokens=method.max_new_tokens or 64, seed=0)


def weights(scores: list[float], tau: float = 0.1) -> np.ndarray:
    shares = np.exp(np.array(scores) / tau)
    return shares / shares.sum()


@pytest.mark.parametrize("options", [{}, {"tau": 2.0}, {"weights": "equal"}], ids=str)
def test_replugs_likelihood_is_that_of_the_mixture_at_every_token(llm, write, log_p, options: Any):
    made = slot(generate.Replug(**options), llm)
    assert isinstance(made, Scoring)
    done: list[int] = []
    found = made.score(EXAMPLES, RANKINGS, write, on_batch=done.append)
    assert sum(done) == 3  # questions, of five prompts
    for example, own, (written, score) in zip(EXAMPLES, RANKINGS, found, strict=True):
        singles = [[c] for c in own] or [[]]
        texts = [llm._codec.encode(write([example], [one])[0].messages) for one in singles]
        shares = weights([c.score for c in own] or [0.0], options.get("tau", 0.1))
        if "weights" in options:
            shares = np.full(len(singles), 1 / len(singles))
        total, target = 0.0, llm._codec.encode_target(example.target or "")
        for n, token in enumerate(target):
            total += np.log(sum(w * np.exp(log_p(ids + target[:n])[token]) for w, ids in zip(shares, texts)))
        assert score.total == pytest.approx(total, abs=1e-4)
        assert score.tokens == len(target)
        assert written.documents == len(own)


@pytest.mark.long
def test_replug_of_one_document_is_in_prompt_augmentation(llm, write):
    singles = [own[:1] for own in RANKINGS]
    answers = slot(generate.Replug(max_new_tokens=6), llm)(EXAMPLES, singles, write)
    assert [a.text for a in answers] == [
        a.text for a in slot(generate.Ipa(max_new_tokens=6), llm)(EXAMPLES, singles, write)
    ]
    scores = slot(generate.Replug(), llm).score(EXAMPLES, singles, write)
    wanted = llm.score([w.messages for w in write(EXAMPLES, singles)], TARGETS)
    np.testing.assert_allclose([s.total for _, s in scores], [s.total for s in wanted], atol=1e-5)


@pytest.mark.long
def test_replugs_answer_is_the_greedy_one_of_the_mixture(llm, write, log_p):
    tally, told = Tally(), {}
    answers = slot(generate.Replug(max_new_tokens=5), llm, tally)(
        EXAMPLES, RANKINGS, write, on_batch=lambda places, texts: told.update(zip(places, texts))
    )
    assert [told[i] for i in range(3)] == [answer.text for answer in answers]
    texts = [llm._codec.encode(write(EXAMPLES[:1], [[c]])[0].messages) for c in RANKINGS[0]]
    shares, tokens = weights([0.5, 0.45, 0.2]), []
    while len(tokens) < 5 and tokens[-1:] != [1]:
        mixed = sum(w * np.exp(log_p(ids + tokens)) for w, ids in zip(shares, texts))
        tokens.append(int(np.argmax(mixed)))
    assert answers[0].text == llm.text(tokens)
    assert tally.counts["generate_calls"] == 5
    assert tally.counts["generate_prompt_tokens"] == sum(answer.prompt_tokens for answer in answers)
    assert answers[0].prompt.documents == 3


# --- IC-RALM ---------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_stride_longer_than_the_answer_is_in_prompt_augmentation_with_one_document(llm, write):
    singles = [own[:1] for own in RANKINGS]
    method = generate.IcRalm(stride=50, max_new_tokens=6)
    wanted = slot(generate.Ipa(max_new_tokens=6), llm)(EXAMPLES, singles, write)
    assert slot(method, llm)(EXAMPLES, RANKINGS, write) == wanted
    scores = slot(method, llm).score(EXAMPLES, RANKINGS, write)
    assert [score for _, score in scores] == llm.score([a.prompt.messages for a in wanted], TARGETS)


def best(example: Example, begun: str, llm: JaxLLM, own: Ranking, length: int = 32) -> int:
    """The document that BM25 finds for the last tokens."""
    said = f"{example.query} {begun}"
    words = said.split(" ")
    tails = (" ".join(["", *words[i:]] if i else words) for i in range(len(words)))
    tail = next(text for text in tails if llm.count(text) <= length)
    return int(np.argmax(BM25([c.document.text for c in own]).scores(tail)))


def test_the_document_is_chosen_anew_at_every_stride(llm, write):
    """Each stride of the target is scored after the document that the text before it asks for."""
    own, example = ranking([1, 0, 3, 2]), Example("q", "me", "something", "in", "violins and tea is cats")
    (found,) = slot(generate.IcRalm(stride=4, query=9), llm).score([example], [own], write)
    target = llm._codec.encode_target(example.target or "")
    total, chosen = 0.0, []
    for start in range(0, len(target), 4):
        begun = llm.beginning(example.target or "", start)
        chosen.append(best(example, begun, llm, own, 9) if begun else 0)
        (row,) = llm.token_scores([write([example], [[own[chosen[-1]]]])[0].messages], [example.target])
        total += sum(row[start : start + 4])
    assert found[1].total == pytest.approx(total, abs=1e-5)
    assert len(set(chosen)) > 1  # documents do change


def test_an_answer_goes_on_after_another_document(llm, write):
    own, example = ranking([1, 0, 3, 2]), Example("q", "me", "cats tea violins", "in", "t")
    tally = Tally()
    (answer,) = slot(generate.IcRalm(stride=3, max_new_tokens=9), llm, tally)([example], [own], write)
    tokens: list[int] = []
    while len(tokens) < 9 and tokens[-1:] != [1]:
        place = best(example, llm.text(tokens), llm, own) if tokens else 0
        prompt = llm._codec.encode(write([example], [[own[place]]])[0].messages) + tokens
        limit = min(3, 9 - len(tokens))
        (more,) = (
            t for found in llm._decoded([tuple(prompt)], [0], [True], Sampling(limit)) for _, t in found
        )
        tokens += more
    assert answer.text == llm.text(tokens)
    assert tally.counts["generate_calls"] == -(-len(tokens) // 3)


@pytest.mark.long
@pytest.mark.parametrize("method", [generate.Replug(), generate.IcRalm(stride=3)])
def test_answers_end_before_a_stop_string_and_strides_end_with_them(llm, write, method: Any):
    def answered(stop: tuple[str, ...], told: dict[int, str], tally: Tally) -> list[str]:
        made = method.slot(tally, llm=llm, max_new_tokens=12, seed=0, stop=stop)
        answers = made(EXAMPLES, RANKINGS, write, on_batch=lambda i, texts: told.update(zip(i, texts)))
        return [answer.text for answer in answers]

    whole, ended = Tally(), Tally()
    texts, told = answered((), {}, whole), {}
    stop = tuple(text[1:3] for text in texts if len(text) > 2)
    found = answered(stop, told, ended)
    assert found == [min((text.partition(one)[0] for one in stop), key=len) for text in texts] != texts
    assert [told[i] for i in range(3)] == found
    if method.method == "ic_ralm":
        assert ended.counts["generate_calls"] < whole.counts["generate_calls"]


@pytest.mark.long
def test_reranking_by_likelihood_takes_the_document_that_explains_what_was_said(llm, write):
    own, example = ranking([1, 0, 3, 2]), EXAMPLES[2]
    method = generate.IcRalm(stride=4, rerank="likelihood", reranked=6)
    (found,) = slot(method, llm).score([example], [own], write)
    target = example.target or ""
    rows = llm.token_scores([write([example], [[c]])[0].messages for c in own], [target] * 4)
    total = sum(rows[0][:4])
    for start in range(4, len(rows[0]), 4):
        begun = llm.beginning(target, start)
        last = llm.token_scores([write([example], [[c]])[0].messages for c in own], [begun] * 4)
        total += sum(rows[int(np.argmax([sum(row[-6:]) for row in last]))][start : start + 4])
    assert found[1].total == pytest.approx(total, abs=1e-5)


# --- through runs ----------------------------------------------------------------------------------

HISTORIES = {
    "ann": ["i love tea", "tea and cats", "cats about", "that day"],
    "bob": ["football that day"],
    "cyd": [],
}


@pytest.mark.long
@pytest.mark.parametrize("method", ["replug", pytest.param("ic_ralm", marks=pytest.mark.long)])
def test_a_run_answers_scores_and_asks_nothing_twice(
    tiny_models, write_tweets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
):
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "cache"))
    place = {"benchmark.name": "lamp_7", "benchmark.root": str(write_tweets(HISTORIES)), **tiny_models}
    small = {"retrieve.method": "recency", "retrieve.k": 3, "prompt.max_tokens": 900, "eval.resamples": 20}
    config = override(
        Config(),
        {**place, **small, "generate.method": method, "generate.max_new_tokens": 6, "system": method},
    )
    results = run(config, tmp_path / "out")
    assert results.values["n"] == 3
    assert results.metrics["target_nll"] > 0
    assert results.values["counts"]["generate_calls"] >= 3
    ipa = run(override(config, {"generate.method": "ipa", "system": "ipa"}), tmp_path / "ipa")
    lines = {"out": results.records(), "ipa": ipa.records()}
    values = {
        name: {line["id"]: line["metrics"]["target_nll"] for line in found} for name, found in lines.items()
    }
    # Of one document or none a mixture is its prompt.
    for owner in ("bob", "cyd"):
        (id,) = (line["id"] for line in lines["out"] if line["user_id"] == owner)
        assert values["out"][id] == pytest.approx(values["ipa"][id], abs=1e-5)
    assert values["out"] != values["ipa"]
    shutil.rmtree(tmp_path / "cache" / "generate")
    shutil.rmtree(tmp_path / "cache" / "likelihood")
    again = run(override(config, {"llm.offline": True, "system": "again"}), tmp_path / "again")
    assert again.metrics == results.metrics


@pytest.mark.parametrize(
    ("method", "options", "told"),
    [
        (generate.Replug, {"tau": 0.0}, "generate.tau is 0.0"),
        (generate.Replug, {"num_beams": 2}, "generate.method replug does not search beams"),
        (generate.IcRalm, {"num_beams": 2}, "generate.method ic_ralm does not search beams"),
    ],
)
def test_options_that_make_no_sense(method: Any, options: dict[str, Any], told: str):
    with pytest.raises(UserError, match=told):
        method(**options)
