"""One system for runs, questions and training: what it computes is what a run wrote, joined by id."""

import dataclasses
import json
import sqlite3
import threading
import unittest.mock
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import jax.monitoring
import jaxtyping
import pytest

import pbr_jax
from pbr_jax.base.types import Candidate, Document, Example, UserError
from pbr_jax.config import Config, override
from pbr_jax.corpus import vectors
from pbr_jax.corpus.vectors import digest
from pbr_jax.experiment import opening
from pbr_jax.llm import answers_file
from pbr_jax.llm.engine.jax_backend import JaxLLM
from pbr_jax.methods.generate import Ipa
from pbr_jax.options import Generate
from pbr_jax.pipeline import rank
from pbr_jax.remarks.judge import Script
from pbr_jax.stages.answers import Answers, Likelihoods
from pbr_jax.stages.rankings import Rankings
from pbr_jax.stages.records import Records
from pbr_jax.system import System
from pbr_jax.text.encode import TextEncoder

HISTORIES = {
    "ann": ["i love tea", "tea and cats", "cats about"],
    "bob": ["football that day", "violins"],
    "cyd": [],
}
SYSTEMS = {
    "dense": {},
    "bm25_scored": {"retrieve.method": "bm25", "generate.method": "none", "eval.likelihood": "on"},
    "replug": {"generate.method": "replug"},
    "others": {"collaboration": "text", "neighbours.method": "mean", "neighbours.m": 2, "select.k": 2},
}

pytestmark = pytest.mark.usefixtures("fresh_cache")


@pytest.fixture
def config(tiny_models: dict[str, str], write_tweets: Callable[..., Path]) -> Config:
    root = str(write_tweets(HISTORIES))
    place = {"benchmark.name": "lamp_7", "benchmark.root": root, "benchmark.training": "none", **tiny_models}
    small = {"encoder.max_length": 32, "retrieve.k": 2, "prompt.max_tokens": 400, "llm.batch_size": 4}
    return override(Config(), {**place, **small, "generate.max_new_tokens": 3, "eval.resamples": 20})


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.long
@pytest.mark.parametrize("name", SYSTEMS)
def test_a_system_ranks_answers_and_scores_as_the_run_did(config: Config, tmp_path: Path, name: str):
    config = override(config, SYSTEMS[name])
    records = pbr_jax.run(config, tmp_path / "out").records()
    system = pbr_jax.open(tmp_path / "out")
    examples = list(system.store.examples())
    ranked = system.rank(examples)
    told = [
        [{"id": c.document.id, "user_id": c.document.user_id, "score": c.score} for c in r] for r in ranked
    ]
    assert told == [record["documents"] for record in records]
    scored = system.score(examples, ranked)
    for (prompt, score), record in zip(scored, records, strict=True):
        assert score is not None
        assert -score.mean == record["metrics"]["target_nll"]
        assert prompt.documents == record["prompt_documents"]
    texts = [(a.prompt.messages, a.text) for a in system.answer(examples)]
    kept = lines(tmp_path / "out" / "texts.jsonl")
    assert [prompt for prompt, _ in texts] == [record["prompt"] for record in kept]
    if config.generate.method != "none":
        assert [text for _, text in texts] == [record["answer"] for record in kept]


@pytest.mark.parametrize("kind", [Rankings, Answers, Likelihoods])
def test_records_are_joined_by_id_and_a_wrong_one_is_named(tmp_path: Path, kind: type[Records]):
    examples = [Example(id, "u", "q", "q", None) for id in ("a", 'b "β"', "c")]
    kind.keep(tmp_path, ((e.id, {"value": i}) for i, e in enumerate(examples)))
    found = kind(tmp_path)
    assert [record["value"] for record in found.records(examples[::-1])] == [2, 1, 0]
    with pytest.raises(RuntimeError, match=r"question 'd' is not in .*\.jsonl"):
        list(found.records([*examples, Example("d", "u", "q", "q", None)]))
    with pytest.raises(RuntimeError, match="has question 'c', which is not asked for"):
        list(found.records(examples[:2]))
    with pytest.raises(RuntimeError, match="question 'a' comes twice"):
        list(found.records([*examples, examples[0]]))
    file = tmp_path / kind.file
    file.write_text(file.read_text() + file.read_text().splitlines()[0] + "\n")
    with pytest.raises(RuntimeError, match="question 'a' comes twice"):
        list(kind(tmp_path).records(examples))


def test_a_row_or_a_score_that_is_wrong_is_stopped(config: Config):
    system = pbr_jax.open(config)
    (example, *_) = system.store.examples()
    own = system.store.documents([0])[0]
    for candidate, error, words in (
        (Candidate(own, 1.0, 1), RuntimeError, "is given as row 1, where another stands"),
        (Candidate(own, float("nan"), 0), UserError, "want finite numbers"),
        (Candidate(Document("x", "bob", "x"), 1.0, 0), RuntimeError, "belong to other users"),
    ):
        parts = {name: (lambda tally: lambda examples, *_: [[] for _ in examples])
                 for name in ("expand", "neighbours", "retrieve")}  # fmt: skip
        parts |= {"store": system.store, "select": lambda tally, c=candidate: lambda *_: [[c]]}
        with pytest.raises(error, match=words):
            System(parts).rank([example])


@pytest.fixture
def compiled() -> Iterator[list[str]]:
    """The programs that are compiled, or found compiled on the disk."""
    names: list[str] = []

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)


def test_a_second_question_of_the_same_shape_compiles_nothing_and_a_known_one_decodes_nothing(
    config: Config, tmp_path: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
):
    pbr_jax.run(config, tmp_path / "out")
    system = pbr_jax.open(tmp_path / "out")
    first = system.ask("ann", "what do i love")
    compiled.clear()
    system.ask("ann", "what do i like")
    assert compiled == []
    monkeypatch.setattr(JaxLLM, "generate", lambda *_, **__: pytest.fail("decoded"))
    assert system.ask("ann", "what do i love") == first
    assert compiled == []


def test_a_config_is_opened_without_a_folder(config: Config, tmp_path: Path):
    system = pbr_jax.open(config)
    assert [d.document.user_id for d in system.ask("bob", "violins").documents] == ["bob", "bob"]
    assert list(tmp_path.glob("out*")) == []


RETRIEVERS = {
    "dense": {},
    "bm25": {"retrieve.method": "bm25"},
    "recency": {"retrieve.method": "recency"},
    "random": {"retrieve.method": "random"},
    "pooled": {"retrieve.method": "two_stage", "retrieve.inside": "pooled"},
    "two_stage": {"retrieve.method": "two_stage"},
    "tuned": {"retrieve.method": "tuned", "retrieve.alpha": 0.1, "collaboration": "signals"},
    "cohorts": {"neighbours.method": "cohorts", "neighbours.m": 3, "collaboration": "text"},
    "mean": {"neighbours.method": "mean", "neighbours.m": 3, "collaboration": "text"},
    "others": {
        "neighbours.method": "random",
        "neighbours.m": 9,
        "collaboration": "text",
        "retrieve.method": "bm25",
    },
    "late": {"select.method": "late_interaction"},
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.long) if n == "tuned" else n for n in RETRIEVERS]
)
def test_documents_that_are_added_are_found_and_those_of_the_forgotten_are_not(
    config: Config, tmp_path: Path, write_tweets: Callable[..., Path], name: str
):
    """By the next question, whatever retrieves; a method that cannot says so before anything changes."""
    write_tweets({f"t{i}": [f"i love tea {i}", f"cats {i}", "day"] for i in range(4)}, "train")
    fields = {"retrieve.k": 9, "benchmark.training": "train", "generate.method": "none", **RETRIEVERS[name]}
    fields |= {"eval.likelihood": "off", "feedback.metric": "likelihood"}
    if name == "tuned":
        fields |= {f"{part}.training.{n}": v for part in ("user_encoder", "retrieve")
                   for n, v in {"epochs": 1, "batch_size": 4, "devices": 1}.items()}  # fmt: skip
    system, known = pbr_jax.open(override(config, fields)), Document("new", "ann", "i love violins")
    question = Example("", "ann", "about violins", "about violins", None)

    def found(user: str = "ann") -> set[str]:
        (ranking,) = system.rank([dataclasses.replace(question, user_id=user)])
        return {candidate.document.text for candidate in ranking}

    before = found()
    if name in ("two_stage", "late"):
        with pytest.raises(UserError, match="has vectors of the run's documents alone, so none can be added"):
            system.add("ann", [known])
    else:
        system.add("ann", [known])
        system.add("eve", ["i love cats", "that football"])
        assert found() - {"i love cats", "that football"} == before | {known.text}
        assert {"i love cats", "that football"} <= found("eve")
        system.forget("eve")
        assert found() == before | {known.text}
        with pytest.raises(UserError, match="user 'eve' is not among"):
            system.rank([dataclasses.replace(question, user_id="eve")])
    system.forget("bob")
    assert not found() & set(HISTORIES["bob"])
    with pytest.raises(UserError, match="of user 'ann', and was added to user 'cyd'"):
        system.add("cyd", [known])


def test_a_runs_corpus_lives_beside_its_results_which_stay_as_they_are(config: Config, tmp_path: Path):
    config, out = override(config, {"retrieve.method": "bm25"}), tmp_path / "out"
    results = pbr_jax.run(config, out)
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.stem not in ("llm", "reads")]
    made = {path: path.read_bytes() for path in files}
    system, elsewhere = pbr_jax.open(out), opening._open(out)  # the second as another process has it
    system.add("ann", ["tea about violins"])
    assert "tea about violins" in str(pbr_jax.ask(out, "ann", "violins").documents)
    with pytest.raises(UserError, match="has changed since it was opened; open it again"):
        elsewhere.ask("ann", "violins")
    assert "tea about violins" in str(opening._open(out).ask("ann", "violins").documents)
    assert pbr_jax.run(config, out).values == results.values
    assert {path: path.read_bytes() for path in made} == made
    pbr_jax.run(override(config, {"retrieve.k": 1}), out, overwrite=True)
    assert not (out / "corpus").exists()
    assert "tea about violins" not in str(pbr_jax.ask(out, "ann", "violins"))


def test_several_threads_ask_one_system(config: Config, tmp_path: Path):
    pbr_jax.run(config, tmp_path / "out")
    questions = [(user, f"about {word}") for user in HISTORIES for word in ("tea", "cats")]
    alone = [pbr_jax.ask(tmp_path / "out", *question) for question in questions]
    opening._opened.clear()
    system, found = pbr_jax.open(tmp_path / "out"), {}

    def ask(place: int) -> None:
        found[place] = system.ask(*questions[place])

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(len(questions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[place] for place in range(len(questions))] == alone


def test_an_added_document_is_encoded_alone_and_a_shared_one_is_for_all(
    config: Config, monkeypatch: pytest.MonkeyPatch
):
    system, encoded, encode = pbr_jax.open(override(config, {"retrieve.k": 9})), [], TextEncoder.encode

    def counted(self: TextEncoder, texts: Any, *, role: Any = "document") -> Any:
        encoded.extend(texts if role == "document" else [])
        return encode(self, texts, role=role)

    questions = [Example("", user, "tea", "tea", None) for user in HISTORIES]
    monkeypatch.setattr(TextEncoder, "encode", counted)  # first: who changes the encoder has other vectors
    system.rank(questions)
    encoded.clear()
    system.add("ann", ["violins and tea"])
    assert "violins and tea" in str(system.rank(questions)[0])
    system.add_shared(["tea for all"])
    assert all("tea for all" in str(ranking) for ranking in system.rank(questions))
    assert encoded == ["violins and tea", "tea for all"]


def test_a_forgotten_users_vectors_are_overwritten(config: Config, tmp_path: Path):
    system = pbr_jax.open(override(config, {"generate.method": "none", "eval.likelihood": "off"}))
    system.add("eve", ["a canary about violins"])
    system.rank([Example("", "eve", "violins", "violins", None)])

    def kept() -> bool:
        files = [file for file in (tmp_path / "cache" / "vectors").rglob("*") if file.is_file()]
        return any(digest("a canary about violins") in file.read_bytes() for file in files)

    assert kept()
    system.forget("eve")
    assert not kept()


@pytest.mark.parametrize("remarks", [False, True])
def test_what_is_encoded_while_a_user_is_forgotten_is_erased_too(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remarks: bool
):
    """By another process, which sees the documents until the vectors are erased."""
    config = override(config, {"generate.method": "none", "eval.likelihood": "off"})
    pbr_jax.run(config, tmp_path / "out")
    system, erase, turns = pbr_jax.open(tmp_path / "out"), vectors.erase, iter([True])
    system.add("eve", ["a canary about violins"])
    if remarks:
        system.observe("eve", "i love cats", judge=Script([]))
    elsewhere = opening._open(tmp_path / "out")

    def ask() -> None:
        elsewhere.rank([Example("", "eve", "violins", "violins", None)])

    def erased(texts: Any) -> int:
        number = erase(texts)
        if next(turns, False):
            ask()
            assert kept()
        return number

    def kept() -> bool:
        files = [file for file in (tmp_path / "cache" / "vectors").rglob("*") if file.is_file()]
        return any(digest("a canary about violins") in file.read_bytes() for file in files)

    ask()
    monkeypatch.setattr(vectors, "erase", erased)
    system.forget("eve")
    assert not kept()


ASKED = {
    "ipa": {},
    "replug": {"generate.method": "replug"},
    "pointwise": {"select.method": "pointwise"},  # asks for its ranking
    "hyde": {"expand.method": "hyde"},
    "text of all": {"collaboration": "text", "neighbours.method": "random", "neighbours.m": 9},
}


def cached() -> set[str]:
    """The keys of all cached answers."""
    with sqlite3.connect(answers_file.location()) as connection:
        return {key for (key,) in connection.execute("SELECT key FROM answers")}


@pytest.mark.parametrize("remarks", [False, True])
@pytest.mark.parametrize("name", ASKED)
def test_a_forgotten_users_answers_are_erased_and_no_others(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, remarks: bool
):
    """Also those that another process makes while the user is forgotten."""
    pbr_jax.run(override(config, {"retrieve.method": "bm25", **ASKED[name]}), tmp_path / "out")
    system, erase, turns = pbr_jax.open(tmp_path / "out"), vectors.erase, iter([True])
    if remarks:
        system.observe("ann", "i love cats", judge=Script([]))
    system.add("eve", ["i love violins", "violins about football"])
    elsewhere, before = opening._open(tmp_path / "out"), cached()
    system.ask("bob", "what about tea")
    others = cached()
    assert others > before
    system.ask("eve", "what about violins")
    asked = cached()
    assert asked > others

    def erased(texts: Any) -> int:
        number = erase(texts)
        if next(turns, False):
            elsewhere.ask("eve", "what about football")
            assert cached() > asked
        return number

    monkeypatch.setattr(vectors, "erase", erased)
    system.forget("eve")
    assert cached() == (before if name == "text of all" else others)


@pytest.mark.parametrize("spelling", ["Zoe\u0308", "\ufeffZo\xeb", " Zo\xeb\u200b", "Zo\xeb\n"])
def test_a_user_is_one_in_every_spelling(config: Config, spelling: str):
    """Whoever is added, asks and is forgotten; and a name that the data has is taken as it is."""
    system = pbr_jax.open(override(config, {"retrieve.method": "bm25"}))
    system.add("Zo\xeb", ["i love tea"])
    added = system.add(spelling, [Document("other", spelling, "i love cats")])
    assert [document.user_id for document in added] == ["Zo\xeb"]
    reply = system.ask(spelling, "what do i love")
    assert {candidate.document.text for candidate in reply.documents} == {"i love tea", "i love cats"}
    system.forget(spelling)
    assert system.ask("Zo\xeb", "what do i love").note.startswith("the user is not known")
    for call in (system.forget, lambda name: system.ask(name, "what"), lambda name: system.add(name, ["x"])):
        with pytest.raises(UserError, match="want a name with visible characters"):
            call("\u200b")


ANN = Example("", "ann", "tea", "tea", None)
OF_ANN = Document("new", "ann", "tea")
HALF = "half a \ud83d"
NOTHING: Any = None
WRONG: list[tuple[Callable[[Any], object], str]] = [
    (lambda s: s.add(None, ["tea"]), "user is None, want a text"),
    (lambda s: s.add("", ["tea"]), "to show documents to all users use add_shared"),
    (lambda s: s.add(7, ["tea"]), "user is 7, want a text"),
    (lambda s: s.add("ann", "tea"), "documents is a text, want a list of texts or Documents"),
    (lambda s: s.add("ann", OF_ANN), "documents is of type Document, want a list"),
    (lambda s: s.add("ann", ["tea", 5]), r"documents\[1\] is 5, want a text"),
    (lambda s: s.add_shared([" "]), r"documents\[0\] is ' ', want a text that is not blank"),
    (lambda s: s.add("ann", [HALF]), r"documents\[0\] holds half of a surrogate pair"),
    (
        lambda s: s.add("ann", [dataclasses.replace(OF_ANN, text=b"tea")]),
        r"the text of documents\[0\] is b'tea', want a text",
    ),
    (lambda s: s.add("ann", [Document("", "ann", "tea")]), r"the id of documents\[0\] is ''"),
    (
        lambda s: s.add("ann", [Document("a", "ann", "tea", {"title": HALF})]),
        r"'title' in the fields of documents\[0\] holds half",
    ),
    (lambda s: s.add_shared([OF_ANN]), "was added to the shared documents"),
    (
        lambda s: s.add_shared([Document("a", "", "tea")]),
        "is of user '', and was added to the shared documents",
    ),
    (lambda s: s.store.append([Document("a", NOTHING, "tea", shared=True)]), "has user_id None"),
    (lambda s: s.forget(""), "user is '', want a text"),
    (lambda s: s.store.forget(""), "nobody owns shared documents"),
    (lambda s: s.rank(ANN), "examples is of type Example, want a list of Examples"),
    (lambda s: s.score(["tea"]), r"examples\[0\] is 'tea', want an Example"),
    (lambda s: s.answer([ANN, dataclasses.replace(ANN, user_id="")]), r"the user_id of examples\[1\] is ''"),
    (lambda s: s.answer([ANN], []), "found 0 rankings for 1 examples, want one for each"),
    (lambda s: s.ask("ann", None), "query is None, want a text"),
    (lambda s: s.ask("ann", " \n"), "query is .*, want a text that is not blank"),
    (lambda s: pbr_jax.open(NOTHING), "give a run's folder or a Config"),
    (lambda s: pbr_jax.open("nowhere"), "no run folder at nowhere; give a run's folder"),
]


def test_what_a_caller_gives_by_mistake_is_one_clear_error_and_changes_nothing(
    config: Config, monkeypatch: pytest.MonkeyPatch
):
    """As users meet it: without the type checks of these tests."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    system = pbr_jax.open(override(config, {"retrieve.method": "bm25"}))
    system.add_shared(["tea for all"])
    before = system.store.content
    for call, words in WRONG:
        with pytest.raises(UserError, match=words):
            call(system)
    assert system.store.content == before


@pytest.mark.parametrize("method", ["bm25", "dense", "recency", "random", "two_stage"])
def test_no_questions_have_no_answers_and_a_generator_is_a_list(config: Config, method: str):
    system = pbr_jax.open(override(config, {"retrieve.method": method}))
    assert system.neighbours([]) == system.rank([]) == system.answer([]) == system.score([]) == []
    examples = list(system.store.examples())
    assert system.rank(example for example in examples) == system.rank(examples)


def test_an_error_of_opening_names_the_runs_of_a_folder_and_what_has_changed(config: Config, tmp_path: Path):
    small = {"generate.method": "none", "eval.likelihood": "off", "benchmark.training": "none"}
    pbr_jax.run(override(config, {"retrieve.method": "bm25", **small}), tmp_path / "runs" / "out")
    with pytest.raises(UserError, match=r"holds several runs, want one of them; give .*out"):
        pbr_jax.open(tmp_path / "runs")
    system = pbr_jax.open(tmp_path / "runs" / "out")
    file = next((tmp_path / "tweets").glob("*questions*"))
    file.write_bytes(file.read_bytes() + b"\n")
    with pytest.raises(UserError, match=rf"open it again \(changed or gone: {file}\)"):
        system.rank([ANN])
    (tmp_path / "runs" / "out" / "config.json").unlink()
    with pytest.raises(UserError, match=r"changed or gone: \S*config\.json, "):
        system.rank([ANN])


def test_the_gate_stands_before_every_prompt(config: Config):
    """Also where a ranking is another user's, and where a method shows another document under an own row."""
    system = pbr_jax.open(override(config, {"retrieve.method": "bm25"}))
    ann, bob = (Example("", user, "tea", "tea", "x") for user in ("ann", "bob"))
    rankings = system.rank([ann, bob])
    for method in (system.answer, system.score):
        with pytest.raises(RuntimeError, match="belong to other users"):
            method([ann, bob], rankings[::-1])
    candidate = rankings[0][0]
    forged = dataclasses.replace(candidate.document, text=rankings[1][0].document.text)
    for wrong in ({"document": forged}, {"row": rankings[1][0].row}):
        with pytest.raises(RuntimeError, match="where another stands"):
            system.answer([ann], [[dataclasses.replace(candidate, **wrong)]])
    select = unittest.mock.Mock()  # which may ask a language model
    pipeline = system.pipeline._replace(retrieve=lambda *_: rankings[::-1], select=select)
    with pytest.raises(RuntimeError, match="belong to other users"):
        rank(pipeline, [ann, bob], "none")
    select.assert_not_called()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Foraging(Generate):
    """Answers from what it looks up by itself."""

    method: Literal["foraging"] = "foraging"

    def needs(self, run):
        return {**Ipa().needs(run), "store": run.data}

    def slot(self, tally, *, store, **values):
        answer, rows = Ipa().slot(tally, **values), store.history("bob")[:1]
        (found,) = (Candidate(one, 1.0, int(row)) for one, row in zip(store.documents(rows), rows))
        return lambda examples, rankings, write, **more: answer(
            examples, [[found] for _ in examples], write, **more
        )


def test_the_gate_of_a_run_stands_before_what_its_answers_are_made_from(config: Config, tmp_path: Path):
    config = dataclasses.replace(override(config, {"retrieve.method": "bm25"}), generate=Foraging())
    with pytest.raises(RuntimeError, match="belong to other users"):
        pbr_jax.run(config, tmp_path / "out")
