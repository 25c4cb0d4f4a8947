"""Retrieval slots: who is ranked, in which order, and what they refuse."""

import inspect
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import rank_bm25
from hashed_texts import Hashed, vector

from pbr_jax.base.types import Candidate, Document, Example
from pbr_jax.corpus.store import Store, build
from pbr_jax.methods import expand, neighbours, retrieve, select
from pbr_jax.options import Retrieve
from pbr_jax.pipeline import Neighbour, Pipeline, Query, Ranking, RetrieveSlot, Tally, rank
from pbr_jax.text.speakers import Names

METHODS = ("random", "recency", "bm25", "bm25_lamp", "dense")


class World(NamedTuple):
    store: Store
    encoder: Hashed
    embeddings: np.ndarray

    def slot(self, method: Retrieve, seed: int = 0) -> RetrieveSlot:
        """The slot of a method, given what it asks for."""
        asked = inspect.signature(method.slot).parameters
        there = {**self._asdict(), "seed": seed}
        return method.slot(Tally(), **{name: there[name] for name in asked if name in there})


def chosen(method: str, k: int) -> Retrieve:
    kinds = {"none": retrieve.Nothing, "random": retrieve.Random, "recency": retrieve.Recency,
             "bm25": retrieve.BM25, "bm25_lamp": retrieve.BM25Lamp, "dense": retrieve.Dense}  # fmt: skip
    return kinds[method](k=k)


def resources(folder: Path, examples: list[Example]) -> World:
    build(folder / "store.sqlite", examples)
    store = Store(folder / "store.sqlite")
    embeddings = np.stack([vector(text) for _, text in store.texts()] or [np.zeros(8, np.float32)])
    return World(store, Hashed(), embeddings)


def history(user: str, count: int, dated: bool = True) -> tuple[Document, ...]:
    """Documents whose dates run against the order of the list."""
    return tuple(
        Document(
            f"{user}{i}", user, f"{user} likes thing{i} and word{i % 3}", {}, 100.0 - i if dated else None
        )
        for i in range(count)
    )


def ask(user: str, profile: tuple[Document, ...]) -> Example:
    return Example(f"q-{user}", user, "word1 thing4", "in", "t", profile, time=1000.0)


def ranked(method: str, world: World, examples: list[Example], depth: int, seed: int = 0) -> list[Ranking]:
    tally = Tally()
    pipeline = Pipeline(
        expand.Nothing().slot(tally),
        neighbours.Self().slot(tally),
        world.slot(chosen(method, depth), seed),
        select.TopK().slot(tally),
    )
    return rank(pipeline, examples, "none")


@pytest.fixture
def examples() -> list[Example]:
    return [ask("a", history("a", 9)), ask("b", history("b", 2)), ask("c", ()), ask("d", history("d", 1))]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_ranks_only_the_own_history_and_copes_with_short_ones(
    tmp_path: Path, examples, method: str
):
    found = ranked(method, resources(tmp_path, examples), examples, depth=4)
    assert [len(ranking) for ranking in found] == [4, 2, 0, 1]
    for example, ranking in zip(examples, found, strict=True):
        assert all(c.document in example.profile for c in ranking)
        assert len({c.document.id for c in ranking}) == len(ranking)
        assert [c.score for c in ranking] == sorted((c.score for c in ranking), reverse=True)


def test_zero_shot_retrieves_nothing(tmp_path: Path, examples):
    assert ranked("none", resources(tmp_path, examples), examples, depth=4) == [[], [], [], []]


def test_recency_is_newest_first_and_the_profiles_end_where_undated(tmp_path: Path):
    mixed = (*history("b", 2, dated=False), *history("b", 4)[2:])
    asked = [ask("a", history("a", 5)), ask("b", mixed), ask("c", history("c", 3, dated=False))]
    found = ranked("recency", resources(tmp_path, asked), asked, depth=3)
    assert [[c.document.id for c in ranking] for ranking in found] == [
        ["a0", "a1", "a2"], ["b2", "b3", "b1"], ["c2", "c1", "c0"],
    ]  # fmt: skip


def test_bm25_ignores_case_and_punctuation_and_lamps_does_not(tmp_path: Path):
    texts = ("i like Tea, really", "so it was", "tea is here", "no", "never")
    documents = tuple(Document(f"a{i}", "a", text, time=1.0) for i, text in enumerate(texts))
    asked = [Example("q", "a", "Tea, today?", "in", "t", documents, time=2.0)]
    world = resources(tmp_path, asked)
    found = {method: ranked(method, world, asked, depth=5)[0] for method in ("bm25", "bm25_lamp")}
    assert {c.document.id for c in found["bm25"] if c.score > 0} == {"a0", "a2"}
    assert {c.document.id for c in found["bm25_lamp"] if c.score > 0} == {"a0"}


def test_lamps_bm25_ranks_as_rank_bm25_does(tmp_path: Path):
    """To the order of equal scores, on texts of every length with repeated words in any case."""
    draw = np.random.default_rng(3)
    vocabulary = np.array([f"{w}{end}" for w in ("tea", "Tea", "cup", "red", "So") for end in ("", ",", "s")])
    texts = [" ".join(draw.choice(vocabulary, draw.integers(1, 12))) for _ in range(60)]
    documents = tuple(Document(f"a{i}", "a", text, time=1.0) for i, text in enumerate(texts))
    asked = [Example(f"q{i}", "a", text, "in", "t", documents, time=2.0) for i, text in enumerate(texts[:9])]
    found = ranked("bm25_lamp", resources(tmp_path, asked), asked, depth=60)
    theirs = rank_bm25.BM25Okapi([text.split() for text in texts])
    for example, ranking in zip(asked, found, strict=True):
        scores = theirs.get_scores(example.query.split())
        np.testing.assert_allclose([c.score for c in ranking], -np.sort(-scores), rtol=1e-9)
        np.testing.assert_allclose([scores[c.row] for c in ranking], [c.score for c in ranking], rtol=1e-9)


def test_random_depends_on_seed_and_example_not_on_company(tmp_path: Path, examples):
    world = resources(tmp_path, examples)
    first = ranked("random", world, examples, depth=9)
    alone = ranked("random", world, examples[:1], depth=9)
    other = ranked("random", world, examples, depth=9, seed=1)
    assert first[0] == alone[0] != other[0]
    assert first[0] != ranked("recency", world, examples, depth=9)[0]


def test_random_is_uniform_over_the_history(tmp_path: Path):
    profile = history("a", 4)
    asked = [Example(str(i), "a", "q", "in", "t", profile) for i in range(2000)]
    first = [r[0].document.id for r in ranked("random", resources(tmp_path, asked), asked, depth=1)]
    counts = np.array([first.count(d.id) for d in profile])
    assert ((counts - 500) ** 2 / 500).sum() < 16.27  # chi-square, 3 degrees of freedom, p = 0.001


def test_a_retriever_that_leaks_is_stopped_before_anything_is_written(tmp_path: Path, examples):
    def leak(asked, queries, users) -> list[Ranking]:
        return [[Candidate(examples[0].profile[0], 1.0, 0)] for _ in asked]

    tally = Tally()
    pipeline = Pipeline(
        expand.Nothing().slot(tally), neighbours.Self().slot(tally), leak, select.TopK().slot(tally)
    )
    assert rank(pipeline, examples[:1], "none")
    for policy in ("none", "signals"):
        with pytest.raises(RuntimeError, match="belong to other users"):
            rank(pipeline, examples[:2], policy)
    assert len(rank(pipeline, examples[:2], "text")) == 2


@pytest.mark.parametrize(
    ("document", "allowed"),
    [
        (Document("p", "", "passage", shared=True), True),
        (Document("p", "b", "forged", shared=True), False),  # a flag does not make a document shared
        (Document("p", "", "nobody's"), False),
    ],
)
def test_the_gate_lets_shared_documents_pass_and_those_alone(document: Document, allowed: bool):
    def leak(asked, queries, users) -> list[Ranking]:
        return [[Candidate(document, 1.0, 0)] for _ in asked]

    tally = Tally()
    pipeline = Pipeline(
        expand.Nothing().slot(tally), neighbours.Self().slot(tally), leak, select.TopK().slot(tally)
    )
    asked = [Example("1", "a", "q", "in", "t")]
    for policy in ("none", "signals"):
        if allowed:
            assert rank(pipeline, asked, policy)[0][0].document is document
        else:
            with pytest.raises(RuntimeError, match="belong to other users"):
                rank(pipeline, asked, policy)
    assert rank(pipeline, asked, "text")


@pytest.mark.parametrize("method", METHODS)
def test_shared_documents_are_searched_as_one_more_user(tmp_path: Path, method: str):
    own = Example("1", "a", "tea", "in", "t", history("a", 3))
    shared = [Document(f"p{i}", "", f"passage about tea {i}", shared=True) for i in range(4)]
    build(tmp_path / "store.sqlite", [own], shared={"passages": shared})
    store = Store(tmp_path / "store.sqlite")
    world = World(store, Hashed(), np.stack([vector(text) for _, text in store.texts()]))
    slot = world.slot(chosen(method, 2))
    (ranking,) = slot([own], [Query(("tea",))], [[Neighbour("a"), Neighbour("")]])
    assert [c.document.shared for c in ranking] == [False, False, True, True]
    assert all(store.documents([c.row]) == [c.document] for c in ranking)
    if method == "dense":
        best = sorted(shared, key=lambda d: -float(vector(d.text) @ vector("tea")))[:2]
        assert [c.document for c in ranking[2:]] == best


def test_an_expansions_own_vector_is_used_where_there_is_one(tmp_path: Path, examples):
    world = resources(tmp_path, examples)
    slot = world.slot(retrieve.Dense(k=1))
    target = examples[0].profile[6]
    queries = [Query(("anything",), vector(target.text) * 100), Query((examples[1].profile[1].text,))]
    found = slot(examples[:2], queries, [[Neighbour("a")], [Neighbour("b")]])
    assert found[0][0].document == target
    assert found[1][0].document == examples[1].profile[1]


def test_dense_searches_without_the_names_of_those_who_speak_in_what_a_question_sees(tmp_path: Path, capfd):
    def said(user: str, *names: str) -> tuple[Document, ...]:
        there = [
            Document(f"{user}{i}", user, f"{n}: hi {i}", {"speakers": n}, i) for i, n in enumerate(names)
        ]
        return (*there, Document(f"{user}9", user, "plain", {}, 9.0))

    asked = [
        Example(
            "q0", "a", "Did Ann's cat see ANN DAY, Bob or Zed?", "", "t", said("a", "Ann Day", "Bob"), 10.0
        ),
        Example("q1", "a", "Did Ann see Bob?", "", "t", said("a", "Ann Day", "Bob")[:1], 1.0),  # before Bob's
        Example("q2", "b", "Did Ann see Zed?", "", "t", said("b", "Zed, Eve"), 10.0),
        Example("q3", "c", "Did Ann see Zed?", "", "t", said("c"), 10.0),
    ]
    world = resources(tmp_path, asked)
    every = [Neighbour(user) for user in "abc"]
    wanted: dict[Names, list[str]] = {
        "keep": [one.query for one in asked],
        "i": ["Did my cat see I, I or Zed?", "Did I see Bob?", "Did Ann see I?", asked[3].query],
        "out": ["Did cat see , or Zed?", "Did see Bob?", "Did Ann see ?", asked[3].query],
    }
    for names, texts in wanted.items():
        slot = world.slot(retrieve.Dense(k=9, names=names))
        assert world.encoder.asked == []
        found = slot(asked, [Query((one.query,)) for one in asked], [every] * 4)
        assert world.encoder.asked.pop() == ("query", *texts)
        for ranking, text in zip(found, texts, strict=True):
            scores = {c.document.text: c.score for c in ranking}
            assert scores == pytest.approx({t: float(vector(t) @ vector(text)) for t in scores}, abs=1e-6)
        assert ("name nobody" in capfd.readouterr().err) == (names != "keep")
        own = slot(asked[:1], [Query((asked[0].query,), vector("x"))], [every])[0]
        assert own[0].score == pytest.approx(max(float(vector(c.document.text) @ vector("x")) for c in own))
        world.encoder.asked.clear()


def test_a_neighbours_weight_multiplies_the_scores(tmp_path: Path, examples):
    world = resources(tmp_path, examples)
    for method in ("bm25", "dense", "recency"):
        slot, queries = world.slot(chosen(method, 9)), [Query((examples[0].query,))]
        full, half = (
            slot(examples[:1], queries, [[Neighbour("a"), Neighbour("b", weight)]])[0]
            for weight in (1.0, 0.5)
        )
        assert [(c.document.id, c.score) for c in half] == [
            (c.document.id, c.score * (0.5 if c.document.user_id == "b" else 1)) for c in full
        ]
        assert len(half) == 11


def found_by(method: str, folder: Path, profiles: dict[str, tuple[Document, ...]], k: int) -> Ranking:
    """What the first user's question finds in the histories of all, best first."""
    asked = [ask(user, profile) for user, profile in profiles.items()]
    slot = resources(folder, asked).slot(chosen(method, k))
    return slot(asked[:1], [Query((asked[0].query,))], [[Neighbour(user) for user in profiles]])[0]


def best_first(ranking: Ranking) -> list[str]:
    return [c.document.id for c in sorted(ranking, key=lambda c: -c.score)]


def test_recency_is_by_time_over_the_documents_of_all_users(tmp_path: Path):
    long = tuple(Document(f"a{t}", "a", "x", time=float(t)) for t in (1, 2, 3, 4, 5, 6))
    short = tuple(Document(f"b{t}", "b", "x", time=float(t)) for t in (60, 50))
    found = found_by("recency", tmp_path, {"a": long, "b": short, "c": ()}, k=3)
    assert best_first(found) == ["b60", "b50", "a6", "a5", "a4"]


def test_recency_of_undated_histories_goes_from_all_ends_at_once(tmp_path: Path):
    profiles = {user: history(user, count, dated=False) for user, count in (("a", 3), ("b", 2))}
    dated = (*profiles["b"], Document("b9", "b", "x", time=5.0))
    assert best_first(found_by("recency", tmp_path, profiles, k=9)) == ["a2", "b1", "a1", "b0", "a0"]
    found = found_by("recency", tmp_path, {"a": profiles["a"], "b": dated}, k=9)
    assert best_first(found) == ["b9", "a2", "a1", "b1", "a0", "b0"]


def lucene(texts: list[list[str]], query: list[str]) -> list[float]:
    """BM25 with Lucene's idf, term by term."""
    mean = sum(map(len, texts)) / len(texts)
    holding = {t: sum(t in text for text in texts) for t in query}
    idf = {t: np.log(1 + (len(texts) - n + 0.5) / (n + 0.5)) for t, n in holding.items()}
    return [
        sum(
            idf[t] * text.count(t) * 2.5 / (text.count(t) + 1.5 * (0.25 + 0.75 * len(text) / mean))
            for t in query
        )
        for text in texts
    ]


def test_bm25_across_users_has_the_scores_of_one_index(tmp_path: Path):
    texts = {"a": ["word1 x", "word1 thing4", "v", "y z"], "b": ["thing4 thing4 q", "r s t", "word1 u"]}
    profiles = {
        user: tuple(Document(f"{user}{i}", user, text, time=1.0) for i, text in enumerate(own))
        for user, own in texts.items()
    }
    expected = lucene([text.split() for own in texts.values() for text in own], ["word1", "thing4"])
    found = {c.document.id: c.score for c in found_by("bm25", tmp_path, profiles, k=9)}
    names = [f"{user}{i}" for user, own in texts.items() for i in range(len(own))]
    np.testing.assert_allclose([found[name] for name in names], expected, rtol=1e-12)
    assert len(set(expected)) > 3


def test_each_user_still_gives_the_best_k(tmp_path: Path):
    profiles = {user: history(user, count) for user, count in (("a", 5), ("b", 1), ("c", 4))}
    for method in METHODS:
        found = found_by(method, tmp_path, profiles, k=2)
        assert [c.document.user_id for c in found] == ["a", "a", "b", "c", "c"], method
