"""PURPLE, end to end on tiny random models: training, ranking, refusals, odd users, kills."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from test_trained_runs import CONFIGS, histories, made

from pbr_jax import Config, ask, run
from pbr_jax.base.types import UserError
from pbr_jax.config import load, override
from pbr_jax.experiment.plan import Plan
from pbr_jax.graph import walk
from pbr_jax.methods.retrieve import Dense
from pbr_jax.methods.select import Purple, purple

SMALL = {
    "prompt.max_tokens": 700, "generate.method": "none", "llm.batch_size": 8, "eval.resamples": 50,
    "eval.likelihood": "on", "encoder.max_length": 32, "retrieve.k": 4, "select.k": 2,
    "select.num_layers": 1, "select.num_heads": 2, "select.query_tokens": 16, "select.record_tokens": 12,
    "select.rollouts": 3, "select.training.epochs": 1, "select.training.batch_size": 8,
    "select.training.devices": 1,
}  # fmt: skip

pytestmark = pytest.mark.usefixtures("fresh_cache")


@pytest.fixture
def tweets(write_tweets) -> Path:
    write_tweets(histories("a", 12), "train")
    return write_tweets(histories("b", 8))


def config(models: dict[str, str], root: Path, **fields: object) -> Config:
    place = {"benchmark.name": "lamp_7", "benchmark.root": str(root), **models}
    return override(load(CONFIGS / "purple.py").config, {**place, **SMALL, **fields})


@pytest.mark.long
def test_one_command_trains_and_ranks(tiny_models, tweets: Path, tmp_path: Path):
    results = run(config(tiny_models, tweets), tmp_path / "out")
    assert made(tmp_path / "out") == [
        "data", "data", "embed", "embed", "rank", "query_states", "token_states", "purple",
        "token_states", "rank", "likelihood",
    ]  # fmt: skip
    values = results.values
    assert (values["system"], values["n"], values["dropped"]) == ("purple", 8, 0)
    assert values["counts"]["training_examples"] == 12  # which stand apart
    for record in results.records():
        scores = [document["score"] for document in record["documents"]]
        assert scores == sorted(scores, reverse=True)
        assert all(document["user_id"] == record["user_id"] for document in record["documents"])
    (file,) = (tmp_path / "cache").glob("**/metrics.jsonl")
    assert results.trainings() == {"purple": [*map(json.loads, file.read_text().splitlines())]}
    assert {"step", "loss", "reward"} <= results.trainings()["purple"][1].keys()
    file.unlink()
    assert results.trainings() == {}


def key_of_training(chosen: Config) -> str:
    (node,) = (node for node in walk(Plan(chosen).last) if node.name == "purple")
    return node.key


def test_what_is_learned_does_not_depend_on_who_is_evaluated(tiny_models, tweets: Path):
    """Unless candidates do: those of neighbours are found among all users."""
    fewer: dict[str, object] = {"limit": 3, "limit_history": 2}
    one, other = (key_of_training(config(tiny_models, tweets, **fields)) for fields in ({}, fewer))
    assert one == other
    assert one != key_of_training(config(tiny_models, tweets, limit_training=5))
    assert one != key_of_training(config(tiny_models, tweets, **{"retrieve.k": 3}))
    text: dict[str, object] = {"neighbours.method": "mean", "neighbours.m": 2, "collaboration": "text"}
    one, other = (key_of_training(config(tiny_models, tweets, **text, **fields)) for fields in ({}, fewer))
    assert one != other


def test_all_orders_of_a_prompt_are_of_one_policy(tiny_models, tweets: Path):
    """PURPLE's Figure 4: the drawn orders are controls of what is evaluated, and train nothing."""
    file = load(CONFIGS / "ablations" / "orders.py")
    place: dict[str, object] = {"benchmark.name": "lamp_7", "benchmark.root": str(tweets), **tiny_models}
    base = override(file.config, {**place, **SMALL})
    assert file.sweep is not None
    rows = [override(base, row) for row in file.sweep() if row["system"] == "purple"]
    assert [row.prompt.order for row in rows] == ["best_first"] + ["random"] * 5
    assert len({key_of_training(row) for row in rows}) == 1
    assert len({Plan(row).identity["run"] for row in rows}) == 6
    last = override(base, {"select.method": "purple", "prompt.order": "best_last"})
    assert key_of_training(last) != key_of_training(rows[0])
    tuned = [override(row, {"generator.method": "lora", "generator.k": 1}) for row in rows[:2]]
    learned = [next(n for n in walk(Plan(row).last) if n.name == "generator").key for row in tuned]
    assert learned[0] == learned[1]


@pytest.mark.parametrize("reward", ["likelihood", "metric"])
def test_decoding_seeds_are_of_one_policy(reward: str, tiny_models, tweets: Path):
    """The answers that a policy learns from are drawn by the run's seed."""
    sampled = {"generate.method": "ipa", "generate.temperature": 0.7, "select.reward": reward}
    rows = [config(tiny_models, tweets, **sampled, **{"generate.seed": seed}) for seed in (None, 0, 5)]
    assert len({key_of_training(row) for row in rows}) == 1
    assert key_of_training(rows[1]) != key_of_training(config(tiny_models, tweets, **sampled, seed=1))


class Narrow(Purple):
    def sizes(self, width: int) -> Any:
        return dataclasses.replace(super().sizes(width), decoder_width=8)


class Wide(Purple):
    def sizes(self, width: int) -> Any:
        return dataclasses.replace(super().sizes(width), decoder_width=16)


def test_a_class_of_ones_own_is_in_the_keys_of_what_it_learned(tiny_models, tweets: Path):
    """What an override computes is part of what was learned."""

    def keys(kind: type[Purple]) -> set[str]:
        settings = config(tiny_models, tweets)
        fields = {field.name: getattr(settings.select, field.name) for field in dataclasses.fields(Purple)}
        own = dataclasses.replace(settings, select=kind(**fields))
        return {node.key for node in walk(Plan(own).last) if node.name in ("purple", "policy")}

    assert len(keys(Narrow)) == 2
    assert keys(Narrow) == keys(Narrow)
    assert not keys(Narrow) & keys(Wide)


def test_a_finder_that_learns_apart_leaves_the_policy_apart(tiny_models, tweets: Path):
    class Finder(Dense):
        training_split = "apart"

    told = config(tiny_models, tweets)
    own = dataclasses.replace(told, retrieve=Finder(k=4))
    Plan(own).check()
    keys = [key_of_training(dataclasses.replace(own, limit=limit)) for limit in (None, 3)]
    assert keys[0] == keys[1]


def test_a_node_is_of_its_store(tiny_models, tweets: Path):
    whole = Plan(config(tiny_models, tweets)).run
    assert whole.training is not None
    first = purple.record_states(whole, 12)
    apart = purple.record_states(whole._replace(data=whole.training), 12)
    assert first is purple.record_states(whole, 12)
    assert (first.needs["store"], apart.needs["store"]) == (whole.data, whole.training)


def test_beside_a_reader_that_learns_what_the_pipeline_finds_both_are_trained(tiny_models, tweets: Path):
    """The one from the training split alone, the other from all users."""
    tuned: dict[str, object] = {
        "generator.method": "lora",
        "generator.documents": ("none", "pipeline"),
        "generator.k": 1,
    }
    plan = Plan(config(tiny_models, tweets, **tuned, collaboration="text"))
    plan.check()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"collaboration": "none"}, "learns from other users' histories, and collaboration is none"),
        ({"select.k": 5}, r"select\.k is 5 and there are at most 4 candidates"),
        ({"select.k": 5, "neighbours.m": 2}, r"select\.k is 5 and there are at most 4 candidates"),
        ({"retrieve.method": "none"}, r"retrieve\.method is none, which finds no documents"),
        ({"select.num_heads": 3}, "width 16 is not a multiple of num_heads 3"),
        ({"select.training.batch_size": 5, "select.training.accumulate": 2}, "batch_size is 5"),
        ({"select.reward": "metric", "feedback.metric": "rmse"}, "which a single answer does not have"),
        (
            {"llm.backend": "http", "llm.url": "http://127.0.0.1:1/v1", "eval.likelihood": "off"},
            r"select\.method purple with a model on a server needs llm\.log_probs",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_any_work(
    tiny_models, tweets: Path, tmp_path: Path, fields, message
):
    with pytest.raises(UserError, match=message):
        run(config(tiny_models, tweets, **fields), tmp_path / "out")
    made = {path.name for path in (tmp_path / "cache").glob("*") if path.is_dir()}
    assert not made & {"embed", "vectors", "rank", "feedback", "user_encoder", "purple"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"k": None}, "want the number of documents that PURPLE chooses"),
        ({"rollouts": 1}, "a profile is judged by the others"),
        ({"updates": 2}, "set select.loss grpo"),
        ({"record_tokens": 2}, "want at least 3"),
        ({"prior": 10.5}, "prior is 10.5, want a number from 0 to 10"),
    ],
)
def test_options_that_make_no_sense_are_told(fields, message):
    with pytest.raises(UserError, match=message):
        Purple(**fields)


@pytest.mark.long
@pytest.mark.parametrize(
    "fields",
    [
        {"select.reward": "metric", "generate.max_new_tokens": 3},
        {"select.learns_from": "singles", "select.num_layers": 0, "select.reward": "per_token"},
        {"select.fusion": "concat_token", "select.prior": 1.0, "select.loss": "grpo", "select.updates": 2},
        {"neighbours.method": "mean", "neighbours.m": 2, "collaboration": "text", "select.own": 1},
        {"expand.method": "query2term", "expand.max_new_tokens": 3, "retrieve.method": "bm25"},
    ],
)
def test_parts_can_be_left_out_changed_and_combined(tiny_models, tweets: Path, tmp_path: Path, fields):
    results = run(config(tiny_models, tweets, **fields), tmp_path / "out")
    assert results.values["dropped"] == 0
    assert len(results.records()) == 8
    trained = results.values["trained"]["purple"]
    assert trained["asked"] >= trained["questions"]
    if fields.get("select.reward") == "metric":
        assert trained["prompt_tokens"] is None
    else:
        assert trained["prompt_tokens"] > 40 * trained["asked"]  # instructions and a question are longer
    answer = ask(tmp_path / "out", "b3", "i love tea")
    assert len(answer.documents) >= 1
