"""LUF's retriever in a stream: what it learns and from whom, kills, other systems with it, bad input."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from luf_streams import TOPICS, documents, observed, states

import pbr_jax
from pbr_jax.base.types import UserError
from pbr_jax.config import Config, override
from pbr_jax.experiment.plan import Plan
from pbr_jax.exporting.export import export
from pbr_jax.methods.retrieve import BM25, Adapted, Fused, Luf
from pbr_jax.methods.retrieve import adapted as luf_state
from pbr_jax.options import Optimizer, adapting
from pbr_jax.text.encode import TextEncoder
from pbr_jax.train import luf as training

CONFIGS = Path(__file__).parents[3] / "configs"

pytestmark = pytest.mark.usefixtures("fresh_cache")


@pytest.fixture
def squad(tmp_path: Path, tiny_models: dict[str, str]) -> Callable[..., dict[str, Any]]:
    """Writes questions about paragraphs, four of each, in SQuAD's format; the overrides that name them.

    A question about a topic is answered by the paragraph of the next one.
    """

    def write(paragraphs: int = 12, asked: int = 48, passages: bool = True) -> dict[str, Any]:
        texts = [f"{TOPICS[i % 4]} day {i // 4} that day {i % 10}" for i in range(paragraphs)]
        entries: list[dict[str, Any]] = [{"context": text, "qas": []} for text in texts]
        for number in range(asked):
            i = (7 * number) % paragraphs
            question = f"about {TOPICS[(i - 1) % 4]} day {i // 4} {number % 3}"
            entries[i]["qas"].append(
                {"id": f"q{number}", "question": question, "answers": [{"text": "tea", "answer_start": 0}]}
            )
        folder = tmp_path / f"squad{paragraphs}-{asked}"
        folder.mkdir(exist_ok=True)
        articles = [{"title": "", "paragraphs": entries}]
        (folder / "dev-v1.1.json").write_text(json.dumps({"data": articles}))
        told = {
            "benchmark.name": "squad", "benchmark.root": str(folder), "stream.order": "shuffled",
            "collaboration": "signals", "generate.method": "none", "eval.likelihood": "off",
            "eval.resamples": 20, "encoder.normalize": "yes", **tiny_models,
        }  # fmt: skip
        return told | ({"benchmark.passages": str(folder / "dev-v1.1.json")} if passages else {})

    return write


def luf(moves: luf_state.Moves = "map", **changes: Any) -> Luf:
    update = {"epochs": 3, "batch_size": 8, "devices": 1, "optimizer": Optimizer(learning_rate=1e-2)}
    return Luf(moves=moves, update=adapting(**update), **changes)


def config(options: Luf, told: dict[str, Any], **changes: Any) -> Config:
    base = Config(system="luf", retrieve=options)
    gold = {"stream.size": 16, "retrieve.labels.kind": "gold", "retrieve.labels.depth": 8}
    return override(base, {**told, **gold, **changes})


def content(cache: Path) -> dict[str, bytes]:
    (stage,) = (path for path in (cache / "stream").iterdir() if path.is_dir())
    files = (path for path in stage.rglob("*") if path.is_file())
    names = ("stage.json", "tally.json")
    return {str(file.relative_to(stage)): file.read_bytes() for file in files if file.name not in names}


@pytest.mark.long
def test_a_map_learns_from_past_blocks_alone_and_reports_its_labels(squad, tmp_path: Path, fresh_cache: Path):
    options = config(luf(batches="random"), squad(), **{"retrieve.update.epochs": 20})
    learned = pbr_jax.run(options, tmp_path / "luf")
    frozen = pbr_jax.run(override(options, {"retrieve.method": "dense"}), tmp_path / "dense")
    blocks = [block["metrics"]["recall@1"] for block in learned.values["blocks"]]
    before = [block["metrics"]["recall@1"] for block in frozen.values["blocks"]]
    assert blocks[0] == before[0]  # nothing was learned yet
    assert blocks[2] > before[2] + 0.1
    report = learned.values["learned"]["retrieve"]
    assert report["label_precision"] == 1.0
    assert 0 < report["label_positive"] <= 1
    headers = [luf_state.read(path) for path in states(fresh_cache)]
    assert [h.moves for h in headers] == ["map"] * 2
    assert [h.questions for h in headers] == sorted({h.questions for h in headers})
    assert [sorted(p.name for p in path.iterdir()) for path in states(fresh_cache)] == [
        ["luf.json", "luf.safetensors"]
    ] * 2  # no checkpoint is left
    assert [n for n in learned.values["notes"] if "retrieve.method luf learns from supervision" in n]


@pytest.mark.long
def test_others_beside_it_count_as_in_fused_and_it_learns_as_alone(squad, tmp_path: Path, fresh_cache: Path):
    """Against the standardised sum of both rankings of all paragraphs, block by block."""
    told = {**squad(), "retrieve.k": 12, "retrieve.update.epochs": 20}
    alone = pbr_jax.run(config(luf(), told), tmp_path / "alone")
    learned = [file.read_bytes() for path in states(fresh_cache) for file in luf_state.files(path)]
    words = pbr_jax.run(override(config(luf(), told), {"retrieve.method": "bm25"}), tmp_path / "words")
    both = pbr_jax.run(config(luf(of=(BM25(),)), {**told, "retrieve.k": 3}), tmp_path / "both")
    stages = list(fresh_cache.glob("stream/*/states/*/retrieve"))
    assert len(stages) == 4
    assert sorted(learned * 2) == sorted(f.read_bytes() for path in stages for f in luf_state.files(path))
    for one, other, found in zip(alone.records(), words.records(), both.records(), strict=True):
        scores = [{d["id"]: d["score"] for d in ranked["documents"]} for ranked in (one, other)]
        names = [d["id"] for d in one["documents"]]
        values = np.array([[own[name] for name in names] for own in scores])
        deviations = np.maximum(values.std(1, keepdims=True), 1e-9)
        total = ((values - values.mean(1, keepdims=True)) / deviations).sum(0)
        ranked = {d["id"]: d["score"] for d in found["documents"]}
        assert len(ranked) == 10  # of 12, since recall@10 is measured
        assert ranked == pytest.approx({n: total[names.index(n)] for n in ranked}, abs=1e-4)
        assert min(ranked.values()) >= np.sort(total)[2] - 1e-4
        assert set(found["documents"][0]["scores"]) == {"luf", "bm25"}


@pytest.mark.long
@pytest.mark.parametrize("moves", ["query_tower", "both"])
def test_towers_move_and_what_they_find_is_searched_as_learned(
    moves: luf_state.Moves, squad, tmp_path: Path, fresh_cache: Path
):
    options = config(luf(moves), squad(asked=32))
    pbr_jax.run(options, tmp_path / "out")
    second = documents(tmp_path / "out")
    plan = Plan(options)
    assert plan.arrivals is not None
    encoder = TextEncoder(plan.config.encoder)
    state = states(fresh_cache)[0]
    params = luf_state.params(state)
    assert params is not None
    tuned = TextEncoder(encoder.config, tuned=(params["tower"], "tuned"))
    store = plan.store.value
    texts = dict(store.texts())
    searched = (tuned if moves == "both" else encoder).encode(list(texts.values()))
    examples = list(store.examples())
    for i in plan.arrivals.blocks[1]:
        (vector,) = tuned.encode([examples[i].query], role="query")
        best = np.argsort(-(searched @ vector), kind="stable")[:4]
        assert second[i][:4] == [document.id for document in store.documents(best)]


@pytest.mark.long
def test_a_training_that_is_interrupted_ends_the_same(
    squad, tmp_path: Path, fresh_cache: Path, monkeypatch: pytest.MonkeyPatch
):
    options = config(luf(), squad())
    pbr_jax.run(options, tmp_path / "whole")
    wanted = content(fresh_cache)
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "cut"))
    mapped, calls = training.mapped, 0

    def until(*given: Any) -> Any:
        moving = mapped(*given)

        def arrays(*batch: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 5:
                raise KeyboardInterrupt
            return moving.arrays(*batch)

        return moving._replace(arrays=arrays)

    with monkeypatch.context() as patched:
        patched.setattr(training, "mapped", until)
        with pytest.raises(KeyboardInterrupt):
            pbr_jax.run(options, tmp_path / "out")
    assert list((tmp_path / "cut").glob("stream/*/states/*.partial/retrieve/training"))
    pbr_jax.run(options, tmp_path / "out")
    assert content(tmp_path / "cut") == wanted


@pytest.mark.long
def test_last_starts_from_the_state_before_with_a_part_of_older_labels(
    squad, tmp_path: Path, fresh_cache: Path
):
    told = squad()
    pbr_jax.run(config(luf(starts="last", replay=0.5), told), tmp_path / "last")
    last = [luf_state.read(path).questions for path in states(fresh_cache)]
    known = observed(fresh_cache)
    new = [sum(1.0 in one["grades"] for one in known[start : start + 16]) for start in (0, 16)]
    assert last == [n + min(sum(new[:i]), round(0.5 * n)) for i, n in enumerate(new)]
    assert all(len(one["vector"]) == 16 and len(one["rows"]) == 8 for one in known)


@pytest.mark.long
def test_a_learned_state_serves_other_questions_without_a_stream(
    squad, tmp_path: Path, fresh_cache: Path, monkeypatch: pytest.MonkeyPatch
):
    told = squad()
    options = config(luf(), told)
    pbr_jax.run(options, tmp_path / "luf")
    system = pbr_jax.open(tmp_path / "luf")
    examples = list(system.store.examples())[:6]
    wanted = [[(c.row, c.score) for c in ranking] for ranking in system.rank(examples)]
    folder = export(tmp_path / "luf", tmp_path / "exported", "state", slot="retrieve")
    plain = {name: value for name, value in told.items() if not name.startswith("stream")}
    adapted = override(Config(retrieve=Adapted(state=str(folder))), {**plain, "collaboration": "none"})
    found = Plan(adapted).system().rank(examples)
    assert [[(c.row, c.score) for c in ranking] for ranking in found] == wanted
    folders = [folder, *states(fresh_cache)]
    keys = {Plan(override(adapted, {"retrieve.state": str(path)})).name for path in folders}
    assert len(keys) == 3  # a state is known by its content
    with pytest.raises(UserError, match=r"was learned with the encoder .* set the encoder that it was"):
        Plan(override(adapted, {"encoder.query_prefix": "tea"})).check()
    for wrong in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UserError, match=f"{wrong} holds no state of retrieve.method luf"):
            Plan(override(adapted, {"retrieve.state": str(wrong)})).check()
    monkeypatch.chdir(tmp_path)
    pbr_jax.run(override(adapted, {"retrieve.state": folder.name}), tmp_path / "adapted")
    monkeypatch.chdir("/")
    elsewhere = pbr_jax.open(tmp_path / "adapted").rank(examples)
    assert [[(c.row, c.score) for c in ranking] for ranking in elsewhere] == wanted


# -- whose data --------------------------------------------------------------------------------------------


@pytest.fixture
def tweets(write_tweets, tiny_models, tmp_path: Path) -> dict[str, Any]:
    """Users with histories, who may look at shared passages too."""
    lines = [{"id": f"p{i}", "text": f"{TOPICS[i % 4]} day {i}"} for i in range(9)]
    file = tmp_path / "passages.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    histories = {f"u{i}": [f"i love {TOPICS[i % 4]} day {j} {i}" for j in range(4)] for i in range(9)}
    write_tweets({f"t{i}": own for i, own in enumerate(histories.values())}, "train")
    return {
        "benchmark.name": "lamp_7", "benchmark.root": str(write_tweets(histories)),
        "benchmark.passages": str(file), "encoder.normalize": "yes", "eval.likelihood": "off",
        "eval.resamples": 20, "generate.max_new_tokens": 2, "prompt.max_tokens": 600, "stream.size": 4,
        "retrieve.labels.kind": "self", "retrieve.update.batch_size": 4,
        "retrieve.update.devices": 1, **tiny_models,
    }  # fmt: skip


@pytest.mark.long
def test_with_signals_no_foreign_text_is_in_a_prompt_or_a_label(tweets, tmp_path: Path, fresh_cache: Path):
    told = {**tweets, "collaboration": "signals", "retrieve.k": 3, "generate.method": "ipa"}
    told["retrieve.labels.kind"] = "query_likelihood"
    pbr_jax.run(override(Config(retrieve=Luf(moves="map")), told), tmp_path / "out")
    texts = [json.loads(line) for line in (tmp_path / "out" / "texts.jsonl").read_text().splitlines()]
    assert len(texts) == 9
    for place, record in enumerate(texts):
        own = f" {place}"  # the last word of a user's tweets
        shown = [line for line in json.dumps(record["prompt"]).split("\\n") if "i love" in line]
        assert shown
        assert all(own in line for line in shown)
    store = Plan(override(Config(retrieve=Luf(moves="map")), told)).store.value
    rows = {row for one in observed(fresh_cache) for row in one["rows"]}
    assert rows
    assert all(document.shared for document in store.documents(sorted(rows)))


def test_own_documents_have_labels_where_texts_may_be_shared_and_nobody_elses(
    tweets, tmp_path: Path, fresh_cache: Path
):
    told = {**tweets, "collaboration": "text", "benchmark.passages": "", "generate.method": "none"}
    options = override(Config(retrieve=Luf(moves="map")), told)
    pbr_jax.run(options, tmp_path / "out")
    store = Plan(options).store.value
    for example, line in zip(store.examples(), observed(fresh_cache), strict=True):
        assert {document.user_id for document in store.documents(line["rows"])} == {example.user_id}


# -- bad input ---------------------------------------------------------------------------------------------


def test_bad_input_is_told_in_one_line(squad, tmp_path: Path):
    told = squad()
    for wrong, message in [
        ({"collaboration": "none"}, "retrieve.method luf learns from other users' histories, and coll"),
        ({"stream.size": 7}, r"stream\.size is 7, below a batch of retrieve\.update\.batch_size 8"),
        ({"stream.size": None, "stream.order": "released"}, "luf, which learns from a stream"),
        ({"retrieve.update.accumulate": 2}, r"retrieve\.update\.accumulate is 2, and LUF's loss comp"),
        ({"retrieve.of": (Fused(),)}, r"retrieve\.of has fused, which is made of others itself"),
        ({"retrieve.of": (BM25(),), "retrieve.remarks": "oracle"}, "bm25 of retrieve.of would not"),
    ]:
        with pytest.raises(UserError, match=message) as error:
            Plan(config(luf(), told, **wrong))
        assert "\n" not in str(error.value)


def test_what_only_the_data_tell_is_told_in_one_line(squad, tmp_path: Path):
    bare = squad(passages=False)
    own = tmp_path / "own.jsonl"
    own.write_text('{"id": "1", "text": "tea day 0"}\n')
    for told, changes, message in [
        (bare, {}, "luf learns from labels on shared documents, and this data has none"),
        (squad(), {"benchmark.passages": str(own)}, "kind is gold, and the data name no relevant documents"),
        (squad(), {"encoder.normalize": "no"}, "compares by cosine, and the encoder's vectors are not"),
    ]:
        with pytest.raises(UserError, match=message) as error:
            Plan(config(luf(), told, **changes)).check()
        assert "\n" not in str(error.value)


def test_labels_that_taught_nothing_are_told_in_one_line(squad, tmp_path: Path):
    wrong = config(luf(), squad(), **{"retrieve.labels.keep": 0.0})
    with pytest.raises(UserError, match="gold found no document that holds the answer in any bl") as error:
        pbr_jax.run(wrong, tmp_path / "out")
    assert "\n" not in str(error.value)


@pytest.mark.long
def test_a_block_without_an_answer_leaves_the_state_as_it_is(squad, tmp_path: Path, fresh_cache: Path):
    """Labels of few documents: not every question has its answer among them."""
    told = {**squad(asked=14), "retrieve.labels.kind": "gold", "retrieve.labels.depth": 3}
    one = {"retrieve.update.batch_size": 1, "stream.size": 1}
    pbr_jax.run(override(Config(retrieve=luf()), {**told, **one}), tmp_path / "out")
    known = [1.0 in each["grades"] for each in observed(fresh_cache)]
    assert [luf_state.read(path).questions for path in states(fresh_cache)] == np.cumsum(known)[:-1].tolist()
    assert 0 < sum(known[:-1]) < 13
    without = [i for i in range(1, 13) if not known[i]]
    files = [[file.read_bytes() for file in luf_state.files(path)] for path in states(fresh_cache)]
    assert all(files[i] == files[i - 1] for i in without)
