"""The probability of what the user really wrote: against transformers, and how it travels through a run."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from pbr_jax import ask, run
from pbr_jax.base.types import Candidate, UserError
from pbr_jax.config import Config, override
from pbr_jax.experiment.plan import Plan
from pbr_jax.llm import load
from pbr_jax.options import LLM
from pbr_jax.stages import language_model

HISTORIES = {"ann": ["i love tea", "tea and cats", "cats about"], "bob": ["football that day"], "cyd": []}

pytestmark = pytest.mark.usefixtures("fresh_cache")


def config(root: Path, models: dict[str, str], **fields: object) -> Config:
    place = {"benchmark.name": "lamp_7", "benchmark.root": str(root), "llm.model": models["llm.model"]}
    small = {"retrieve.method": "recency", "retrieve.k": 2, "prompt.max_tokens": 900, "eval.resamples": 20}
    return override(Config(), {**place, **small, "generate.max_new_tokens": 2, **fields})


def nats(model: Any, tokenizer: Any, text: str, target: str) -> np.ndarray:
    """log p of each token of the target behind the text, by a model of transformers."""
    import torch

    first, second = (tokenizer.encode(one, add_special_tokens=False) for one in (text, target))
    with torch.no_grad():
        logits = model(torch.tensor([first + second])).logits[0].log_softmax(-1)
    return np.array([float(logits[len(first) - 1 + i, token]) for i, token in enumerate(second)])


def texts(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "texts.jsonl").read_text().splitlines()]


def test_the_metric_is_the_mean_log_probability_that_transformers_gives_the_targets(
    tiny_models, write_tweets, tmp_path: Path
):
    root = write_tweets(HISTORIES)
    results = run(
        config(root, tiny_models, **{"generate.method": "none", "eval.likelihood": "on"}), tmp_path / "out"
    )
    folder = tiny_models["llm.model"]
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=f"{folder}/tokenizer.json")
    model, render = transformers.LlamaForCausalLM.from_pretrained(folder), load(LLM(model=folder)).render
    nlls, bpbs = [], []
    for record, text in zip(results.records(), texts(tmp_path / "out"), strict=True):
        found = nats(model, tokenizer, render(text["prompt"]), record["target"])
        nlls.append(-found.mean())
        bpbs.append(-found.sum() / math.log(2) / len(record["target"].encode()))
        assert record["metrics"]["target_nll"] == pytest.approx(nlls[-1], abs=1e-4)
        assert record["prediction"] == ""
        assert record["prompt_documents"] == min(2, len(HISTORIES[record["user_id"]]))
        assert record["prompt_tokens"] > 10
    assert results.metrics == {
        "target_nll": pytest.approx(np.mean(nlls), abs=1e-4),
        "target_bpb": pytest.approx(np.mean(bpbs), abs=1e-4),
    }
    assert set(results.intervals) == set(results.metrics)
    assert (
        results.values["notes"][0]
        == "no answers were generated; only likelihoods of the targets and retrieval are measured"
    )


@pytest.mark.long
def test_whoever_answers_is_measured_too_unless_told_otherwise(tiny_models, write_tweets, tmp_path: Path):
    root = write_tweets(HISTORIES)
    both = run(config(root, tiny_models), tmp_path / "both")
    assert {"rouge1", "target_nll", "target_bpb"} <= set(both.metrics)
    assert "likelihood" in both.values["seconds"]
    without = run(config(root, tiny_models, **{"eval.likelihood": "off"}), tmp_path / "without")
    assert "target_nll" not in without.metrics
    assert [r["prediction"] for r in without.records()] == [r["prediction"] for r in both.records()]
    assert Plan(config(root, tiny_models, **{"generate.method": "none"})).scored is None


def test_the_oracle_shows_the_documents_after_which_the_answer_is_likeliest_one_by_one(
    tiny_models, write_tweets, tmp_path: Path
):
    root, scored = write_tweets(HISTORIES), {"generate.method": "none", "eval.likelihood": "on"}
    best = config(root, tiny_models, **scored, **{"retrieve.k": 3, "select.method": "oracle", "select.k": 1})
    results = run(best, tmp_path / "out")
    assert results.values["ceiling"]
    plan = Plan(best)
    store, write, llm = plan.data.value, language_model.writer(plan.run).value, load(best.llm)
    for example, record in zip(store.examples(), results.records(), strict=True):
        nats = {}
        for document in store.documents(store.history(example.user_id)):
            (alone,) = write([example], [[Candidate(document, 0.0, 0)]])
            nats[document.id] = llm.score([alone.messages], [example.target])[0].total
        assert [d["id"] for d in record["documents"]] == sorted(nats, key=lambda id: -nats[id])
    with pytest.raises(UserError, match="oracle reads the answers, and question '' has none"):
        ask(tmp_path / "out", "ann", "tea")


def test_withheld_targets_have_no_likelihood_and_a_server_that_tells_none_is_refused_at_once(
    tiny_models, write_tweets, tmp_path: Path
):
    root = write_tweets(HISTORIES, "test")
    (root / "test_outputs.json").unlink()
    test = config(root, tiny_models, **{"benchmark.split": "test"})
    assert run(test, tmp_path / "out").metrics == {}
    server = {"llm.backend": "http", "llm.url": "http://127.0.0.1:9"}
    server["benchmark.split"] = "test"
    assert Plan(config(root, tiny_models, **server)).scored is None
    with pytest.raises(UserError, match=r"eval\.likelihood on with a model on a server needs llm\.log_probs"):
        Plan(config(root, tiny_models, **server, **{"eval.likelihood": "on"})).check()


def test_a_target_that_does_not_fit_the_context_says_how_to_go_on_without_it(
    tiny_models, write_tweets, tmp_path: Path
):
    small = {"llm.context": 99, "prompt.max_tokens": 90, "generate.method": "none", "eval.likelihood": "on"}
    with pytest.raises(
        UserError, match=r"the targets: the prompt of question 'ann' has .*; or set eval\.likelihood off"
    ):
        run(config(write_tweets(HISTORIES), tiny_models, **small), tmp_path / "out")


def test_numbers_are_told_with_and_without_questions_whose_history_nearly_holds_the_target(
    tiny_models, write_tweets, tmp_path: Path
):
    # Each target is "NAME says hi": bob's history holds all of it, cyd's 2 of 3 words, ann's one.
    near = {"ann": ["hi there"], "bob": ["once more: Bob says hi!"], "cyd": ["x", "cyd says so"], "dan": []}
    results = run(
        config(write_tweets(near), tiny_models, **{"generate.method": "none", "eval.likelihood": "on"}),
        tmp_path / "out",
    )
    records = results.records()
    assert [record["near_target"] for record in records] == [False, True, True, False]
    assert results.values["counts"]["near_targets"] == 2
    rest = results.values["without_near_targets"]
    kept = [r["metrics"]["target_nll"] for r in records if not r["near_target"]]
    assert (rest["n"], results.values["n"]) == (2, 4)
    assert rest["metrics"]["target_nll"] == pytest.approx(np.mean(kept), abs=1e-12)
