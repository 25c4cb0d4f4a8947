"""Two stages: clusters opened as brute force opens them, all of them as a flat ranking, and odd profiles."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pbr_jax.base.types import Candidate, Document, Example, UserError
from pbr_jax.config import Config, override
from pbr_jax.corpus.store import Store, build
from pbr_jax.experiment.plan import Plan
from pbr_jax.graph.lists import stages
from pbr_jax.index.density import NOISE, hdbscan
from pbr_jax.methods.neighbours import Cohorts
from pbr_jax.methods.retrieve import BM25, BM25Lamp, Recency, TwoStage
from pbr_jax.methods.select import LateInteraction, TopK
from pbr_jax.pipeline import Neighbour, Query, Ranking, Tally
from pbr_jax.stages.late_interaction import PooledVectors, TokenVectors
from pbr_jax.text.encode import TextEncoder
from pbr_jax.text.token_encoder import TokenEncoder, mean_vectors

D = 6


class Tokens(TokenVectors):
    """Random vectors around topics, of two to five tokens a document."""

    def __init__(self, topics: list[int], seed: int = 0) -> None:
        draw = np.random.default_rng(seed)
        self._documents = [
            unit(np.eye(D)[t] + 0.15 * draw.normal(size=(2 + i % 4, D))) for i, t in enumerate(topics)
        ]
        self.means = mean_vectors(self._documents, D)

    def __getitem__(self, row: int) -> np.ndarray:
        return self._documents[row]


class Asked(TokenEncoder):
    """The query "2" is three tokens near topic 2."""

    def __init__(self) -> None: ...

    def encode(self, texts, role):
        draw = np.random.default_rng(7)
        return [unit(np.eye(D)[int(text[0])] + 0.3 * draw.normal(size=(3, D))) for text in texts]


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


pytestmark = pytest.mark.usefixtures("fresh_cache")


def example(user: str, topics: list[int], query: str = "2") -> Example:
    # Ids are those of the data: two users may have one paper.
    profile = tuple(
        Document(f"d{i}", user, f"{t} text", {"text": f"{user} {i}"}) for i, t in enumerate(topics)
    )
    return Example(f"q-{user}", user, query, "in", "t", profile)


TOPICS = {"u": [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2], "v": [2, 3, 3, 2, 3, 4, 4, 3], "one": [2], "none": []}


class World:
    def __init__(self, folder: Path) -> None:
        self.examples = [example(user, topics) for user, topics in TOPICS.items()]
        build(folder / "store.sqlite", self.examples)
        self.store = Store(folder / "store.sqlite")
        self.tokens = Tokens([t for topics in TOPICS.values() for t in topics])
        self.query = Asked().encode(["2"], "query")[0]

    def found(self, users: list[str], place: int = 0, tally: Tally | None = None, **options: Any) -> Ranking:
        slot = TwoStage(**{"k": 99, **options}).slot(
            tally or Tally(), store=self.store, encoder=Asked(), tokens=self.tokens, seed=0
        )  # fmt: skip
        return slot([self.examples[place]], [Query(("2",))], [[Neighbour(user) for user in users]])[0]

    def rows(self, *users: str) -> np.ndarray:
        return np.concatenate([self.store.history(user) for user in users])

    def clusters(self, vectors: np.ndarray, noise: str) -> list[list[int]]:
        """The rows of each cluster of two users' documents."""
        clusters: list[list[int]] = []
        for user in ("u", "v"):
            rows = self.rows(user)
            labels = hdbscan(vectors[rows])
            clusters += [rows[labels == c].tolist() for c in range(labels.max() + 1)]
            rest = rows[labels == NOISE].tolist()
            clusters += [[row] for row in rest] if noise == "alone" else [rest] * bool(rest)
        return clusters


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def by_score(ranking: Ranking) -> list[int]:
    return [c.row for c in sorted(ranking, key=lambda c: -c.score)]


def test_all_clusters_are_a_flat_ranking(world: World):
    rows = world.rows("u", "v")
    scores = world.tokens.max_sims(world.query, rows)
    order = rows[np.argsort(-scores, kind="stable")].tolist()
    everything: list[dict[str, Any]] = [
        {"top_clusters": None},
        {"top_clusters": 99},
        {"top_clusters": 99, "noise": "one_cluster"},
    ]
    for options in everything:
        found = world.found(["u", "v"], **options)
        assert by_score(found) == order
        assert sorted(c.score for c in found) == sorted(scores.tolist())
    flat = [Candidate(d, 0.0, int(row)) for row, d in zip(rows, world.store.documents(rows), strict=True)]
    select = LateInteraction().slot(Tally(), encoder=Asked(), tokens=world.tokens)
    assert [c.row for c in select([world.examples[0]], [Query(("2",))], [flat])[0]] == order


@pytest.mark.parametrize("noise", ["alone", "one_cluster"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_clusters_of_nearest_centroids_are_opened(world: World, count: int, noise: str):
    clusters = world.clusters(world.tokens.means, noise)
    assert len(clusters) > 3

    def nearness(rows: list[int]) -> float:
        mean, asked = world.tokens.means[rows].mean(0), world.query.mean(0)
        return float(mean @ asked / np.linalg.norm(mean) / np.linalg.norm(asked))

    best = sorted(clusters, key=nearness, reverse=True)[:count]
    tally = Tally()
    found = world.found(["u", "v"], k=1, tally=tally, top_clusters=count, noise=noise)
    inside = [row for rows in best for row in rows]
    assert tally.counts["documents_scored"] == len(inside)
    assert tally.counts["documents_searched"] == 20
    scores = {
        row: float(s) for row, s in zip(inside, world.tokens.max_sims(world.query, inside), strict=True)
    }
    for candidate in found:
        own = [row for row in inside if row in world.rows(candidate.document.user_id)]
        assert candidate.row == max(own, key=lambda row: scores[row])
        assert candidate.score == pytest.approx(scores[candidate.row], rel=1e-6)


def test_while_the_opened_hold_too_few_the_next_is_opened(world: World):
    sizes = [len(world.found(["u", "v"], k=k, top_clusters=1)) for k in (1, 6, 12, 20)]
    assert sizes[-1] == 20
    assert sizes == sorted(sizes)
    tally = Tally()
    world.found(["u"], k=12, tally=tally, top_clusters=1)
    assert tally.counts["documents_scored"] == 12
    assert len(world.found(["u", "v"], k=2, top_clusters=None)) == 4  # k from each user


def test_short_profiles(world: World):
    assert [c.document.user_id for c in world.found(["one"], place=2)] == ["one"]
    assert world.found(["none"], place=3) == []
    assert world.found([], place=3) == []
    assert {c.document.user_id for c in world.found(["none", "one"], place=3)} == {"one"}
    for inside in ("centroid", "random", "recency", "bm25"):
        assert len(world.found(["one"], place=2, inside=inside)) == 1
        assert world.found(["none"], place=3, inside=inside) == []


def test_documents_of_one_id_are_two_documents(world: World):
    found = world.found(["u", "v"], top_clusters=None)
    assert len({c.row for c in found}) == len(found) == 20
    both = [c for c in found if c.document.id == "d0"]
    assert {c.document.user_id for c in both} == {"u", "v"}
    assert both[0].score != both[1].score


def test_centroids_alone_and_chance(world: World):
    rows = world.rows("u")
    labels = hdbscan(world.tokens.means[rows])
    found = world.found(["u"], inside="centroid", top_clusters=None)
    for candidate in found:
        place = rows.tolist().index(candidate.row)
        centre = world.tokens.means[rows[labels == labels[place]]].mean(0)
        wanted = world.tokens.means[candidate.row] @ centre / np.linalg.norm(centre)
        wanted -= 2 * (labels[place] == NOISE)
        assert candidate.score == pytest.approx(float(wanted), abs=1e-5)
    one = by_score(world.found(["u", "v"], inside="random", top_clusters=None))
    assert one == by_score(world.found(["u", "v"], inside="random", top_clusters=None))
    assert sorted(one) == sorted(world.rows("u", "v").tolist())
    assert one != by_score(world.found(["u", "v"], top_clusters=None))


class Pooling(TextEncoder):
    """One vector a query, of any length."""

    tokenizer: Any = SimpleNamespace(max_length=None)

    def __init__(self) -> None: ...

    def encode(self, texts, *, role="document", progress=False):
        draw = np.random.default_rng(11)
        rows = [3 * np.eye(D)[int(text[0])] + draw.normal(size=D) for text in texts]
        return np.array(rows, np.float32).reshape(-1, D)


@pytest.mark.parametrize("noise", ["alone", "one_cluster"])
@pytest.mark.parametrize("count", [1, 2, None])
@pytest.mark.parametrize("own", [False, True])
def test_pooled_vectors_inside_opened_clusters_are_ranked_by_their_cosine(
    world: World, count: int | None, noise: Any, own: bool
):
    """Brute force: HDBSCAN of the vectors as they come, the cosine with means and with members.

    `own`: an expansion has made the query's vector.
    """
    draw = np.random.default_rng(5)
    vectors = np.stack([draw.uniform(0.5, 2) * mean for mean in world.tokens.means]).astype(np.float32)
    query = Query(("2",), draw.normal(size=D) if own else None)
    asked = Pooling().encode(["2"], role="query")[0] if query.vector is None else query.vector

    def cosine(vector: np.ndarray) -> float:
        return float(vector @ asked / np.linalg.norm(vector) / np.linalg.norm(asked))

    best = sorted(
        world.clusters(vectors, noise), key=lambda rows: cosine(vectors[rows].mean(0)), reverse=True
    )[:count]
    inside = {row: cosine(vectors[row]) for rows in best for row in rows}
    slot = TwoStage(k=1, inside="pooled", top_clusters=count, noise=noise).slot(
        Tally(), store=world.store, encoder=Pooling(), tokens=PooledVectors(vectors)
    )
    (found,) = slot([world.examples[0]], [query], [[Neighbour("u"), Neighbour("v")]])
    wanted = [
        max(rows, key=lambda row: inside[row])
        for user in ("u", "v")
        if (rows := [row for row in inside if row in world.rows(user)])
    ]
    assert [c.row for c in found] == wanted
    assert [c.score for c in found] == pytest.approx([inside[row] for row in wanted], rel=1e-5)


def test_bm25_and_recency_rank_what_is_opened(world: World):
    """As their own retrievers rank, where all clusters are opened; else what is opened alone."""
    users, query = [[Neighbour("u"), Neighbour("v")]], [Query(("2",))]
    alone = {"bm25": BM25(k=99), "bm25_lamp": BM25Lamp(k=99), "recency": Recency(k=99)}
    for name, method in alone.items():
        flat = method.slot(Tally(), store=world.store)([world.examples[0]], query, users)[0]
        assert by_score(world.found(["u", "v"], inside=name, top_clusters=None)) == by_score(flat)
        opened = {c.row for c in world.found(["u", "v"], k=1, top_clusters=1, inside=name)}
        assert opened <= {c.row for c in world.found(["u", "v"], k=99, top_clusters=None)}
    some = {c.row for user in ("u", "v") for c in world.found([user], k=3, top_clusters=1)}
    newest = [c for user in ("u", "v") for c in world.found([user], k=3, top_clusters=1, inside="recency")]
    assert {c.row for c in newest} != some
    assert [c.score for c in newest if c.document.user_id == "u"] == sorted(
        (c.score for c in newest if c.document.user_id == "u"), reverse=True
    )


def test_a_pooled_run_embeds_texts_once_and_no_tokens(tiny_models: Any, write_tweets: Any):
    root = write_tweets({"a": ["one tweet", "two tweets", "red tea"], "b": ["green tea", "no tea"]})
    data = {"benchmark.name": "lamp_7", "benchmark.root": str(root), "retrieve.k": 4, **tiny_models}
    data["encoder.normalize"] = "yes"
    pooled = {"retrieve.method": "two_stage", "retrieve.inside": "pooled"}
    dense, opened, flat = (
        Plan(override(Config(), {**data, **fields}))
        for fields in ({}, pooled, pooled | {"retrieve.top_clusters": None})
    )
    opened.check()
    assert set(stages(opened.ranked)) == {"data", "embed", "rank"}
    pairs = zip(
        *(list(p.ranked.value.read(p.data.value, p.data.value.examples())) for p in (dense, flat)),
        strict=True,
    )
    for one, other in pairs:
        assert [c.row for c in one] == [c.row for c in other]
        assert [c.score for c in one] == pytest.approx([c.score for c in other], abs=1e-5)


def test_documents_alone_in_a_cluster_come_last_by_centroids(world: World):
    """Each is its own centroid: they all had the best score that there is."""
    users = ["u", "v", "one"]
    found = world.found(users, inside="centroid", top_clusters=None)
    alone: list[int] = []
    for user in users:
        rows = world.rows(user)
        labels = hdbscan(world.tokens.means[rows]) if len(rows) > 1 else np.array([NOISE])
        alone += rows[labels == NOISE].tolist()
    assert len(alone) > 2
    order = by_score(found)
    assert set(order[-len(alone) :]) == set(alone)
    assert len({c.score for c in found if c.row in alone}) == len(alone)


def test_fewer_documents_than_are_shown_are_announced(capsys: pytest.CaptureFixture[str]):
    def told(shown: int, **options: Any) -> str:
        retrieve = TwoStage(k=2, **options)
        Plan(Config(retrieve=retrieve, neighbours=Cohorts(m=1), select=TopK(k=shown)))
        return capsys.readouterr().err

    assert "retrieve: note: select.k is 4 and retrieve.k 2:" in told(4)
    assert told(2) == told(4, top_clusters=None) == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_clusters": 0}, "retrieve.top_clusters is 0, want at least 1"),
        ({"min_cluster_size": 1}, "retrieve.min_cluster_size is 1, want at least 2"),
        ({"inside": "pooled", "model": "x"}, "retrieve.model is set, and retrieve.inside is pooled"),
    ],
)
def test_bad_options_are_one_clear_line(options: dict[str, Any], message: str):
    with pytest.raises(UserError, match=message):
        TwoStage(**options)
