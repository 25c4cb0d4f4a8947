"""LUF's retriever with simulated remarks: when they are found, by what they are learned, kills, bad input."""

import json
from pathlib import Path
from typing import Any

import pytest
from luf_streams import TOPICS, documents, observed, states

import pbr_jax
from pbr_jax.base.types import UserError
from pbr_jax.config import Config, override
from pbr_jax.corpus.store import Store
from pbr_jax.experiment.plan import Plan
from pbr_jax.methods.retrieve import Luf
from pbr_jax.methods.retrieve import adapted as luf_state
from pbr_jax.options import Optimizer, adapting
from pbr_jax.stages import simulated
from pbr_jax.stages.simulated import OTHERS

pytestmark = pytest.mark.usefixtures("fresh_cache")


@pytest.fixture
def told(tmp_path: Path, tiny_models: dict[str, str]) -> dict[str, Any]:
    """Four questions about each of eight paragraphs, in two languages of XQuAD; the overrides."""
    folder = tmp_path / "xquad"
    folder.mkdir()
    for language, asked in (("en", "about"), ("de", "that")):
        paragraphs: list[dict[str, Any]] = []
        for i in range(8):
            questions = [
                {
                    "id": f"q{i}{n}",
                    "question": f"{asked} {TOPICS[i % 4]} day {n} {i}?",
                    "answers": [{"text": f"{language}{n}{i}", "answer_start": 0}],
                }
                for n in range(4)
            ]
            paragraphs.append({"context": f"{TOPICS[i % 4]} {language} {i}", "qas": questions})
        articles = [{"title": str(i), "paragraphs": [paragraphs[i]]} for i in range(8)]
        (folder / f"xquad.{language}.json").write_text(json.dumps({"data": articles}))
    return {
        "benchmark.name": "xquad", "benchmark.root": str(folder), "benchmark.split": "de",
        "benchmark.passages": "en", "stream.order": "shuffled", "stream.size": 8, "collaboration": "text",
        "generate.method": "none", "eval.likelihood": "off", "eval.resamples": 20, "encoder.normalize": "yes",
        "retrieve.labels.kind": "gold", "retrieve.k": 40, "retrieve.remarks": "all", **tiny_models,
    }  # fmt: skip


def config(told: dict[str, Any], **changes: Any) -> Config:
    rate = Optimizer(learning_rate=1e-2)
    update = adapting(epochs=1, batch_size=8, devices=1, optimizer=rate)
    return override(Config(system="luf", retrieve=Luf(moves="map", update=update)), {**told, **changes})


@pytest.mark.long
def test_they_are_found_from_the_next_block_on_and_never_learned_from(
    told: dict[str, Any], tmp_path: Path, fresh_cache: Path
):
    options = config(told)
    results = pbr_jax.run(options, tmp_path / "all")
    plan = Plan(options)
    assert plan.arrivals is not None
    released, grown = plan.data.value, plan.store.value
    ids = [example.id for example in released.examples()]
    found = documents(tmp_path / "all")
    for number, block in enumerate(plan.arrivals.blocks):
        earlier = {f"remark-{ids[i]}" for past in plan.arrivals.blocks[:number] for i in past}
        for i in block:
            assert {id for id in found[i] if id.startswith("remark-")} == earlier
            assert len(found[i]) == 8 + len(earlier)
    assert grown.rows == released.rows + 24
    texts = [document.text for document in grown.documents(range(released.rows, grown.rows))]
    assert all(text.startswith("about ") or text in OTHERS for text in texts)  # no German question
    seen = observed(fresh_cache)
    assert len(seen) == 32
    assert max(max(one["rows"]) for one in seen) < released.rows
    learned = [luf_state.params(state)["map"] for state in states(fresh_cache)]  # type: ignore[index]
    report = results.values["learned"]["retrieve"]
    assert report["remarks_right"] + report["remarks_wrong"] + report["remarks_other"] == 32
    assert report["accepted_wrong"] == report["remarks_wrong"] > 0
    assert [n for n in results.values["notes"] if "retrieve.method luf learns from" in n]

    pbr_jax.run(override(options, {"retrieve.remarks": "none"}), tmp_path / "none")
    plain = [found for found in states(fresh_cache) if not simulated.corpus(found).exists()]
    assert len(plain) == len(learned) == 3
    for state, own in zip(plain, learned, strict=True):
        assert (luf_state.params(state)["map"] == own).all()  # type: ignore[index]
    assert documents(tmp_path / "none") == [
        [id for id in ranking if not id.startswith("remark-")] for ranking in found
    ]


def test_the_oracle_keeps_lies_out_of_what_is_found(told: dict[str, Any], tmp_path: Path, fresh_cache: Path):
    results = pbr_jax.run(config(told, **{"retrieve.remarks": "oracle"}), tmp_path / "out")
    report = results.values["learned"]["retrieve"]
    assert report["accepted_right"] == report["remarks_right"] > 0
    assert [report[f"{what}_{kind}"] for what in ("accepted", "found") for kind in ("wrong", "other")] == [
        0
    ] * 4
    assert report["found_right"] > 0
    last = Store(simulated.corpus(states(fresh_cache)[-1]))
    examples = {f"remark-{example.id}": example for example in last.examples()}
    own = [document for document in last.documents(last.history("")) if document.id.startswith("remark-")]
    assert own
    assert all(document.text.endswith(f" The answer is {examples[document.id].target}.") for document in own)
    last.close()


@pytest.mark.long
@pytest.mark.parametrize(
    "stop", [pytest.param(1, marks=pytest.mark.long), 2, pytest.param(3, marks=pytest.mark.long)]
)
def test_a_stream_that_is_killed_while_remarks_are_written_ends_the_same(
    stop: int, told: dict[str, Any], tmp_path: Path, fresh_cache: Path, monkeypatch: pytest.MonkeyPatch
):
    options = config(told)
    pbr_jax.run(options, tmp_path / "whole")
    wanted = [luf_state.params(state)["map"] for state in states(fresh_cache)]  # type: ignore[index]
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "cut"))
    append, calls = Store.append, 0

    def until(self: Store, some: Any) -> Any:
        nonlocal calls
        calls += 1
        found = append(self, some)
        if calls == stop:
            raise KeyboardInterrupt
        return found

    with monkeypatch.context() as patched:
        patched.setattr(Store, "append", until)
        with pytest.raises(KeyboardInterrupt):
            pbr_jax.run(options, tmp_path / "out")
    assert len(list((tmp_path / "cut").glob("stream/*/states/*.partial"))) == 1
    pbr_jax.run(options, tmp_path / "out")
    assert (tmp_path / "out" / "predictions.jsonl").read_bytes() == (
        tmp_path / "whole" / "predictions.jsonl"
    ).read_bytes()
    found = [luf_state.params(state)["map"] for state in states(tmp_path / "cut")]  # type: ignore[index]
    assert all((one == other).all() for one, other in zip(found, wanted, strict=True))
    system = pbr_jax.open(tmp_path / "out")  # with what the last block's questions were told, too
    assert system.store.rows == 8 + 32


def test_bad_combinations_are_told_in_one_line(told: dict[str, Any], tmp_path: Path, write_tweets: Any):
    tweets = {"benchmark.name": "lamp_7", "benchmark.root": str(write_tweets({"u": ["i love tea"]})),
              "benchmark.passages": "", "benchmark.split": "dev"}  # fmt: skip
    for wrong, message in [
        ({"collaboration": "signals"}, "retrieve.remarks all shows what one user has told to oth"),
        ({"stream.protocol": "cross_users", "stream.size": None, "stream.order": "released"},
         "retrieve.remarks all grows the corpus from block to block, and folds"),
        (tweets, "retrieve.remarks all tells short answers to shared passages, and lamp_7 has none"),
        ({"retrieve.remarks": "some"}, "retrieve.remarks is 'some', want one of none, oracle, judged, all"),
    ]:  # fmt: skip
        with pytest.raises(UserError, match=message) as error:
            Plan(config(told, **wrong))
        assert "\n" not in str(error.value)


@pytest.mark.long
def test_a_language_model_judges(told: dict[str, Any], tmp_path: Path):
    small = {"remarks.judgement": "direct", "stream.size": 8, "limit": 16, "retrieve.remarks": "judged"}
    direct = config(told, **small)
    report = pbr_jax.run(direct, tmp_path / "direct").values["learned"]["retrieve"]
    assert report["accepted_wrong"] <= report["remarks_wrong"]
    guided = override(direct, {"remarks.judgement": "guided", "remarks.max_new_tokens": 4})
    assert Plan(direct).name != Plan(guided).name  # the judge is in the key
    pbr_jax.run(guided, tmp_path / "guided")
    oracle = {"retrieve.remarks": "oracle"}
    assert Plan(override(direct, oracle)).last.key == Plan(override(guided, oracle)).last.key
