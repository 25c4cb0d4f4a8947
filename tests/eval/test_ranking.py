"""Ranking metrics against brute force over alternatives, scikit-learn, and released vectors."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score

from pbr_jax.base.types import UserError
from pbr_jax.eval.ranking import combinations, parse, ranking_metric

DOCUMENTS = tuple("abcdefgh")
groups_strategy = st.lists(
    st.lists(st.sampled_from(DOCUMENTS), min_size=1, max_size=3, unique=True), min_size=1, max_size=4
)
ranking_strategy = st.lists(st.sampled_from(DOCUMENTS), max_size=8, unique=True)


def test_longmemeval_vectors():
    # Relevance at ranks 1 to 3; the second case has two relevant documents in all.
    assert ranking_metric("ndcg_longmemeval@3", ["x", "a", "y"], [["a"]]) == pytest.approx(1.0)
    assert ranking_metric("ndcg_longmemeval@3", ["a", "x", "b"], [["a"], ["b"]]) == pytest.approx(
        0.8155, abs=5e-5
    )
    assert ranking_metric("ndcg@3", ["a", "x", "b"], [["a"], ["b"]]) == pytest.approx(0.9197, abs=5e-5)
    assert ranking_metric("ndcg@3", ["x", "a", "y"], [["a"]]) == pytest.approx(0.631, abs=5e-4)
    assert ranking_metric("ndcg_longmemeval@3", ["x", "y", "a"], [["a"]]) == pytest.approx(0.631, abs=5e-4)
    assert ranking_metric("ndcg@3", ["x", "y", "a"], [["a"]]) == pytest.approx(0.5)


@settings(max_examples=60, deadline=None)
@given(ranking_strategy, groups_strategy, st.integers(1, 6))
def test_recall_and_ndcg_are_separate_maxima_over_all_choices(ranking, groups, k):
    recalls, gains = [], []
    for choice in itertools.product(*groups):
        relevance = np.array([document in choice for document in ranking[:k]], float)
        discounts = 1 / np.log2(np.arange(k) + 2)
        recalls.append(relevance.sum() / len(set(choice)))
        gains.append((relevance * discounts[: len(relevance)]).sum() / discounts[: len(set(choice))].sum())
    assert ranking_metric(f"recall@{k}", ranking, groups) == pytest.approx(max(recalls))
    assert ranking_metric(f"ndcg@{k}", ranking, groups) == pytest.approx(max(gains))


@settings(max_examples=40, deadline=None)
@given(ranking_strategy, st.sets(st.sampled_from(DOCUMENTS), min_size=1), st.integers(1, 8))
def test_single_documents_give_the_usual_metrics(ranking, relevant, k):
    everything = ranking + [document for document in DOCUMENTS if document not in ranking]
    groups = [[document] for document in sorted(relevant)]
    truth = [[float(document in relevant) for document in everything]]
    scores = [[float(-i) for i in range(len(everything))]]
    assert ranking_metric(f"ndcg@{k}", everything, groups) == pytest.approx(ndcg_score(truth, scores, k=k))
    hits = len(relevant & set(ranking[:k]))
    assert ranking_metric(f"recall@{k}", ranking, groups) == pytest.approx(hits / len(relevant))
    assert ranking_metric(f"recall_any@{k}", ranking, groups) == float(hits > 0)
    assert ranking_metric(f"recall_all@{k}", ranking, groups) == float(hits == len(relevant))


def test_any_and_all_with_alternatives():
    groups = [["a", "b"], ["c"]]
    assert [ranking_metric(f"recall_any@{k}", ["x", "b", "c"], groups) for k in (1, 2, 3)] == [0, 1, 1]
    assert [ranking_metric(f"recall_all@{k}", ["x", "b", "c"], groups) for k in (1, 2, 3)] == [0, 0, 1]


def test_a_document_ranked_twice_counts_once():
    assert ranking_metric("ndcg@3", ["a", "a", "b"], [["a"], ["b"]]) == 1.0


def test_an_empty_ranking_scores_zero():
    for family in ("recall", "ndcg", "recall_any", "recall_all", "ndcg_longmemeval"):
        assert ranking_metric(f"{family}@5", [], [["a"]]) == 0.0


@pytest.mark.parametrize("groups", [[], [["a"], []]])
@pytest.mark.parametrize("family", ["recall", "ndcg", "recall_any", "recall_all", "ndcg_longmemeval"])
def test_no_relevant_document_is_refused(family, groups):
    with pytest.raises(UserError, match="no relevant document or an empty group"):
        ranking_metric(f"{family}@5", ["a"], groups)


def test_combinations_are_sets_and_bounded():
    assert combinations([["a", "c"], ["c"]]) == {frozenset("ac"), frozenset("c")}
    with pytest.raises(UserError, match="16384 combinations"):
        combinations([["a", "b"]] * 14)


@pytest.mark.parametrize("name", ["recall", "precision@5", "recall@0", "ndcg@five"])
def test_unknown_names_are_refused(name):
    with pytest.raises(UserError, match="no ranking metric is named"):
        parse(name)
