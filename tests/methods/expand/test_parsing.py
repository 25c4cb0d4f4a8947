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
        '["no", "not this"][/THINK]["I like tea.", "She said \\"no\\"."]',
        '1. I like tea.\n2) She said "no".',
        '- I like tea.\n\n* She said "no".\n',
        '[{"text": "I like tea."}, {"text": "She said \\"no\\"."}]',
        """['I like tea.', 'She said "no".']""",
        """["I like tea.", 'She said "no".']""",  # as Python writes it
        """```python\n['I like tea.', 'She said "no".', 'And I was goi""",
        r"""{'candidates': ['I like tea.', 'She said \"no\".']}""",
    ],
)
def test_a_list_is_read_in_every_common_dress(text: str):
    assert parsing.strings(text) == TWO


def test_line_breaks_and_escapes_inside_strings_are_kept():
    assert parsing.strings('["one\ntwo", "caf\\u00e9\\n"]') == ["one\ntwo", "café"]
    assert parsing.strings('["one\ntwo", "caf\\u00e9", "cut') == ["one\ntwo", "café"]


def test_an_apostrophe_does_not_end_a_text_in_single_quotes():
    assert parsing.strings(str(["it's", 'so "good"', "b"])) == ["it's", 'so "good"', "b"]
    assert parsing.strings(r"['it\'s', 'b']") == ["it's", "b"]
    broken = "['I don't know, really', 'the dogs' bowl', 'cut of"
    assert parsing.strings(broken) == ["I don't know, really", "the dogs' bowl"]


def test_the_last_item_of_a_numbered_list_that_the_limit_cut_off_is_left_out():
    text = "1. I like tea.\n2. So do I\n3. I also like coff"
    assert parsing.strings(text, cut=True) == ["I like tea.", "So do I"]
    assert parsing.strings(text) == ["I like tea.", "So do I", "I also like coff"]
    assert parsing.strings("- I like tea.\n- So do I!", cut=True) == ["I like tea.", "So do I!"]
    assert parsing.strings("1. I like", cut=True) is None
    assert parsing.strings('["I like", "I also like"]', cut=True) == ["I like", "I also like"]  # it is whole


NOTES = ["Yesterday I bought some green tea at the market, it was cheap.", "My dog sleeps all day."]


@pytest.mark.parametrize(
    ("item", "copied"),
    [
        ("Yesterday I bought some green tea at the market", True),
        ("yesterday, I BOUGHT some green tea at the market!", True),
        ("Yesterday I bought some green tea at the shop near my house", False),
        # 10 words, 7 runs: 6 of them in the first note, and 5 of them
        ("I bought some green tea at the market it is", True),
        ("I bought some green tea at the market or somewhere", False),
        ("I bought some green tea and my dog sleeps all day", False),  # of two notes, neither has enough
        ("my dog sleeps", True), ("green tea", True),  # shorter than a run: the whole is one
        ("my dog dreams", False), ("tea green", False),
        ("...", True), ("", True),
    ],
)  # fmt: skip
def test_a_copy_has_four_fifths_of_its_runs_of_four_words_in_one_document(item: str, copied: bool):
    assert parsing.is_copy(item, NOTES) == copied
    assert not item or not item.strip(".") or not parsing.is_copy(item, [])


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
