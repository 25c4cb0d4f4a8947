"""Whole runs on small made-up data with the real default models: files, resuming, privacy, odd users."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pbr_jax import Config, ask, run
from pbr_jax.base.files import cache_folder
from pbr_jax.base.types import UserError
from pbr_jax.config import override
from pbr_jax.eval.report import report
from pbr_jax.experiment.plan import Plan
from pbr_jax.llm.engine.jax_backend import JaxLLM
from pbr_jax.stages import language_model
from pbr_jax.stages.answers import documents_in_prompt
from pbr_jax.text.prompts import CLOSE, OPEN

pytestmark = pytest.mark.usefixtures("weights")

SYSTEMS = ("none", "random", "recency", "bm25", "dense")
SMALL = {"llm.batch_size": 4, "generate.max_new_tokens": 4, "prompt.max_tokens": 96, "eval.resamples": 50}
SMALL |= {"eval.likelihood": "off"}
HISTORIES = {
    "ann": ["the cat sat on my new red sofa", "cats are better than dogs", "i love my cat"],
    "bob": ["football tonight with the boys", "what a goal that was"],
    "cyd": ["just one tweet about tea"],
    "dan": [],
    "eve": [f"day {i} of learning the violin, still awful" for i in range(9)],
}


@pytest.fixture
def tweets(write_tweets) -> Path:
    return write_tweets(HISTORIES)


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "cache"))


def config(root: Path, models: Mapping[str, str] = {}, /, **fields: object) -> Config:
    """With the embedded models, or with these."""
    place = {"benchmark.name": "lamp_7", "benchmark.root": str(root), "retrieve.k": 2}
    return override(Config(), {**place, **SMALL, **models, **fields})


def written(config: Config) -> list[Any]:
    """The prompt of every example; nothing is answered."""
    plan = Plan(config)
    store, k = plan.data.value, documents_in_prompt(plan.run)
    rankings = [ranking[:k] for ranking in plan.ranked.value.read(store, store.examples())]
    return [p.messages for p in language_model.writer(plan.run).value(list(store.examples()), rankings)]


def test_a_run_writes_what_the_design_promises(tweets: Path, tmp_path: Path):
    results = run(config(tweets, **{"eval.likelihood": "auto"}), tmp_path / "out")
    values = json.loads((tmp_path / "out" / "results.json").read_text())
    assert values == results.values
    assert (values["system"], values["benchmark"], values["split"]) == ("dense", "lamp_7", "dev")
    assert (values["n"], values["dropped"], values["counts"]["empty_profiles"]) == (5, 0, 1)
    assert set(values["metrics"]) == set(values["intervals"]) == {
        "rouge1", "rougeL", "meteor", "target_nll", "target_bpb",
    }  # fmt: skip
    assert all(low <= values["metrics"][m] <= high for m, (low, high) in values["intervals"].items())
    stages = {"data", "embed", "rank", "generate", "likelihood", "evaluate"}
    assert set(values["seconds"]) == {*stages, "generate_llm"}
    assert set(values["fingerprint"]) == {
        "config", "run", "evaluation", "data", "task", "commit", "versions", "stages",
    }  # fmt: skip
    assert values["fingerprint"]["stages"] == {}  # this process made all
    assert set(values["files"]) == {"run.json", "config.json", "predictions.jsonl", "texts.jsonl"}
    assert set(values["keys"]) == {"data", "embed", "rank", "generate", "likelihood"}
    lines = results.records()
    assert [record["id"] for record in lines] == list(HISTORIES)
    for record in lines:
        assert set(record) == {
            "id", "user_id", "history", "prediction", "target", "near_target", "prompt_tokens",
            "prompt_documents", "documents", "metrics", "copied",
        }  # fmt: skip
        assert set(record["copied"]) == {"question", "documents", "target_question", "target_documents"}
        assert record["history"] == len(HISTORIES[record["user_id"]])
        assert len(record["documents"]) == min(2, record["history"])
        assert record["prompt_tokens"] > 10
        assert 0 <= record["prompt_documents"] <= len(record["documents"])
    assert any(record["prediction"] for record in lines)
    shares = [record["copied"]["target_question"] for record in lines]
    assert values["copied"]["target_question"] == pytest.approx(sum(shares) / len(shares))
    assert json.loads((tmp_path / "out" / "config.json").read_text())["retrieve"]["k"] == 2
    events = [json.loads(event) for event in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    assert [event["stage"] for event in events if event["event"] == "made"] == [
        "data", "embed", "rank", "generate", "likelihood",
    ]  # fmt: skip


@pytest.mark.long
def test_the_same_run_again_does_no_work_and_a_new_folder_only_evaluates(tweets: Path, tmp_path: Path):
    first = run(config(tweets), tmp_path / "out")
    times = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    again = run(config(tweets), tmp_path / "out")
    assert again.values == first.values
    assert times == {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    other = run(config(tweets), tmp_path / "other")
    assert other.records() == first.records()
    log = (tmp_path / "other" / "log.jsonl").read_text()
    assert '"made"' not in log
    assert log.count('"found"') == 3  # data, rank and generate: nothing else is looked at


def refuse(self: Any, *_: Any, **__: Any) -> None:
    raise AssertionError("the language model was called")


@pytest.mark.long
def test_answers_outlive_their_artefacts_and_are_not_asked_for_again(
    tweets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A stage that is made anew finds every answer in the cache; a new question is one call."""
    first = run(config(tweets), tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr(JaxLLM, "generate", refuse)
        shutil.rmtree(cache_folder() / "generate")
        again = run(config(tweets), tmp_path / "again")
        assert again.records() == first.records()
        assert run(config(tweets, **{"generate.top_p": 0.5}), tmp_path / "p").metrics == first.metrics
        with pytest.raises(UserError, match=r"5 of 5 answers are not in .*llm\.sqlite"):
            run(config(tweets, **{"generate.max_new_tokens": 5, "llm.offline": True}), tmp_path / "offline")
        with pytest.raises(AssertionError, match="was called"):
            run(config(tweets, **{"generate.max_new_tokens": 5}), tmp_path / "longer")
    assert run(config(tweets, **{"llm.offline": True}), tmp_path / "offline").metrics == first.metrics


@pytest.mark.long
def test_changed_data_or_config_is_computed_anew(tweets: Path, tmp_path: Path, write_tweets):
    first = run(config(tweets, **{"generate.method": "none"}), tmp_path / "out")
    before = (tmp_path / "out" / "predictions.jsonl").read_bytes()
    three = config(tweets, **{"generate.method": "none", "retrieve.k": 3})
    with pytest.raises(UserError, match=r"holds another run, which differs in retrieve.k \(2, now 3\)"):
        run(three, tmp_path / "out")
    assert (tmp_path / "out" / "predictions.jsonl").read_bytes() == before
    lexical = config(tweets, **{"generate.method": "none", "retrieve.method": "bm25"})
    with pytest.raises(UserError, match=r"retrieve.method \('dense', now 'bm25'\); choose"):
        run(lexical, tmp_path / "out")  # the options of either method alone are not listed
    more = run(three, tmp_path / "out", overwrite=True)
    assert len(more.records()[0]["documents"]) == 3
    write_tweets({**HISTORIES, "dan": ["not so quiet any more"]})
    with pytest.raises(UserError, match="differs in the content of files"):
        run(three, tmp_path / "out")
    changed = run(three, tmp_path / "new")
    assert [len(r["documents"]) for r in changed.records()] == [3, 2, 1, 1, 3]
    assert changed.values["fingerprint"]["data"] != first.values["fingerprint"]["data"]


@pytest.mark.long
def test_what_the_model_saw_is_kept_for_its_owner_unless_told_otherwise(
    tiny_models, tweets: Path, tmp_path: Path
):
    seen = config(tweets, tiny_models, **{"prompt.max_tokens": 900})
    run(seen, tmp_path / "out")
    records = [json.loads(line) for line in (tmp_path / "out" / "texts.jsonl").read_text().splitlines()]
    assert [record["id"] for record in records] == list(HISTORIES)
    for record, prediction in zip(records, run(seen, tmp_path / "out").records(), strict=True):
        assert [d["text"] for d in record["documents"]]  == [
            text for d in prediction["documents"] for text in HISTORIES[record["id"]]
            if d["id"] == f"{record['id']}-{HISTORIES[record['id']].index(text)}"
        ]  # fmt: skip
        shown = record["prompt"][-1]["content"]
        history = shown[shown.index(OPEN) : shown.index(CLOSE)] if OPEN in shown else ""
        stood = [d for d in record["documents"] if d["text"][:12] in history]
        assert len(stood) == prediction["prompt_documents"]
        assert record["query"]
    for file in (tmp_path / "out").iterdir():
        assert file.stat().st_mode & 0o077 == 0, file
    assert (tmp_path / "out").stat().st_mode & 0o077 == 0
    off = override(seen, {"keep_texts": False})
    before = run(seen, tmp_path / "out").records()
    without = run(off, tmp_path / "out").records()  # the same run: its texts go
    assert not (tmp_path / "out" / "texts.jsonl").exists()
    assert without == [{**record, "prediction": None, "target": None} for record in before]
    assert run(seen, tmp_path / "out").records() == before
    assert (tmp_path / "out" / "texts.jsonl").exists()


@pytest.mark.long
def test_without_texts_no_word_of_a_user_is_in_the_folder_and_what_the_cache_holds_is_told(
    tiny_models, write_tweets, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    """Questions, documents and targets have canaries; the model's answers are looked for as they are."""
    root = write_tweets({f"u{i}": [f"CANARYdocument{i} tea", f"CANARYquestion{i} cats"] for i in range(4)})
    golds = json.loads((root / "dev_outputs.json").read_text())
    golds["golds"] = [{"id": f"u{i}", "output": f"CANARYtarget{i} violins"} for i in range(4)]
    (root / "dev_outputs.json").write_text(json.dumps(golds))
    fields = {"prompt.max_tokens": 900, "eval.likelihood": "auto", "keep_texts": False}
    off = config(root, tiny_models, **fields)
    out = tmp_path / "out"
    results = run(off, out)
    kept = run(override(off, {"keep_texts": True}), tmp_path / "kept").records()
    words = [b"CANARY", *(record["prediction"].strip().encode() for record in kept)]
    assert len(set(words)) > 1
    for file in out.iterdir():
        assert not [word for word in words if word and word in file.read_bytes()], file
    assert [record["metrics"] for record in results.records()] == [r["metrics"] for r in kept]
    (note,) = [note for note in results.values["notes"] if "keep_texts off" in note]
    assert "stages data, embed, rank, generate, likelihood" in note
    assert "llm.sqlite" in note
    assert note in capfd.readouterr().err
    assert b"CANARY" in b"".join(file.read_bytes() for file in cache_folder().rglob("*") if file.is_file())
    text = report([out, tmp_path / "kept"])
    assert "With keep_texts off the run's folder holds no question" in text
    assert "not comparable" not in text
    assert ask(out, "u1", "tea").documents  # from the data itself


@pytest.mark.long
def test_canaries_never_reach_another_users_prompt(tiny_models, write_tweets, tmp_path: Path):
    """In all systems, with one shared cache, histories that share most of their words."""
    histories = {
        f"u{i}": [f"CANARY{i}x{j} we all like the same tea and cats" for j in range(i % 4)] for i in range(12)
    }
    root = write_tweets(histories)
    for method in SYSTEMS:
        for k in (1, 5):
            fields = {"retrieve.method": method, "retrieve.k": k, "prompt.max_tokens": 900}
            prompts = written(config(root, tiny_models, **fields))
            assert len(prompts) == 12
            for user, prompt in zip(histories, prompts, strict=True):
                text = json.dumps(prompt)
                own = sum(tweet.split()[0] in text for tweet in histories[user])
                assert own >= (0 if method == "none" else min(k, len(histories[user])))
                for other in set(histories) - {user}:
                    assert f"CANARY{other[1:]}x" not in text
    out = run(config(root, tiny_models, **{"retrieve.method": "dense"}), tmp_path / "out")
    for record in out.records():
        foreign = json.dumps([record["prediction"], record["documents"]])
        assert not any(f"CANARY{u[1:]}x" in foreign for u in set(histories) - {record["user_id"]})


@pytest.mark.long
def test_a_users_documents_reach_nobody_through_a_cache_of_equal_questions(
    tiny_models, write_tweets, tmp_path: Path
):
    """Two users ask word for word the same; the one without a history gets nothing of the other."""
    root = write_tweets({"has": ["SECRET tea"], "has-not": []})
    questions = json.loads((root / "dev_questions.json").read_text())
    questions[1]["input"] = questions[0]["input"] = "Paraphrase the following tweet: tea"
    (root / "dev_questions.json").write_text(json.dumps(questions))
    equal = config(root, tiny_models, **{"prompt.max_tokens": 900})
    prompts = written(equal)
    assert "SECRET" in json.dumps(prompts[0])
    assert "SECRET" not in json.dumps(prompts[1])
    lines = run(equal, tmp_path / "out").records()
    assert [len(record["documents"]) for record in lines] == [1, 0]


def test_ask_answers_one_user_from_the_own_history(tiny_models, tweets: Path, tmp_path: Path):
    run(config(tweets, tiny_models, **{"prompt.max_tokens": 900}), tmp_path / "out")
    answer = ask(tmp_path / "out", "ann", "a tweet about my cat")
    assert len(answer.documents) == 2
    assert {c.document.user_id for c in answer.documents} == {"ann"}
    assert ask(tmp_path / "out", "dan", "a tweet about my cat").documents == []
    assert (
        ask(tmp_path / "out", "zoe", "anything").note == "the user is not known, and no documents are shown"
    )
    with pytest.raises(UserError, match=r"holds several runs, want one of them; give .*out"):
        ask(tmp_path, "ann", "anything")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"has no results\.json, so it is no finished run"):
        ask(tmp_path / "empty", "ann", "anything")


def test_only_generation_depends_on_the_llm_and_only_dense_on_the_encoder(tweets: Path, tmp_path: Path):
    base = Plan(config(tweets))
    tokens = Plan(config(tweets, **{"prompt.max_tokens": 64}))
    prefix = Plan(config(tweets, **{"encoder.query_prefix": "query: "}))
    sparse = [
        Plan(config(tweets, **{"retrieve.method": "bm25", "encoder.query_prefix": p})) for p in ("", "q: ")
    ]
    assert base.ranked.key == tokens.ranked.key != prefix.ranked.key
    assert base.last.key != tokens.last.key
    assert sparse[0].ranked.key == sparse[1].ranked.key
    made = {path.name for path in cache_folder().iterdir() if path.is_dir()}
    assert made == {"data"}  # others are keyed by its content


def test_retrieval_benchmarks_rank_ten_whatever_k_is(tmp_path: Path):
    sessions = [[{"role": "user", "content": f"talk number {i}", "has_answer": i == 3}] for i in range(14)]
    ids = [f"answer_{i}" if i == 3 else f"s{i}" for i in range(14)]
    item = {
        "question_id": "q1", "question_type": "single-session-user", "question": "which talk is number 3?",
        "answer": "3", "question_date": "2023/05/30 (Tue) 23:40", "haystack_session_ids": ids,
        "haystack_dates": ["2023/05/20 (Sat) 02:21"] * 14, "haystack_sessions": sessions,
        "answer_session_ids": ["answer_3"],
    }  # fmt: skip
    (tmp_path / "mine.json").write_text(json.dumps([item]))
    fields = {"benchmark.name": "longmemeval", "benchmark.root": str(tmp_path), "benchmark.split": "mine"}
    results = run(override(Config(), {**fields, "retrieve.k": 2}), tmp_path / "out")
    assert len(results.records()[0]["documents"]) == 10
    assert results.records()[0]["prediction"] == ""
    assert "generate" not in results.values["seconds"]
    assert results.metrics["recall@10"] == 1.0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "an older version wrote it"),
        ("{", "Expecting property name"),
        ("[" * 100_000, "nested more than 100 deep"),
        ('{"retrieve":' * 90 + "1" + "}" * 90, "unknown config field"),
        ('{"retrieve": {"from": {"file": 3}}}', "retrieve.from is"),
    ],
)
def test_a_config_that_no_run_wrote_is_told_in_one_line(
    text: str | None, told: str, tmp_path: Path, reseal: Callable[[Path], None]
):
    path = tmp_path / "config.json"
    (tmp_path / "results.json").write_text("{}")
    path.mkdir() if text is None else path.write_text(text)
    if text is not None:
        reseal(tmp_path)
    with pytest.raises(UserError, match=told) as caught:
        ask(tmp_path, "ann", "anything")
    assert str(caught.value).startswith(f"{tmp_path}/")
    assert len(str(caught.value)) < 500


@pytest.mark.long
def test_sampled_answers_have_a_seed_apart_from_that_of_everything_else(tiny_models, tweets: Path, tmp_path):
    """A prompt keeps its answer whatever else the seed draws; without `generate.seed` it follows the seed."""

    def answers(name: str, **fields: object) -> list[str]:
        sampled = {"generate.temperature": 1.5, "retrieve.method": "bm25", "generate.max_new_tokens": 8}
        found = run(config(tweets, tiny_models, **sampled, **fields), tmp_path / name)
        return [record["prediction"] for record in found.records()]

    own: dict[str, object] = {"generate.seed": 7}
    assert answers("a", seed=0, **own) == answers("b", seed=1, **own) == answers("c", seed=7)
    assert answers("d", seed=0, **own) != answers("e", seed=0)
    assert answers("e", seed=0) != answers("f", seed=1)


@pytest.mark.parametrize("method", ["ipa", "replug", "ic_ralm"])
def test_a_decoding_seed_moves_answers_alone(method: str, tiny_models, tweets: Path):
    """And nothing where nothing is drawn but the key that names it; whatever the method of answering."""

    def keys(**fields: object) -> tuple[str, str]:
        drawn = {"retrieve.method": "random", "generate.method": method, "generate.temperature": 0.7}
        plan = Plan(config(tweets, tiny_models, **{**drawn, **fields}))
        assert plan.answered is not None
        return plan.ranked.key, plan.answered.needs["generate"].needs["seed"].key

    both: dict[str, object] = {"generate.seed": 3}
    assert keys(**both) == (keys()[0], keys(seed=3)[1])
    assert keys(**both)[1] == keys(seed=1, **both)[1] != keys()[1]
    assert keys(seed=1, **both)[0] != keys(**both)[0]
    greedy: dict[str, object] = {"generate.temperature": 0.0}
    assert keys(**greedy)[1] == keys(**greedy, **both)[1] == keys(seed=5, **greedy)[1]


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_decoding_seed_is_a_number_that_generators_take(seed: int, tweets: Path):
    with pytest.raises(UserError, match=rf"generate\.seed is {seed}, want a number from 0 to"):
        config(tweets, **{"generate.seed": seed})
