"""Expansions that look at the history: what the model is shown, and what is kept of what it writes."""

import json

import numpy as np
import pytest
from small_world import HISTORIES, Scripted, vector

from pbr_jax.config import Config, override
from pbr_jax.options import Expand
from pbr_jax.pipeline import Query

QUERY = "which tea do i like"


def config(method: str, **fields: object) -> Expand:
    changes = {f"expand.{name}": value for name, value in fields.items()}
    return override(Config(), {"expand.method": method, **changes}).expand


def nearest(user: str, query: np.ndarray, k: int) -> list[str]:
    return sorted(HISTORIES[user], key=lambda text: -float(vector(text) @ query))[:k]


def mean(*texts: str) -> np.ndarray:
    return np.mean([vector(text) for text in texts], axis=0)


def vector_of(query: Query) -> np.ndarray:
    assert query.vector is not None
    return query.vector


@pytest.mark.parametrize("method", ["mill", "thinkqe", "rafe", "pbr"])
def test_a_prompt_shows_only_the_asking_users_own_history(slot, world, examples, method):
    llm = Scripted(lambda prompt: '["tea please"]', lambda prompt, target: 0.0)
    expand = slot(config(method), world(llm))
    expand([example for example in examples if example.user_id != "bob"])
    assert llm.prompts
    assert not any("canary" in prompt for prompt in llm.prompts)


PASSAGES = ("green tea in the morning", "dogs", "tea at noon", "zzz", "bergen")


def test_mill_the_half_that_agrees_with_the_others_is_kept(slot, world, examples):
    llm = Scripted(lambda prompt: json.dumps(PASSAGES))
    (found, *_) = slot(config("mill", k1=3), world(llm))(examples)
    documents = nearest("ann", vector(QUERY), 3)
    agreement = np.array([[vector(p) @ vector(d) for d in documents] for p in PASSAGES])
    passages = [PASSAGES[i] for i in sorted(np.argsort(-agreement.sum(1))[:3])]
    kept = [documents[i] for i in sorted(np.argsort(-agreement.sum(0))[:2])]
    assert found.texts == (QUERY,) * 5 + (*passages, *kept)
    np.testing.assert_allclose(vector_of(found), mean(QUERY, *passages, *kept), rtol=1e-5)


def test_mill_no_more_passages_count_than_were_asked_for(slot, world, examples):
    llm = Scripted(lambda prompt: json.dumps(PASSAGES))
    found = slot(config("mill", m=2), world(llm))(examples)[2]  # no history: all are kept
    assert found.texts == (QUERY,) * 5 + PASSAGES[:2]
    assert "2 narrower" in llm.prompts[0]


def test_mill_an_answer_that_is_no_list_is_one_passage(slot, world, examples):
    resources = world(Scripted(lambda prompt: "green tea in the morning"))
    ann, _, cyd, _ = slot(config("mill", k1=1), resources)(examples)
    assert ann.texts == (QUERY,) * 5 + ("green tea in the morning", nearest("ann", vector(QUERY), 1)[0])
    assert cyd.texts == (QUERY,) * 5 + ("green tea in the morning",)
    assert resources.tally.counts["expand_parse_failures"] == 0


def test_mill_an_empty_answer_leaves_the_query(slot, world, examples):
    resources = world(Scripted(lambda prompt: " "))
    found = slot(config("mill"), resources)(examples)
    assert [query.texts for query in found] == [(QUERY,)] * 4
    assert resources.tally.counts["expand_failures_passages"] == 4


def test_thinkqe_each_round_shows_what_no_round_has_shown(slot, world, examples):
    llm = Scripted(lambda prompt: f"passage {len(llm.prompts)}")
    found = slot(config("thinkqe", k1=2, rounds=3), world(llm))(examples[:1])[0]
    assert len(llm.prompts) == 3
    shown = [[text for text in HISTORIES["ann"] if text in prompt] for prompt in llm.prompts]
    assert [len(texts) for texts in shown] == [2, 2, 2]
    assert sorted(text for texts in shown for text in texts) == sorted(HISTORIES["ann"])
    assert set(shown[0]) == set(nearest("ann", vector(QUERY), 2))
    passages = found.texts[5:]
    assert len(passages) == 3
    np.testing.assert_allclose(vector_of(found), mean(QUERY, *passages), rtol=1e-5)


def test_thinkqe_later_rounds_look_with_the_passages_written_so_far(slot, world, examples):
    llm = Scripted(lambda prompt: "my dog my dog a walk with my dog sleeps")
    slot(config("thinkqe", k1=1, rounds=2), world(llm))(examples[:1])
    first = nearest("ann", vector(QUERY), 1)[0]
    current = mean(QUERY, "my dog my dog a walk with my dog sleeps")
    second = next(text for text in nearest("ann", current, 2) if text != first)
    assert second in llm.prompts[1]
    assert first not in llm.prompts[1]


def test_thinkqe_rounds_stop_where_nothing_new_is_left_and_no_history_asks_nothing(slot, world, examples):
    llm = Scripted(lambda prompt: "tea" if "only one note" in prompt else "x")
    found = slot(config("thinkqe", k1=5, rounds=3), world(llm))(examples[2:])
    assert [query.texts for query in found] == [(QUERY,), (QUERY,) * 5 + ("tea",)]
    assert len(llm.prompts) == 1


def test_thinkqe_an_unreadable_round_adds_nothing(slot, world, examples):
    answers = iter(["", "tea it is"])
    resources = world(Scripted(lambda prompt: next(answers)))
    found = slot(config("thinkqe", k1=2, rounds=2), resources)(examples[:1])[0]
    assert found.texts == (QUERY,) * 5 + ("tea it is",)
    assert resources.tally.counts["expand_parse_failures"] == 1


REWRITES = ("my dog", "bergen in may", "green tea in the morning")


def test_rafe_the_rewrite_is_taken_whose_documents_explain_the_query_best(slot, world, examples):
    def score(prompt: str, target: str) -> float:
        assert target == QUERY
        return -2.0 if "moved to bergen" in prompt else -9.0

    llm = Scripted(lambda prompt: json.dumps(REWRITES), score)
    found = slot(config("rafe", k1=1), world(llm))(examples[:1])[0]
    assert found.texts == ("bergen in may",)
    np.testing.assert_array_equal(vector_of(found), vector("bergen in may"))


def test_rafe_of_equals_and_without_a_history_the_query_stays(slot, world, examples):
    llm = Scripted(lambda prompt: json.dumps(REWRITES), lambda prompt, target: -3.0)
    found = slot(config("rafe"), world(llm))(examples)
    assert [query.texts for query in found] == [(QUERY,)] * 4


def test_rafe_an_unreadable_answer_leaves_the_query(slot, world, examples):
    resources = world(Scripted(lambda prompt: "hm", lambda prompt, target: -3.0))
    assert slot(config("rafe"), resources)(examples[:1])[0].texts == (QUERY,)
    assert resources.tally.counts["expand_failures_rewrites"] == 1


def test_rafe_what_is_read_to_score_rewrites_is_counted(slot, world, examples):
    llm = Scripted(lambda prompt: json.dumps(REWRITES), lambda prompt, target: -3.0)
    resources = world(llm)
    slot(config("rafe"), resources)(examples)
    assert len(llm.prompts) == 4 + 3 * 4  # nobody scores for cyd, who has no history
    read = sum(len(prompt.split()) for prompt in llm.prompts)
    assert resources.tally.counts["expand_prompt_tokens"] == read + 3 * 4 * 2  # a target has two tokens here
    assert resources.tally.counts["expand_answers"] == 4


def test_thinkqe_a_question_that_fell_back_in_two_rounds_is_one_question(slot, world, examples):
    resources = world(Scripted(lambda prompt: ""))
    slot(config("thinkqe", k1=1, rounds=3), resources)(examples[:2])
    assert resources.tally.counts["expand_failures_passages"] == 5  # bob has two documents to show
    assert resources.tally.counts["expand_fallbacks"] == 2
