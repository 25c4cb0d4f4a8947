"""What models write, and what is read in it."""

import pytest

from pbr_jax.methods.expand import parsing

TWO = ["I like tea.", 'She said "no".']


@pytest.mark.parametrize(
    "text",
    [
        r'["I like tea.", "She said \"no\"."]',
        r'{"candidates": ["I like tea.", "She said \"no\"."]}',
        r'{"note": 3, "candidates": ["I like tea.", "She said \"no\"."], "more": ["x"]}',
        'Sure! Here is the JSON:\n```json\n{"candidates": ["I like tea.", "She said \\"no\\"."]}\n```\nBye',
        '```\n["I like tea.", "She said \\"no\\"."]',  # the fence is not closed
        '{"candidates": ["I like tea.", "She said \\"no\\".", "And I was goi',  # cut off inside a string
        '{"candidates": ["I like tea.", "She said \\"no\\"."',  # cut off behind one
        '["I like tea.", "She said \\"no\\".",]',  # a comma too many
        '["I like tea.", "I like tea.", " ", "She said \\"no\\"."]',
        '<think>["no", "not this"]</think>["I like tea.", "She said \\"no\\"."]',
        '1. I like tea.\n2) She said "no".',
        '- I like tea.\n\n* She said "no".\n',
        '[{"text": "I like tea."}, {"text": "She said \\"no\\"."}]',
    ],
)
def test_a_list_is_read_in_every_common_dress(text: str):
    assert parsing.strings(text) == TWO


def test_line_breaks_and_escapes_inside_strings_are_kept():
    assert parsing.strings('["one\ntwo", "caf\\u00e9\\n"]') == ["one\ntwo", "café"]
    assert parsing.strings('["one\ntwo", "caf\\u00e9", "cut') == ["one\ntwo", "café"]


def test_an_objects_texts_are_one_item():
    text = '[{"query": "tea?", "passage": "Tea is good.", "rank": 1}]'
    assert parsing.strings(text) == ["tea? Tea is good."]


@pytest.mark.parametrize(
    "text",
    ["", "  \n", "I cannot help with that.", '{"candidates": "tea"}', "[1, 2, 3]", "[]", '["cut off at once',
     "<think>what would a user", "[" * 5000],
)  # fmt: skip
def test_what_is_no_list_is_none_rather_than_garbage(text: str):
    assert parsing.strings(text) is None


def test_a_passage_is_what_follows_the_thinking():
    assert parsing.passage("  It is tea.\n") == "It is tea."
    assert parsing.passage("<think>hm\nhm</think>\n\nIt is tea.") == "It is tea."
    assert parsing.passage("hm</think> It is tea.") == "It is tea."  # the template opened the thinking
    assert parsing.passage("```\nIt is tea.\n```") == "It is tea."
    assert parsing.passage("<think>and on and on") is None
    assert parsing.passage("<think>hm</think> ") is None
    assert parsing.passage(" \n") is None


def test_a_line_is_the_first_without_label_and_quotes():
    assert parsing.line('\n"best green tea"\nI chose this because') == "best green tea"
    assert parsing.line("Query: best green tea") == "best green tea"
    assert parsing.line("Rewritten query: best tea") == "best tea"
    assert parsing.line("") is None
    assert parsing.line('""') is None
