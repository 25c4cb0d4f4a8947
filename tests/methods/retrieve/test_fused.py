"""Fusion against sums in plain numbers, and its weights against a search of the whole simplex."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import check_grad

from pbr_jax.base.types import Document, Example, UserError
from pbr_jax.config import Config
from pbr_jax.corpus.store import Store, build
from pbr_jax.experiment.plan import Plan
from pbr_jax.graph import Bound
from pbr_jax.methods.retrieve import BM25, Dense, Fused, Recency
from pbr_jax.methods.retrieve.fused import fit, loss_of
from pbr_jax.options import Retrieve, key_of
from pbr_jax.pipeline import Neighbour, Query, Ranking, RetrieveSlot, Tally
from pbr_jax.stages.scores import standardised
from pbr_jax.stages.search import Scored, candidates


@dataclass(frozen=True, kw_only=True)
class Given(Retrieve):
    """Scores that a document's text holds, the column-th word; "-" is not found."""

    method: Literal["given"] = "given"
    column: int = 0

    def slot(self, tally: Tally, *, store: Store) -> RetrieveSlot:
        def retrieve(
            examples: Sequence[Example], queries: Sequence[Query], users: Sequence[Sequence[Neighbour]]
        ) -> list[Ranking]:
            found = []
            for example, neighbours in zip(examples, users, strict=True):
                ranking: Ranking = []
                for user in neighbours:
                    rows = store.visible(example, user.user_id)
                    words = [text.split()[self.column] for _, text in store.texts(rows)]
                    there = [(float(w), r) for w, r in zip(words, rows, strict=True) if w != "-"]
                    best = sorted(there, key=lambda pair: -pair[0])[: self.k]
                    ranking += candidates(
                        store,
                        np.array([row for _, row in best], np.int64),
                        np.array([score for score, _ in best]) * user.weight,
                    )
                found.append(ranking)
            return found

        return retrieve


def world(folder: Path, histories: dict[str, list[str]], shared: Sequence[str] = ()) -> Store:
    folder.mkdir(exist_ok=True)
    made = [
        Example(f"q{u}", u, "q", "q", "t", tuple(Document(f"{u}{i}", u, t) for i, t in enumerate(texts)))
        for u, texts in histories.items()
    ]
    passages = {"x": (Document(f"s{i}", "", text, shared=True) for i, text in enumerate(shared))}
    build(folder / "store.sqlite", made, shared=passages if shared else {})
    return Store(folder / "store.sqlite")


def ranked(store: Store, options: Fused, users: list[Neighbour], **values: Any) -> list[Ranking]:
    parts = {f"of.{name}": Bound(part, {"store": store}) for name, part in options.parts.items()}
    examples = list(store.examples())
    queries, neighbours = [Query(("q",))] * len(examples), [users] * len(examples)
    return options.slot(Tally(), store=store, **parts, **values)(examples, queries, neighbours)


TWO = (Given(column=0), Given(column=1))
NUMBERS = [(3.0, 1.0), (1.0, 9.0), (2.0, 9.0), (-4.0, 0.5), (0.0, 2.0)]
TEXTS = [f"{a} {b}" for a, b in NUMBERS]


def test_the_sum_of_standardised_scores_is_what_numpy_says(tmp_path: Path):
    store = world(tmp_path, {"a": TEXTS})
    (found,) = ranked(store, Fused(of=TWO, k=3), [Neighbour("a")])
    table = np.array(NUMBERS)
    wanted = ((table - table.mean(0)) / table.std(0)).sum(1)
    order = np.argsort(-wanted)[:3]
    assert [c.document.id for c in found] == [f"a{i}" for i in order]
    np.testing.assert_allclose([c.score for c in found], wanted[order], rtol=1e-12)
    assert [c.scores for c in found] == [dict(zip(("given", "given_2"), NUMBERS[i])) for i in order]
    assert [c.row for c in found] == [int(store.history("a")[i]) for i in order]


def test_reciprocal_ranks_are_those_of_the_paper_and_equal_scores_share_a_rank(tmp_path: Path):
    store = world(tmp_path, {"a": TEXTS})
    (found,) = ranked(store, Fused(of=TWO, k=9, how="reciprocal_ranks"), [Neighbour("a")])
    ranks = [(1, 4), (3, 1), (2, 1), (5, 5), (4, 3)]
    wanted = {f"a{i}": 1 / (60 + a) + 1 / (60 + b) for i, (a, b) in enumerate(ranks)}
    assert {c.document.id: c.score for c in found} == pytest.approx(wanted)
    (near,) = ranked(store, Fused(of=TWO, how="reciprocal_ranks", rank_constant=0), [Neighbour("a")])
    assert near[0].score == pytest.approx(1 / 2 + 1)


def test_users_share_one_scale_weights_count_once_and_each_gives_its_best(tmp_path: Path):
    store = world(tmp_path, {"a": TEXTS[:3], "b": ["5 5", "4 -1"]})
    users = [Neighbour("b", 0.5), Neighbour("a")]
    found = ranked(store, Fused(of=TWO, k=2), users)[0]
    table = np.array([*NUMBERS[:3], (2.5, 2.5), (2.0, -0.5)])
    names: list[str] = ["a0", "a1", "a2", "b0", "b1"]
    wanted = dict(zip(names, ((table - table.mean(0)) / table.std(0)).sum(1)))
    best = [
        *sorted(("b0", "b1"), key=lambda n: -wanted[n]),
        *sorted(("a0", "a1", "a2"), key=lambda n: -wanted[n])[:2],
    ]
    assert [c.document.id for c in found] == best
    assert [c.score for c in found] == pytest.approx([wanted[name] for name in best])


def test_what_a_part_did_not_find_has_its_lowest_score(tmp_path: Path):
    store = world(tmp_path, {"a": ["3 1", "1 -", "- 7", "2 5"]})
    (found,) = ranked(store, Fused(of=TWO, k=9), [Neighbour("a")])
    table = np.array([(3, 1), (1, 1), (1, 7), (2, 5)])
    wanted = ((table - table.mean(0)) / table.std(0)).sum(1)
    assert {c.document.id: c.score for c in found} == pytest.approx(
        {f"a{i}": s for i, s in enumerate(wanted)}
    )
    (cut,) = ranked(store, Fused(of=TWO, k=2, depth=2), [Neighbour("a")])
    assert {c.document.id for c in cut} <= {"a0", "a2", "a3"}  # a1 is the third of one part alone


def test_reciprocal_ranks_add_nothing_for_a_part_that_did_not_find_the_document(tmp_path: Path):
    store = world(tmp_path, {"a": ["3 1", "1 -", "- 7", "2 5"]})
    (found,) = ranked(store, Fused(of=TWO, k=9, how="reciprocal_ranks"), [Neighbour("a")])
    ranks = {"a0": (1, 3), "a1": (3,), "a2": (1,), "a3": (2, 2)}
    wanted = {name: sum(1 / (60 + rank) for rank in of) for name, of in ranks.items()}
    assert {c.document.id: c.score for c in found} == pytest.approx(wanted)
    assert [c.document.id for c in found] == ["a0", "a3", "a2", "a1"]


def test_of_shared_documents_each_part_gives_a_hundred(tmp_path: Path):
    shared = {f"s{i}": (float(i), float(7 * i % 240)) for i in range(240)}
    store = world(tmp_path, {"a": TEXTS}, [f"{a} {b}" for a, b in shared.values()])
    (found,) = ranked(store, Fused(of=TWO, k=100), [Neighbour("a"), Neighbour("")])
    best = {name: pair for name, pair in shared.items() if max(pair) >= 140}
    low = np.min([*NUMBERS, (140, 140)], 0)  # each part's own, of all users
    table = np.array(
        [*NUMBERS, *([x if x >= 140 else least for x, least in zip(p, low)] for p in best.values())]
    )
    wanted = dict(zip(best, ((table - table.mean(0)) / table.std(0)).sum(1)[len(NUMBERS) :], strict=True))
    assert len(best) > 100
    there = {c.document.id: c.score for c in found if c.document.shared}
    assert there == pytest.approx({n: wanted[n] for n in sorted(best, key=lambda n: -wanted[n])[:100]})
    assert sum(not c.document.shared for c in found) == 5


def test_equal_scores_say_nothing_and_nothing_found_is_no_error(tmp_path: Path):
    store = world(tmp_path, {"a": ["0.1 2", "0.1 1", "0.1 3"], "b": ["- -"], "c": []})
    found, none, empty = (ranked(store, Fused(of=TWO), [Neighbour(u)])[i] for i, u in enumerate("abc"))
    assert [c.document.id for c in found] == ["a2", "a0", "a1"]
    assert none == empty == []
    half = ranked(world(tmp_path / "half", {"a": ["1 -", "2 -"]}), Fused(of=TWO), [Neighbour("a")])[0]
    assert [c.scores for c in half] == [{"given": 2.0, "given_2": 0.0}, {"given": 1.0, "given_2": 0.0}]
    for how in ("standardised", "reciprocal_ranks"):
        one = ranked(store, Fused(of=(Given(column=1),), how=how), [Neighbour("a")])[0]
        assert [c.document.id for c in one] == ["a2", "a0", "a1"]


def test_parts_that_give_rows_and_parts_that_give_documents_are_fused_alike(tmp_path: Path):
    store = world(tmp_path, {"a": ["red tea", "green", "red red wine"], "b": ["tea", "red"]})
    users, examples = [[Neighbour("b", 0.5), Neighbour("a")]] * 2, list(store.examples())
    queries = [Query(("red tea",)), Query(("wine",))]
    parts = {"bm25": BM25(k=2).slot(Tally(), store=store), "recency": Recency(k=9).slot(Tally(), store=store)}
    plain: Any = {name: lambda *asked, part=part: part(*asked) for name, part in parts.items()}
    fused = [Fused(k=2).together(some, [1.0, 0.3], store) for some in (parts, plain)]
    by_rows, by_documents = (slot(examples, queries, users) for slot in fused)
    assert by_rows == by_documents
    assert [len(ranking) for ranking in by_rows] == [4, 4]


class InMemory(NamedTuple):
    """The passages of user a's documents, by rows: what fusion asks of a store."""

    firsts: np.ndarray
    ids: list[str]

    @classmethod
    def of(cls, sizes: Iterable[int]) -> "InMemory":
        """Of documents with so many passages each."""
        pairs = [(name, i) for name, size in enumerate(sizes) for i in range(size)]
        rows = {pair: row for row, pair in enumerate(pairs)}
        return cls(np.array([rows[name, 0] for name, _ in pairs]), [f"{name}.{i}" for name, i in pairs])

    @property
    def owners(self) -> np.ndarray:
        return np.zeros(len(self.ids), int)

    def code(self, user: str) -> int:
        return 0

    def documents(self, rows: Iterable[int]) -> list[Document]:
        return [Document(id := self.ids[row], "a", "", part_of=id.split(".")[0]) for row in rows]


def fused_of(options: Fused, table: list[list[tuple[int, ...]]]) -> Ranking:
    """What is found of documents whose passages have these scores by the parts."""
    store: Any = InMemory.of(map(len, table))
    flat = np.array([scores for passages in table for scores in passages])
    rows = np.arange(len(flat))
    parts = {name: Scored(rows, column) for name, column in zip(options.parts, flat.T, strict=True)}
    return options.one(parts, [Neighbour("a")], options.weights or (1.0,) * len(parts), store, True)


def test_passages_are_pooled_in_each_part_and_the_best_by_all_is_shown():
    table = [[(3, 5), (1, 5), (9, 5)], [(4, 2)], [(0, 7), (2, 7)]]  # two are alike in the second part
    found = fused_of(Fused(of=TWO), table)
    best = np.array([np.max(passages, axis=0) for passages in table])
    wanted = ((best - best.mean(0)) / best.std(0)).sum(1)
    assert {c.document.whole: c.score for c in found} == pytest.approx(dict(zip("012", wanted)))
    assert {c.document.id for c in found} == {"0.2", "1.0", "2.1"}
    assert [c.scores["given"] for c in sorted(found, key=lambda c: c.row)] == pytest.approx(best[:, 0])


def test_learned_weights_multiply_the_parts(tmp_path: Path):
    store = world(tmp_path, {"a": TEXTS})
    options = Fused(of=TWO, how="weighted", k=9)
    (found,) = ranked(store, options, [Neighbour("a")], weights={"given": 0.25, "given_2": 0.75})
    table = np.array(NUMBERS)
    wanted = (table - table.mean(0)) / table.std(0) @ (0.25, 0.75)
    assert {c.document.id: c.score for c in found} == pytest.approx(
        {f"a{i}": s for i, s in enumerate(wanted)}
    )


@given(
    st.lists(
        st.lists(st.tuples(*[st.integers(-50, 50)] * 3), min_size=1, max_size=4), min_size=2, max_size=6
    ),
    st.tuples(*[st.floats(-3, 3)] * 3).filter(any),
)
def test_given_weights_multiply_the_standardised_scores_of_documents(of_documents, weights):
    """One part of whole documents, whose passages score alike, beside two of passages."""
    table = [[(parts[0][0], *passage[1:]) for passage in parts] for parts in of_documents]
    three = (Given(column=0), Given(column=1), Given(column=2))
    found = fused_of(Fused(of=three, weights=weights, k=9), table)
    best = np.array([np.max(scores, axis=0) for scores in table], float)
    deviation = best.std(0)
    wanted = (best - best.mean(0)) / np.where(deviation > 1e-9, deviation, np.inf) @ weights
    assert {c.document.whole: c.score for c in found} == pytest.approx(
        {str(i): s for i, s in enumerate(wanted)}, abs=1e-9
    )


def test_weights_are_of_the_parts_in_their_order(tmp_path: Path):
    store = world(tmp_path, {"a": TEXTS})
    (found,) = ranked(store, Fused(of=TWO, weights=(1.0, -2.5), k=9), [Neighbour("a")])
    table = np.array(NUMBERS)
    wanted = (table - table.mean(0)) / table.std(0) @ (1.0, -2.5)
    assert {c.document.id: c.score for c in found} == pytest.approx(
        {f"a{i}": s for i, s in enumerate(wanted)}
    )
    with pytest.raises(UserError, match=r"weights has 1 numbers, want .* the 2 retrievers .*bm25 dense"):
        Plan(Config(retrieve=Fused(weights=(1.0,))))
    with pytest.raises(UserError, match=r"retrieve\.how weighted fits them"):
        Fused(weights=(1.0, 2.0), how="weighted")
    with pytest.raises(UserError, match=r"retrieve\.weights is 0 for every retriever, want .*; set one"):
        Fused(weights=(0.0, -0.0))
    before = key_of(Fused())
    assert "weights" not in before
    assert key_of(Fused(weights=(1.0, 2.0))) == {**before, "weights": [1.0, 2.0]}


def test_many_questions_are_ranked_as_each_alone(tmp_path: Path):
    draw = np.random.default_rng(0)
    texts = {f"u{i}": [f"{a} {b}" for a, b in draw.normal(size=(i % 5, 2))] for i in range(130)}
    store = world(tmp_path, texts)
    together = Fused(of=TWO, k=3)
    parts: Any = {f"of.{name}": Bound(part, {"store": store}) for name, part in together.parts.items()}
    slot, examples = together.slot(Tally(), store=store, **parts), list(store.examples())
    users = [[Neighbour(example.user_id)] for example in examples]
    found = slot(examples, [Query(("q",))] * 130, users)
    for example, own, ranking in zip(examples, users, found, strict=True):
        assert slot([example], [Query(("q",))], [own]) == [ranking]


SCORES = st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=6)


@given(SCORES, st.floats(0.01, 100), st.floats(-100, 100))
def test_standardised_scores_forget_scale_and_offset(scores: list[float], scale: float, offset: float):
    found = standardised(np.array([scores]))
    assert abs(found.sum()) < 1e-6
    if np.ptp(scores) > 1e-3:
        assert found.std() == pytest.approx(1)
        np.testing.assert_allclose(standardised(scale * np.array([scores]) + offset), found, atol=1e-5)


# -- the fit ---------------------------------------------------------------------------------------


def lessons(seed: int, parts: int, questions: int = 40) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Questions of several sizes; the first part says most of what is wanted, the last nothing."""
    draw = np.random.default_rng(seed)
    scores, targets = [], []
    for _ in range(questions):
        count = int(draw.integers(2, 9))
        worth = draw.normal(size=count)
        noise = np.linspace(0.5, 4, parts)[:, None] * draw.normal(size=(parts, count))
        scores.append(standardised(worth + noise))
        target = np.exp(2 * worth)
        targets.append(target / target.sum())
    return scores, targets


def mean_loss(theta: np.ndarray, scores: list[np.ndarray], targets: list[np.ndarray]) -> float:
    """The loss in plain numbers."""
    total = 0.0
    for z, y in zip(scores, targets, strict=True):
        p = np.exp(theta @ z)
        total -= float(y @ np.log(p / p.sum()))
    return total / len(scores)


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_the_fit_is_the_minimum_over_a_grid_of_the_simplex_and_of_beta(parts: int):
    scores, targets = lessons(parts, parts)
    found = fit(scores, targets, 1e-9)
    best = found.beta * found.weights
    assert found.weights.sum() == pytest.approx(1)
    assert found.loss == pytest.approx(mean_loss(best, scores, targets), abs=1e-8)
    grid = [np.array(p) for p in itertools.product(np.linspace(0, 2, 15), repeat=parts)]
    assert found.loss <= min(mean_loss(theta, scores, targets) for theta in grid) + 1e-9
    near = np.random.default_rng(0).normal(scale=1e-2, size=(50, parts))
    assert all(found.loss <= mean_loss(np.maximum(best + d, 0), scores, targets) + 1e-9 for d in near)
    assert all(np.diff(found.weights) < 0) or parts == 1  # the better part has more


def test_the_slope_is_that_of_the_loss():
    scores, targets = lessons(5, 3)
    loss = loss_of(scores, targets, 0.1)
    at = np.array([0.3, 0.7, 1.2])
    assert loss(at)[0] == pytest.approx(mean_loss(at, scores, targets) + 0.05 * at @ at)
    assert check_grad(lambda t: loss(t)[0], lambda t: loss(t)[1], at) < 1e-6


def test_a_part_that_misleads_gets_nothing_and_parts_that_know_nothing_are_alike():
    scores, targets = lessons(3, 2)
    wrong = [np.stack([z[0], -z[0]]) for z in scores]
    assert fit(wrong, targets, 1e-6).weights == pytest.approx([1, 0], abs=1e-6)
    nothing = fit([np.zeros((3, 4))], [np.full(4, 0.25)], 1e-4)
    assert nothing.weights == pytest.approx([1 / 3] * 3)
    assert nothing.beta == pytest.approx(0, abs=1e-6)
    apart = fit(
        [np.array([[1.0, -1.0], [1.0, -1.0]])], [np.array([1.0, 0.0])], 1e-4
    )  # no minimum without ridge
    assert apart.weights == pytest.approx([0.5, 0.5])
    assert np.isfinite(apart.beta)


def test_what_a_fusion_looks_at_is_what_its_parts_look_at():
    assert Fused().learns() == "unused"
    assert Fused(how="weighted").learns() == "needed"
    assert not Fused(of=(BM25(), Dense())).ceiling
