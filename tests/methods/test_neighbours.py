"""Neighbours and users as vectors: who is found, at which moment, and from what."""

import json
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbr_jax.base.types import Document, Example, UserError
from pbr_jax.config import Config, name_of
from pbr_jax.corpus.store import Store, build
from pbr_jax.experiment.plan import Plan
from pbr_jax.methods import expand
from pbr_jax.methods.neighbours import METHODS, Cohorts, Mean, Random, cohorts
from pbr_jax.methods.neighbours.moments import Moments
from pbr_jax.methods.retrieve import BM25
from pbr_jax.methods.select import TopK
from pbr_jax.models.user_transformer import UserTransformerConfig, user_transformer
from pbr_jax.pipeline import Tally
from pbr_jax.stages import rankings, users
from pbr_jax.stages.run import CHUNK, chunks
from pbr_jax.stages.users import Users
from pbr_jax.text.encode import TextEncoder

D = 4


class Named(TextEncoder):
    """An encoder of texts such as "2 ...": the vector near that axis, and a little of its own."""

    def __init__(self) -> None:
        pass

    def encode(self, texts, *, role="document", progress=False) -> np.ndarray:
        found = np.zeros((len(texts), D), np.float32)
        for row, text in enumerate(texts):
            found[row, int(text.split()[0])] = 1
            found[row] += 0.01 * np.random.default_rng(len(text)).normal(size=D).astype(np.float32)
        return found


def history(user: str, axis: int, times: list[float | None]) -> tuple[Document, ...]:
    return tuple(Document(f"{user}{i}", user, f"{axis} {user} {i}", {}, t) for i, t in enumerate(times))


def ask(user: str, profile: tuple[Document, ...], time: float | None = 100.0, query: str = "3 q") -> Example:
    return Example(f"q-{user}-{time}", user, query, "in", "t", profile, time)


class World(NamedTuple):
    store: Store
    users: Users


def resources(folder: Path, examples: list[Example], encode=users.mean) -> World:
    build(folder / "store.sqlite", examples)
    store, encoder = Store(folder / "store.sqlite"), Named()
    return World(store, Users(store, encoder.encode([text for _, text in store.texts()]), encoder, encode))


def found(world: World, examples: list[Example], method: str = "mean", **options) -> list[list[str]]:
    chosen = next(m for m in METHODS if name_of(m) == method)(**{"m": 3, **options})
    needs: dict[str, Any] = {"seed": 0} if method == "random" else {"users": world.users}
    slot = chosen.slot(Tally(), store=world.store, **needs)  # type: ignore[call-arg]
    return [[neighbour.user_id for neighbour in of_example] for of_example in slot(examples)]


@pytest.fixture
def circle() -> list[Example]:
    """Users a0 a1 a2 of one kind, b0 b1 b2 of another; undated."""
    return [ask(f"{kind}{i}", history(f"{kind}{i}", "ab".index(kind), [None] * (i + 1)), None)
            for kind in "ab" for i in range(3)]  # fmt: skip


def test_the_asking_user_comes_first_then_those_of_the_same_kind(tmp_path, circle):
    for example, names in zip(circle, found(resources(tmp_path, circle), circle), strict=True):
        assert names[0] == example.user_id
        assert sorted(names) == [f"{example.user_id[0]}{i}" for i in range(3)]


def test_it_is_the_brute_force_order(tmp_path, circle):
    world = resources(tmp_path, circle)
    vectors = world.users.asking(circle)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for i, names in enumerate(found(world, circle, m=6)):
        order = [j for j in np.argsort(-(unit @ unit[i]), kind="stable") if j != i]
        assert names == [circle[j].user_id for j in (i, *order)]


def test_nearest_users_can_be_passed_over(tmp_path, circle):
    world = resources(tmp_path, circle)
    all_, rest = found(world, circle, m=6), found(world, circle, m=3, skip=2)
    assert [names[3:5] for names in all_] == [names[1:] for names in rest]


def test_more_users_than_there_are_and_one_alone(tmp_path, circle):
    world = resources(tmp_path, circle)
    assert [len(names) for names in found(world, circle, m=99)] == [6] * 6
    assert found(world, circle, m=1) == [[e.user_id] for e in circle]
    slot = Mean(m=1).slot(Tally(), store=world.store)  # alone nobody is compared: no vectors are needed
    assert [[one.user_id] for (one,) in slot(circle)] == [[e.user_id] for e in circle]
    alone = resources(tmp_path, circle[:1])
    assert found(alone, circle[:1]) == [["a0"]]
    assert found(alone, circle[:1], method="random") == [["a0"]]


def test_a_user_without_history_is_placed_by_the_query_and_is_nobodys_neighbour(tmp_path, circle):
    cold = ask("cold", (), None, query="1 what")
    names = found(resources(tmp_path, [*circle, cold]), [*circle, cold], m=4)
    assert names[-1][0] == "cold"
    assert {name[0] for name in names[-1][1:]} == {"b"}
    assert all("cold" not in of_example for of_example in names[:-1])


def test_others_are_known_by_what_they_had_written_before(tmp_path):
    """v wrote of the same as u first, w only after the first question."""
    u = history("u", 0, [1.0])
    others = [
        ask("v", (*history("v", 0, [2.0]), *history("v'", 1, [50.0, 51.0, 52.0])), 60.0),
        ask("w", (*history("w", 1, [2.0]), *history("w'", 0, [50.0, 51.0, 52.0])), 60.0),
    ]
    others = [
        Example(e.id, e.user_id, e.query, e.input, e.target,
                tuple(Document(d.id, e.user_id, d.text, {}, d.time) for d in e.profile), e.time)
        for e in others
    ]  # fmt: skip
    early, late = ask("u", u, 10.0), ask("u", u, 100.0)
    world = resources(tmp_path, [early, late, *others])
    assert found(world, [early, late], m=2) == [["u", "v"], ["u", "w"]]
    # With one snapshot, the first question's moment serves them all: stale, never too young.
    assert found(world, [early, late], m=2, snapshots=1) == [["u", "v"], ["u", "v"]]
    undated = ask("u", u, None)
    assert found(world, [undated], m=2) == [["u"]]


class Counted(Users):
    """Counts how often all users are read."""

    pools = 0

    def at(self, moment: float | None) -> np.ndarray:
        self.pools += 1
        return super().at(moment)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> World:
    """30 users with more questions than a chunk holds, at random times; the last user's have none."""
    draw = np.random.default_rng(0)
    profiles = {f"u{i}": history(f"u{i}", i % D, sorted(draw.uniform(0, 9, 3).tolist())) for i in range(29)}
    times = draw.uniform(0, 10, CHUNK + 99)
    asked = [ask(f"u{i % 29}", profiles[f"u{i % 29}"], float(time)) for i, time in enumerate(times)]
    asked += [ask("undated", history("undated", 1, [None]), None), ask("cold", (), 5.0)]
    world = resources(tmp_path_factory.mktemp("many"), asked)
    return World(world.store, Counted(world.store, world.users.embeddings, world.users.encoder, users.mean))


@pytest.mark.parametrize("name", ["mean", "cohorts"])
def test_of_any_number_of_questions_users_are_read_once_a_moment(many: World, name: str):
    """And who is found does not depend on how many are asked together."""
    store, counted = many
    assert isinstance(counted, Counted)
    moments = Moments(store, 8).all
    known = cohorts.Clusters(moments, np.tile(np.arange(len(store.users)) % 3, (len(moments), 1)))

    def slot():
        if name == "mean":
            return Mean(m=4).slot(Tally(), store=store, users=counted)
        return Cohorts(m=4).slot(Tally(), store=store, users=counted, cohorts=known)

    examples = list(store.examples())
    counted.pools = 0
    together = slot()(examples)
    assert counted.pools == len(moments)
    apart = slot()
    assert [one for some in chunks(examples) for one in apart(some)] == together
    assert counted.pools > 2 * len(moments)


def test_a_run_asks_for_the_users_of_all_its_questions_at_once(many: World, tmp_path: Path):
    assert isinstance(many.users, Counted)
    asked = Mean(m=2).slot(Tally(), store=many.store, users=many.users)
    makers: dict[str, Any] = {
        "expand": expand.Nothing().slot,
        "neighbours": lambda tally: asked,
        "retrieve": lambda tally: lambda examples, queries, users: [[] for _ in examples],
        "select": TopK().slot,
    }
    many.users.pools = 0
    rankings._rank(tmp_path, rankings.EVALUATED, "text", store=many.store, **makers)
    assert many.users.pools == len(Moments(many.store, 8).all)
    ids = [example.id for example in many.store.examples()]
    lines = (tmp_path / "rankings.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == ids


@pytest.mark.filterwarnings("default")  # ScaNN's own
def test_scann_finds_nearly_the_same_users(tmp_path):
    pytest.importorskip("scann")
    crowd = [ask(f"{i}", history(f"{i}", i % D, [None] * (1 + i % 3)), None) for i in range(400)]
    world = resources(tmp_path, crowd)
    exact, approximate = (found(world, crowd[:50], m=6, index=kind) for kind in ("exact", "scann"))
    same = [len({*one} & {*two}) / 6 for one, two in zip(exact, approximate, strict=True)]
    assert sum(same) / len(same) > 0.9


def test_random_others_depend_on_seed_and_question_alone(tmp_path, circle):
    world = resources(tmp_path, circle)
    one = found(world, circle, method="random")
    assert one == found(world, circle, method="random")
    assert one[0] == found(world, circle[:1], method="random")[0]
    assert all(len(set(names)) == 3 and names[0] == e.user_id for names, e in zip(one, circle))
    assert len({tuple(names[1:]) for names in one}) > 2


def test_random_others_have_something_to_lend(tmp_path, circle):
    """As in cohorts, nobody is drawn who has written nothing, or nothing yet."""
    silent = [ask(f"s{i}", (), None) for i in range(9)]
    late = [ask(f"l{i}", history(f"l{i}", 0, [200.0]), 300.0) for i in range(9)]
    world = resources(tmp_path, [*circle, *silent, *late])
    for names in found(world, circle, method="random", own=False):
        assert len(set(names)) == 3
        assert {name[0] for name in names} <= {"a", "b"}
    assert len(found(world, circle[:1], method="random", own=False, m=99)[0]) == 5


def test_without_the_own_history_all_of_them_are_others(tmp_path, circle):
    world = resources(tmp_path, circle)
    for example, names in zip(circle, found(world, circle, method="random", own=False), strict=True):
        assert len(set(names)) == 3
        assert example.user_id not in names
    everybody = found(world, circle, method="random", own=False, m=99)
    assert {len(names) for names in everybody} == {len(circle) - 1}


def test_histories_reach_the_encoder_oldest_first(tmp_path):
    seen = []

    def spy(histories, embeddings):
        seen.extend(rows.tolist() for rows in histories)
        return users.mean(histories, embeddings)

    mixed = history("u", 0, [9.0, 1.0, None, 5.0])
    world = resources(tmp_path, [ask("u", mixed)], spy)
    world.users.asking(list(world.store.examples()))
    assert seen == [[2, 1, 3, 0]]


@pytest.mark.long
def test_the_transformer_encodes_known_and_unknown_users_alike(tmp_path, circle):
    model = UserTransformerConfig(width=D, max_documents=4)
    params = user_transformer(model).init(jax.random.key(0))
    world = resources(tmp_path, circle, users.transformer(params, model))
    new = Example("new", "a1", "q", "in", None)  # not stored: the whole history
    np.testing.assert_allclose(world.users.asking([new])[0], world.users.asking(circle)[1], rtol=1e-5)
    assert world.users.asking([]).shape == (0, D)
    assert world.users.at(None).shape == (6, D)


@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(2, 5))
@settings(max_examples=25, deadline=None)
def test_a_matched_user_has_as_many_documents_of_the_closest_length(seed: int, most: int, users: int) -> None:
    """Against brute force: with at most 16 others, all of them are candidates."""
    draw = np.random.default_rng(seed)
    histories = {
        f"u{u}": [f"{u} " + "x" * int(draw.integers(1, 400)) for _ in range(int(draw.integers(0, 8)))]
        for u in range(users)
    }
    asked = [
        ask(user, tuple(Document(f"{user}{i}", user, text) for i, text in enumerate(texts)), None)
        for user, texts in histories.items()
    ]
    with TemporaryDirectory() as folder:
        build(Path(folder) / "store.sqlite", asked)
        with closing(Store(Path(folder) / "store.sqlite")) as store:
            slot = Random(m=1, own=False, matched=True).slot(Tally(), store=store, seed=0, most=most)
            chosen = [[one.user_id for one in of] for of in slot(asked)]

    def far(user: str, other: str) -> tuple[int, float]:
        counts = [min(most, len(histories[name])) for name in (user, other)]
        lengths = [np.log(np.mean([*map(len, histories[name])] or [0]) + 1) for name in (user, other)]
        return abs(counts[0] - counts[1]), abs(lengths[0] - lengths[1])

    for example, names in zip(asked, chosen, strict=True):
        user = example.user_id
        others = [name for name in histories if name != user and histories[name]]
        assert len(names) == min(1, len(others))
        for name in names:
            assert name != user
            assert far(user, name) == min(far(user, other) for other in others)


def test_alone_no_vectors_of_users_are_asked_for():
    def needs(m: int) -> set[str]:
        config = Config(collaboration="text", retrieve=BM25(), neighbours=Mean(m=m))
        return set(Plan(config).ranked.needs["neighbours"].needs)

    assert needs(1) == {"store"}
    assert needs(2) == {"store", "users"}


def test_other_users_need_collaboration_by_text():
    for policy in ("none", "signals"):
        with pytest.raises(UserError, match="other users' documents would enter prompts"):
            Config(collaboration=policy, neighbours=Mean(m=2))  # type: ignore[arg-type]
    Config(neighbours=Mean(m=1))
    with pytest.raises(UserError, match=r"documents would enter prompts.*take another method"):
        Config(neighbours=Random(m=1, own=False))
