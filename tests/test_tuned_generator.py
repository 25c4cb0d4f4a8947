"""A generator tuned to the task, end to end on tiny models: rows of a table, privacy, bad input."""

import json
from pathlib import Path
from typing import Any

import pytest

from pbr_jax import Config, ask, export, run
from pbr_jax.base.types import UserError
from pbr_jax.config import override
from pbr_jax.experiment.plan import Plan
from pbr_jax.methods import generate, retrieve
from pbr_jax.models import adapter_file
from pbr_jax.options import Eval, TunedGenerator

WORDS = ("tea", "cats", "football", "violins")

pytestmark = pytest.mark.usefixtures("fresh_cache")


@pytest.fixture
def tweets(write_tweets) -> Path:
    def histories(prefix: str, users: int) -> dict[str, list[str]]:
        return {
            f"{prefix}{i}": [f"CANARY{prefix}{i}x i love {WORDS[i % 4]} {j}" for j in range(i % 4)]
            for i in range(users)
        }

    write_tweets(histories("a", 24), "train")
    return write_tweets(histories("b", 5))


def config(models: dict[str, str], root: Path, **fields: Any) -> Config:
    base = Config(
        collaboration="signals",
        retrieve=retrieve.BM25(k=2),
        generate=generate.Nothing(),
        eval=Eval(likelihood="on", resamples=20),
    )
    small = {
        "benchmark.name": "lamp_7", "benchmark.root": str(root), "prompt.max_tokens": 900,
        "encoder.max_length": 16, "generator.method": "lora", "generator.k": 2, "generator.rank": 2,
        "generator.limit": 24,
        "generator.training.epochs": 2, "generator.training.batch_size": 8, "generator.training.devices": 1,
        "generator.training.selection": 0.2, "generator.training.optimizer.learning_rate": 0.02,
    }  # fmt: skip
    return override(base, {**models, **small, **fields})


def tuned_stage(plan: Plan) -> Any:
    """The stage in which a plan's generator is tuned."""
    return plan.last.needs["scored"].needs["llm"].needs["tuned"]


def nll(results: Any) -> float:
    return results.metrics["target_nll"]


@pytest.mark.long
def test_one_tuned_reader_serves_every_row_of_a_table(tiny_models, tweets: Path, tmp_path: Path):
    frozen = run(config(tiny_models, tweets, **{"generator.method": "frozen"}), tmp_path / "frozen")
    tuned = run(config(tiny_models, tweets), tmp_path / "tuned")
    assert nll(tuned) < nll(frozen) - 0.2
    none = Plan(config(tiny_models, tweets, **{"retrieve.method": "none"}))
    other = Plan(config(tiny_models, tweets, **{"retrieve.method": "random", "collaboration": "text"}))
    adapters = {tuned_stage(plan).key for plan in (none, other)}
    assert len(adapters) == 1
    assert tuned_stage(none).seconds is not None  # found, not made again
    told = json.loads((tmp_path / "tuned" / "results.json").read_text())["trained"]["generator"]
    assert told["users"] + 8 == 24
    assert {"before", "after"} < set(told["membership"])


@pytest.mark.long
def test_its_answers_are_those_of_the_adapter_it_keeps(tiny_models, tweets: Path, tmp_path: Path):
    """The exported folder as `llm.adapter`, and `ask`."""
    fields = {"generate.method": "ipa", "generate.max_new_tokens": 4}
    tuned = run(config(tiny_models, tweets, **fields), tmp_path / "tuned")
    folder = export(tmp_path / "tuned", tmp_path / "adapter", "adapter")
    assert sorted(file.name for file in folder.iterdir()) == [adapter_file.CONFIG, adapter_file.WEIGHTS]
    given = {**fields, "generator.method": "frozen", "llm.adapter": str(folder)}
    same = run(config(tiny_models, tweets, **given), tmp_path / "given")
    assert nll(same) == pytest.approx(nll(tuned), abs=1e-6)
    texts = [[line["prediction"] for line in found.records()] for found in (tuned, same)]
    assert texts[0] == texts[1]
    with pytest.raises(UserError, match="one of them tunes the model; leave the other out"):
        run(config(tiny_models, tweets, **{**given, "generator.method": "lora"}), tmp_path / "both")
    with pytest.raises(UserError, match=r"generator.method frozen trains no adapter; export a"):
        export(tmp_path / "given", tmp_path / "none", "adapter")
    assert not (tmp_path / "none").exists()
    assert isinstance(ask(tmp_path / "tuned", "b2", "Say it anew: hello").text, str)


@pytest.mark.long
def test_all_weights_and_every_kind_of_documents(tiny_models, tweets: Path, tmp_path: Path):
    fields = {"generator.method": "full", "collaboration": "text"}
    documents = {
        "generator.documents": ("none", "own", "others", "hybrid", "neighbours", "own_neighbours", "pipeline")
    }
    found = run(config(tiny_models, tweets, **fields, **documents), tmp_path / "full")
    told = json.loads((tmp_path / "full" / "results.json").read_text())["trained"]["generator"]
    assert told["pairs"] + told["held_out"] == 7 * 24
    assert nll(found) > 0


def test_other_users_texts_stand_in_no_training_prompt_unless_that_is_said(tiny_models, tweets: Path):
    from pbr_jax.llm.tokens import chat
    from pbr_jax.stages import generator as generator

    plan = Plan(config(tiny_models, tweets))
    stage = tuned_stage(plan)
    values = {name: node.value for name, node in stage.needs.items() if name not in ("model", "llm")}
    codec = chat.load(Path(tiny_models["llm.model"]))
    options, asked = plan.config.generator, stage.options[1]
    store, write = values.pop("store"), values.pop("write")
    pairs = generator._pairs(
        codec, options, asked, 0, store, write, values, lambda place, ids, more: ids, False
    )
    assert len(pairs) == 48
    seen = 0
    for pair in pairs:
        text = codec.tokenizer.decode(list(pair.prompt))
        assert text.count("CANARY") == text.count(f"CANARY{pair.user_id.removeprefix('train/')}x")
        seen += text.count("CANARY")
    questions = sum("CANARY" in example.query for example in asked.read(store))
    assert seen > 2 * questions  # not only in the questions, which stand in every prompt
    with pytest.raises(UserError, match=r"generator learns from other users' histories.*signals"):
        Plan(config(tiny_models, tweets, collaboration="none"))
    with pytest.raises(UserError, match="other users' documents would stand in training prompts"):
        Plan(config(tiny_models, tweets, **{"generator.documents": ("own", "others")}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"generator.rank": 0}, "generator.rank is 0, want at least 1"),
        ({"generator.alpha": 0.0}, "generator.alpha is 0.0, want a positive number"),
        ({"generator.documents": ()}, "generator.documents is empty"),
        ({"generator.documents": ("mine",)}, "generator.documents is 'mine', want one of none, own"),
        ({"generator.targets": ("q_proj",)}, "generator.targets is 'q_proj', want one of query, key"),
        ({"generator.targets": ()}, "generator.targets is empty"),
        ({"llm.adapter": "x"}, "x: found no adapter_config.json"),
        ({"llm.adapter": "x", "generator.method": "frozen"}, "x: found no adapter_config.json"),
        ({"benchmark.split": "train"}, "both 'train'"),
        ({"generator.training.batch_size": 3, "generator.training.devices": 2}, "do not divide"),
        ({"llm.tensor_parallel": 2}, "copies of a model that 2 devices share"),
    ],
)
def test_bad_input_is_one_clear_line(tiny_models, tweets: Path, tmp_path: Path, fields, message: str):
    with pytest.raises(UserError) as error:
        run(config(tiny_models, tweets, **fields), tmp_path / "out")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.long
def test_a_training_prompt_over_the_context_is_named_or_cut(tiny_models, write_tweets, tmp_path: Path):
    write_tweets({f"a{i}": ["i love tea", "tea " * 2200] for i in range(9)}, "train")
    root = write_tweets({"b": ["i love tea"]})
    long = {"prompt.max_tokens": 9000, "encoder.max_length": 8}
    with pytest.raises(UserError, match=r"prompt of training question '.*' has \d+ tokens and .* context of"):
        run(config(tiny_models, root, **long), tmp_path / "out")
    cut = {"llm.overflow": "cut", "llm.context": 96}
    assert nll(run(config(tiny_models, root, **long, **cut), tmp_path / "cut")) > 0


def test_by_default_adapters_are_divided_as_one_cpu_is_fast():
    assert TunedGenerator().training.accumulate is None


def test_one_reader_serves_whoever_is_evaluated(tiny_models, tweets: Path):
    """And prompts to learn from hold nobody who is evaluated, others' documents included."""

    def stage(**fields: Any) -> Any:
        return tuned_stage(Plan(config(tiny_models, tweets, collaboration="text", **fields)))

    kinds = {"generator.documents": ("none", "own", "others")}
    assert stage(**kinds).key == stage(**kinds, limit=2, limit_history=1).key
    assert stage(**kinds).key != stage(**kinds, limit_training=9).key
    store = stage(**kinds).needs["store"].value
    owners = {document.user_id for document in store.documents(range(store.summary.documents))}
    assert owners
    assert all(owner.startswith("train/a") for owner in owners)
    pipeline = {"generator.documents": ("pipeline",)}
    assert stage(**pipeline).key != stage(**pipeline, limit=2).key


def test_questions_keep_their_number_of_documents_where_one_holds_the_target(tiny_models, write_tweets):
    """Documents that give the answer away are left out before the nearest are taken."""
    from pbr_jax.stages import generator as generator

    texts = [f"i love tea {j}" for j in range(6)]
    write_tweets({f"a{i}": [f"{i} {text}" for text in texts] for i in range(9)}, "train")
    plan = Plan(config(tiny_models, write_tweets({"b": texts})))
    stage = tuned_stage(plan)
    store, found = stage.needs["store"].value, stage.needs["own"].value
    examples = list(stage.options[1].read(store))
    for ranking in generator.drop_leaks(store, examples, found.read(store, examples)):
        assert len(ranking) >= plan.config.generator.k


def test_histories_without_documents_are_one_clear_line(tiny_models, write_tweets, tmp_path: Path):
    write_tweets({f"a{i}": [] for i in range(9)}, "train")
    root = write_tweets({"b": ["i love tea"]})
    with pytest.raises(UserError, match="no training question has any"):
        run(config(tiny_models, root), tmp_path / "out")
