"""Expansions from the query alone: what is searched for, and what becomes of answers that cannot be read."""

from dataclasses import replace

import numpy as np
import pytest
from small_world import Scripted, vector

from pbr_jax.config import Config, override
from pbr_jax.llm import Sampling
from pbr_jax.options import Expand
from pbr_jax.pipeline import Query

QUERY = "which tea do i like"
PASSAGE = "You like green tea."


def config(method: str, **fields: object) -> Expand:
    return override(
        Config(), {"expand.method": method, **{f"expand.{k}": v for k, v in fields.items()}}
    ).expand


def expanded(slot, method: str, world, examples, answer: str, dense: bool = True) -> list[Query]:
    resources = world(Scripted(lambda prompt: answer), dense)
    queries = slot(config(method), resources)(examples)
    assert resources.tally.counts["expand_answers"] == len(examples)
    return queries


def test_hyde_averages_query_and_passage(slot, world, examples):
    for query in expanded(slot, "hyde", world, examples, PASSAGE):
        assert query.texts == (QUERY,) * 5 + (PASSAGE,)
        assert query.vector is not None
        np.testing.assert_allclose(query.vector, (vector(QUERY) + vector(PASSAGE)) / 2, rtol=1e-6)


@pytest.mark.parametrize(
    ("method", "answer", "added"),
    [
        ("query2doc", PASSAGE, (PASSAGE,)),
        ("cot", "First, tea is a drink.\nSo green.", ("First, tea is a drink.\nSo green.",)),
        ("query2term", '["green tea", "taste"]', ("green tea", "taste")),
        ("query2term", "['green tea', 'taste']", ("green tea", "taste")),
        ("query2term", "1. green tea\n2. taste", ("green tea", "taste")),
        ("query2term", "green tea, taste, my morning", ("green tea, taste, my morning",)),
    ],
)
def test_what_is_appended_shares_a_vector_with_the_query(slot, world, examples, method, answer, added):
    for query in expanded(slot, method, world, examples, answer):
        assert query.texts == (QUERY,) * 5 + added
        assert query.vector is not None
        np.testing.assert_array_equal(query.vector, vector(" ".join((QUERY, *added))))


def test_query2terms_rationale_is_taken_whole(slot, world, examples):
    llm = Scripted(lambda prompt: "1. Tea is a drink.\n2. So green.")
    found = slot(config("query2term", form="rationale"), world(llm))(examples[:1])[0]
    assert found.texts == (QUERY,) * 5 + ("1. Tea is a drink.\n2. So green.",)
    keywords = Scripted(lambda prompt: "tea")
    slot(config("query2term"), world(keywords))(examples[:1])
    assert "Answer" in llm.prompts[0]
    assert "Answer" not in keywords.prompts[0]


def test_keywords_that_the_limit_cut_off_are_left_out(slot, world, examples):
    llm = Scripted(lambda prompt: "1. green tea\n2. black tea\n3. mor")
    found = slot(config("query2term", max_new_tokens=8), world(llm))(examples[:1])[0]
    assert found.texts[5:] == ("green tea", "black tea")


def test_a_rewrite_takes_the_querys_place(slot, world, examples):
    for query in expanded(slot, "rewrite", world, examples, 'Query: "favourite tea"\nbecause'):
        assert query.texts == ("favourite tea",)
        assert query.vector is not None
        np.testing.assert_array_equal(query.vector, vector("favourite tea"))


@pytest.mark.parametrize(
    ("method", "answer"),
    [("hyde", ""), ("query2doc", "<think>well"), ("query2term", "  "), ("cot", " \n"), ("rewrite", '""')],
)
def test_an_unreadable_answer_leaves_the_query_and_is_counted(slot, world, examples, method, answer):
    resources = world(Scripted(lambda prompt: answer))
    found = slot(config(method), resources)(examples)
    counts = resources.tally.counts
    assert counts["expand_parse_failures"] == counts["expand_fallbacks"] == len(examples)
    kinds = {"query2term": "keywords", "cot": "reasoning", "rewrite": "rewrites"}
    assert counts[f"expand_failures_{kinds.get(method, 'passages')}"] == len(examples)
    for query in found:
        assert query.texts == (QUERY,)
        assert query.vector is not None
        np.testing.assert_allclose(query.vector, vector(QUERY), rtol=1e-6)


def test_one_unreadable_answer_does_not_touch_the_others(slot, world, examples):
    answers = iter([PASSAGE, "", PASSAGE, PASSAGE])
    resources = world(Scripted(lambda prompt: next(answers)))
    found = slot(config("hyde"), resources)(examples)
    assert [len(query.texts) for query in found] == [6, 1, 6, 6]
    assert resources.tally.counts["expand_parse_failures"] == 1


@pytest.mark.parametrize("method", ["hyde", "query2doc", "query2term", "cot", "rewrite"])
def test_without_an_encoder_word_retrievers_still_get_their_texts(slot, world, examples, method):
    for query in expanded(slot, method, world, examples, '["green tea"]', dense=False):
        assert query.vector is None
        assert any("green tea" in text for text in query.texts)


def test_the_model_is_asked_as_the_config_says_and_its_tokens_are_counted(slot, world, examples):
    llm = Scripted(lambda prompt: PASSAGE)
    resources = world(llm)
    slot(config("hyde", max_new_tokens=7), resources)(examples)
    assert llm.samplings == [Sampling(7)]  # greedy: no seed matters
    assert all(QUERY in prompt for prompt in llm.prompts)
    counts = resources.tally.counts
    assert counts["expand_answer_tokens"] == 4 * 4
    assert counts["expand_prompt_tokens"] == sum(len(prompt.split()) for prompt in llm.prompts)
    assert resources.tally.seconds["expand_llm"] >= 0


def test_a_query_with_braces_stands_in_the_prompt_as_it_is(slot, world, examples):
    llm = Scripted(lambda prompt: PASSAGE)
    odd = replace(examples[0], query="what is {m} in {documents}?")
    for method in ("hyde", "thinkqe", "rafe", "mill", "pbr"):
        llm.scored = lambda prompt, target: 0.0
        slot(config(method), world(llm))([odd])
        assert "what is {m} in {documents}?" in " ".join(llm.prompts)
        llm.prompts.clear()
