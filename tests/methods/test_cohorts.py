"""Neighbours out of the own cluster: who they are in each mode, when they are known, and odd users."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.cluster import HDBSCAN
from test_neighbours import Named, World, ask, history, resources

from pbr_jax.base.types import Document, Example, UserError
from pbr_jax.config import Config
from pbr_jax.corpus.store import Store, build
from pbr_jax.experiment.plan import Plan
from pbr_jax.index.density import NOISE
from pbr_jax.methods.neighbours import Cohorts
from pbr_jax.methods.neighbours import cohorts as parts
from pbr_jax.methods.retrieve import BM25
from pbr_jax.pipeline import Tally
from pbr_jax.stages import users
from pbr_jax.stages.users import Users

SETTINGS: dict[str, Any] = {"min_cluster_size": 2, "min_samples": 3, "copy": True}


def grouping(method: Cohorts) -> parts.Grouping:
    return parts.Grouping(
        method.clustering, method.min_cluster_size, method.min_samples, method.num_clusters, method.unit,
        method.snapshots,
    )  # fmt: skip


def made(world: World, method: Cohorts, folder: Path) -> parts.Clusters:
    folder.mkdir(exist_ok=True)
    parts._make(folder, grouping(method), 0, store=world.store, users=world.users)
    return parts._load(folder)


def found(world: World, examples: list[Example], folder: Path, **options: Any) -> list[list[str]]:
    method = Cohorts(**{"m": 3, **options})
    known = made(world, method, folder / "cohorts")
    slot = method.slot(Tally(), store=world.store, users=world.users, cohorts=known, seed=0)
    return [[neighbour.user_id for neighbour in of_example] for of_example in slot(examples)]


@pytest.fixture
def circle() -> list[Example]:
    """Four users of each of three kinds; undated."""
    return [
        ask(f"{kind}{i}", history(f"{kind}{i}", "abc".index(kind), [None] * (i + 1)), None)
        for kind in "abc"
        for i in range(4)
    ]


def test_labels_are_scikit_learns_on_unit_means(tmp_path, circle):
    world = resources(tmp_path, circle)
    labels = made(world, Cohorts(), tmp_path / "cohorts").labels[0]
    means = world.users.at(None)
    units = means / np.linalg.norm(means, axis=1, keepdims=True)
    wanted = HDBSCAN(**SETTINGS).fit(units.astype(float)).labels_
    assert labels.tolist() == wanted.tolist()
    assert len({*labels.tolist()} - {NOISE}) >= 3


@pytest.mark.parametrize("clustering", ["hdbscan", "k_means"])
@pytest.mark.parametrize("similarity", ["dot", "cosine", "maxsim_documents", "random"])
def test_modes_give_the_own_history_others_of_the_cluster_or_both(tmp_path, circle, similarity, clustering):
    world = resources(tmp_path, circle)
    options = {"similarity": similarity, "clustering": clustering, "num_clusters": 3, "noise": "nearest"}
    hybrid = found(world, circle, tmp_path, m=2, **options)
    collaborative = found(world, circle, tmp_path, m=1, own=False, **options)
    for example, both, other in zip(circle, hybrid, collaborative, strict=True):
        assert both == [example.user_id, *other]
        assert other[0] != example.user_id
        assert other[0][0] == example.user_id[0]
    assert found(world, circle, tmp_path, m=1, **options) == [[e.user_id] for e in circle]


def test_inside_a_cluster_it_is_the_brute_force_order(tmp_path, circle):
    world = resources(tmp_path, circle)
    options = {"m": 9, "own": False, "clustering": "k_means", "num_clusters": 1}
    means = world.users.asking(circle)
    documents = [world.users.embeddings[world.store.history(e.user_id)] for e in circle]
    units = means / np.linalg.norm(means, axis=1, keepdims=True)
    wanted = {
        "dot": means @ means.T,
        "cosine": units @ means.T / np.linalg.norm(means, axis=1),
        "maxsim_documents": np.array([[(a @ b.T).max(1).sum() for b in documents] for a in documents]),
    }
    for similarity, scores in wanted.items():
        names = found(world, circle, tmp_path, similarity=similarity, **options)
        for i, of_example in enumerate(names):
            order = [j for j in np.argsort(-scores[i], kind="stable") if j != i][:9]
            values = [scores[i][j] for j in order]
            got = [scores[i][[e.user_id for e in circle].index(name)] for name in of_example]
            np.testing.assert_allclose(got, values, rtol=1e-5)


def noisy() -> list[Example]:
    """Two groups of three, and two users who are far from everybody."""
    kinds = {"a0": 0, "a1": 0, "a2": 0, "b0": 1, "b1": 1, "b2": 1, "x": 2, "y": 3}
    return [
        ask(name, history(name, axis, [None] * (1 + int(name[1:] or 0))), None)
        for name, axis in kinds.items()
    ]


def test_users_of_no_cluster_are_one_go_to_the_nearest_or_stay_alone(tmp_path):
    examples = noisy()
    world = resources(tmp_path, examples)
    labels = made(world, Cohorts(min_cluster_size=3), tmp_path / "cohorts").labels[0]
    names = [e.user_id for e in examples]
    outside = {name for name, label in zip(names, labels) if label == NOISE}
    assert outside == {"x", "y"}
    together = dict(
        zip(names, found(world, examples, tmp_path, m=6, min_cluster_size=3, noise="one_cluster"))
    )
    alone = dict(zip(names, found(world, examples, tmp_path, m=6, min_cluster_size=3, noise="alone")))
    nearest = dict(zip(names, found(world, examples, tmp_path, m=6, min_cluster_size=3, noise="nearest")))
    for name in outside:
        assert {*together[name]} == outside
        assert alone[name] == [name]
        assert {*nearest[name]} & {"a0", "b0"}
    assert all({*alone[name]}.isdisjoint(outside) for name in names if name not in outside)


@pytest.mark.parametrize("noise", ["one_cluster", "nearest", "alone"])
def test_where_everybody_is_noise_one_alone_or_nobody_wrote(tmp_path, circle, noise):
    world = resources(tmp_path, circle)
    names = found(world, circle, tmp_path, m=3, min_cluster_size=12, noise=noise)
    assert {len(of_example) for of_example in names} == {1 if noise == "alone" else 3}
    for name in ("one", "nobody"):
        (tmp_path / name).mkdir()
    one = resources(tmp_path / "one", circle[:1])
    assert found(one, circle[:1], tmp_path, noise=noise) == [["a0"]]
    assert found(one, circle[:1], tmp_path, noise=noise, own=False) == [[]]
    silent = [ask("s0", (), None), ask("s1", (), None)]
    nobody = resources(tmp_path / "nobody", [*silent, ask("t", history("t", 0, [5.0]), None)])
    assert found(nobody, silent, tmp_path, noise=noise) == [["s0"], ["s1"]]


def test_a_user_without_history_is_placed_by_the_query_and_is_nobodys_neighbour(tmp_path, circle):
    cold = ask("cold", (), None, query="1 what")
    names = found(resources(tmp_path, [*circle, cold]), [*circle, cold], tmp_path, m=3, noise="nearest")
    assert names[-1][0] == "cold"
    assert {name[0] for name in names[-1][1:]} == {"b"}
    assert all("cold" not in of_example for of_example in names[:-1])


def test_others_are_grouped_by_what_they_had_written_before(tmp_path):
    """v and w write of each other's kind later; a question in between sees the old cohorts."""
    crowd = [ask(f"{k}{i}", history(f"{k}{i}", "ab".index(k), [1.0]), 60.0) for k in "ab" for i in range(3)]

    def turned(name: str, first: int, then: int) -> Example:
        profile = (*history(name, first, [2.0]), *history(name + "'", then, [50.0 + i for i in range(9)]))
        own = tuple(Document(d.id, name, d.text, {}, d.time) for d in profile)
        return Example(f"q-{name}", name, "3 q", "in", "t", own, 60.0)

    early, late = ask("u", history("u", 0, [1.0]), 10.0), ask("u", history("u", 0, [1.0]), 100.0)
    others = [turned("v", 0, 1), turned("w", 1, 0)]
    world = resources(tmp_path, [early, late, *crowd, *others])
    before, after = found(world, [early, late], tmp_path, m=9, noise="nearest")
    assert "v" in before
    assert "w" not in before
    assert "w" in after
    assert "v" not in after
    stale = found(world, [early, late], tmp_path, m=9, noise="nearest", snapshots=1)
    assert {*stale[0]} == {*stale[1]} == {*before}
    assert found(world, [ask("u", history("u", 0, [1.0]), None)], tmp_path, m=2) == [["u"]]


def test_users_of_no_cluster_are_noted_once_however_many_moments_there_are(tmp_path, capsys):
    world = resources(tmp_path, [ask(f"u{i}", history(f"u{i}", i, [1.0]), 10.0 + i) for i in range(3)])
    cohorts = made(world, Cohorts(min_cluster_size=3), tmp_path / "cohorts")
    assert [set(labels) for labels in cohorts.labels[1:].tolist()] == [{NOISE}] * 3
    assert capsys.readouterr().err.count("3 of 3 users are in no cluster") == 1


def test_a_cut_history_does_not_know_the_cohort_of_the_whole_one(tmp_path):
    """A question that sees the last document alone is placed by it, not by what its user wrote before."""
    crowd = [
        ask(f"{k}{i}", history(f"{k}{i}", "ab".index(k), [None] * 2), None) for k in "ab" for i in range(3)
    ]
    profile = (*history("u", 0, [None] * 8), Document("u-last", "u", "1 u last", {}))
    whole = Example("q-u", "u", "3 q", "in", "t", profile)
    examples = [*crowd, whole]
    cut: list[World] = []
    for place, newest in enumerate((None, 1)):
        file = tmp_path / f"store{place}.sqlite"
        build(file, examples, newest=newest)
        store = Store(file)
        encoder = Named()
        cut.append(
            World(
                store, Users(store, encoder.encode([text for _, text in store.texts()]), encoder, users.mean)
            )
        )
    seen, last = (found(world, [whole], tmp_path, m=3, noise="nearest")[0] for world in cut)
    assert {name[0] for name in seen[1:]} == {"a"}
    assert {name[0] for name in last[1:]} == {"b"}


@pytest.mark.parametrize("later", [(1, 1), (1, -2), (5, 0)])
def test_what_a_question_does_not_see_of_the_own_history_moves_no_centroid(tmp_path, later: tuple[int, int]):
    """u's first question sees one document, a little nearer to b's; the other pulls on a's centroid."""
    crowd = [ask(name, history(name, 0, [None]), None) for name in ("a0", "a1", "b0", "b1")]
    both = history("u", 0, [None, None])
    early = Example("q1", "u", "3 q", "in", "t", both[:1])
    examples = [*crowd, early, Example("q2", "u", "3 q", "in", "t", both)]
    store = resources(tmp_path, examples).store
    where = {"a": (1, 0), "b": (0, 1), "u0": (1, 1.1), "u1": later}
    embeddings = np.array(
        [where.get(d.id, where.get(d.id[0])) for d in store.documents(range(6))], np.float32
    )
    world = World(store, Users(store, embeddings, Named(), users.mean))
    labels = np.array([[1 if name[0] == "b" else 0 for name in store.users]])  # u is one of the a's
    slot = Cohorts(own=False, m=9).slot(
        Tally(), store=store, users=world.users, cohorts=parts.Clusters([None], labels)
    )
    assert {neighbour.user_id for neighbour in slot([early])[0]} == {"b0", "b1"}


@pytest.mark.parametrize("lonely", [NOISE, 3])
def test_who_is_alone_in_a_cluster_borrows_of_the_nearest(tmp_path, circle, lonely: int):
    """One outlier is all of the cluster of noise, or a cluster of k-means; `noise alone` wants it so."""
    outlier = ask("x", (*history("x", 3, [None]), Document("x1", "x", "1 x", {})), None)
    world = resources(tmp_path, [*circle, outlier])
    labels = np.array([["abc".index(name[0]) if name != "x" else lonely for name in world.store.users]])

    def borrowed(**options: Any) -> list[str]:
        slot = Cohorts(own=False, m=2, **options).slot(
            Tally(), store=world.store, users=world.users, cohorts=parts.Clusters([None], labels)
        )
        return [neighbour.user_id[0] for neighbour in slot([outlier])[0]]

    assert borrowed() == ["b", "b"]
    assert borrowed(noise="alone") == ([] if lonely == NOISE else ["b", "b"])


def test_random_in_the_cluster_depends_on_seed_and_question_alone(tmp_path, circle):
    world = resources(tmp_path, circle)
    options = {"similarity": "random", "clustering": "k_means", "num_clusters": 1, "m": 4}
    one = found(world, circle, tmp_path, **options)
    assert one == found(world, circle, tmp_path, **options)
    assert one[0] == found(world, circle[:1], tmp_path, **options)[0]
    assert len({tuple(names[1:]) for names in one}) > 3


def test_alone_nobody_is_grouped_and_others_need_collaboration_by_text():
    def needs(**options: Any) -> set[str]:
        config = Config(collaboration="text", retrieve=BM25(), neighbours=Cohorts(**options))
        return set(Plan(config).ranked.needs["neighbours"].needs)

    assert needs(m=1) == {"store"}
    assert needs(m=2) == {"store", "users", "cohorts"}
    assert needs(m=2, similarity="random") == {"store", "users", "cohorts", "seed"}
    for policy in ("none", "signals"):
        for options in ({"m": 2}, {"m": 1, "own": False}):
            with pytest.raises(UserError, match="other users' documents would enter prompts"):
                Config(collaboration=policy, neighbours=Cohorts(**options))  # type: ignore[arg-type]
        Config(collaboration=policy, neighbours=Cohorts(m=1))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_cluster_size": 1}, "neighbours.min_cluster_size is 1, want at least 2"),
        ({"min_samples": 0}, "neighbours.min_samples is 0, want at least 1"),
        ({"num_clusters": 0}, "neighbours.num_clusters is 0, want at least 1"),
    ],
)
def test_bad_options_are_one_clear_line(options: dict[str, Any], message: str):
    with pytest.raises(UserError, match=message):
        Cohorts(**options)
