"""The documents of the prompt: order, reranking, and how many come from whom."""

import importlib
import inspect
import pkgutil
from dataclasses import replace
from typing import Any, Literal, get_origin

import numpy as np
import pytest

from pbr_jax import methods
from pbr_jax.base.types import Candidate, Document, Example, UserError
from pbr_jax.methods import select
from pbr_jax.options import Method, Select, hints
from pbr_jax.pipeline import Query, Tally
from pbr_jax.stages.reranking import Reranker

ASKED = Example("q", "me", "tea and cats", "in", "t")


def ranking(*owners: str, texts: dict[int, str] | None = None) -> list[Candidate]:
    """Candidates of these users, best first."""
    return [
        Candidate(Document(str(i), owner, (texts or {}).get(i, f"text {i}")), -float(i), i)
        for i, owner in enumerate(owners)
    ]


class Fixed(Reranker):
    """A cross-encoder that has made up its mind."""

    def __init__(self) -> None:
        self.seen = []

    def scores(self, examples, pairs):
        self.seen.append((examples, pairs))
        return [np.array([0.1, 0.9, 0.5], np.float32)]


def chosen(
    candidates: list[Candidate], method: type[Select] = select.TopK, needs: Any = None, **options
) -> list[int]:
    slot = method(**options).slot(Tally(), **(needs or {}))
    return [c.row for c in slot([ASKED], [Query((ASKED.query,))], [candidates])[0]]


def test_top_k_orders_by_score_and_keeps_ties():
    shuffled = [Candidate(Document("x", "me", ""), s, i) for i, s in enumerate([1.0, 3.0, 1.0, 2.0])]
    assert chosen(shuffled) == [1, 3, 0, 2]
    assert chosen([]) == []


@pytest.mark.parametrize(("own", "wanted"), [(0, [1, 2, 4]), (1, [0, 1, 2]), (2, [0, 1, 3]), (3, [0, 1, 3])])
def test_so_many_of_the_first_k_are_the_users_own(own: int, wanted: list[int]):
    """The user has two documents; what is missing others fill."""
    found = chosen(ranking("me", "a", "b", "me", "a"), k=3, own=own)
    assert found[:3] == wanted
    assert sorted(found) == [0, 1, 2, 3, 4]
    assert found[3:] == sorted(found[3:])


def test_own_documents_fill_what_others_lack():
    assert chosen(ranking("me", "me", "me", "a"), k=3, own=1)[:3] == [0, 1, 3]
    assert chosen(ranking("me", "me"), k=3, own=0) == [0, 1]


def test_own_must_fit_into_k():
    options: Any
    for options in ({"own": 3, "k": 2}, {"own": 1}):
        with pytest.raises(UserError, match="want own at most k"):
            select.TopK(**options)


def test_bm25_reranks_by_the_querys_words():
    candidates = ranking("a", "b", "me", "c", "d", "e", texts={2: "cats drink tea", 3: "cats are here"})
    for method in (select.BM25, select.BM25Lamp):
        assert chosen(candidates, method)[:2] == [2, 3]
    candidates[3] = replace(candidates[3], document=replace(candidates[3].document, text="Cats!"))
    assert set(chosen(candidates, select.BM25)[:2]) == {2, 3}
    assert chosen(candidates, select.BM25Lamp)[:2] == [2, 0]


def test_a_cross_encoder_scores_query_and_document_together():
    judge = Fixed()
    assert chosen(ranking("a", "me", "b"), select.CrossEncoder, {"reranker": judge}) == [1, 2, 0]
    ((examples, pairs),) = judge.seen
    assert examples == [ASKED]
    assert pairs == [[(ASKED.query, f"text {i}") for i in range(3)]]


def test_what_leaves_something_undefined_cannot_be_made_and_what_has_a_name_can():
    for module in pkgutil.walk_packages(methods.__path__, "pbr_jax.methods."):
        importlib.import_module(module.name)
    classes = [cls for cls in _below(Method) if cls.__module__.startswith("pbr_jax.")]
    abstract = {cls.__name__: cls for cls in classes if inspect.isabstract(cls)}
    assert {"ByScore", "Judging", "Behind", "Distilled", "TokenLevelGenerate"} <= abstract.keys()
    for cls in abstract.values():
        assert get_origin(hints(cls)["method"]) is not Literal, cls
        with pytest.raises(TypeError, match="abstract"):
            cls(method="mine")


def _below(cls: type) -> set[type]:
    return {cls}.union(*map(_below, cls.__subclasses__())) - {Method}
