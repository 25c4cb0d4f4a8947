"""Shared beginnings, against the definition of a tree."""

from hypothesis import given
from hypothesis import strategies as st

from pbr_jax.llm.engine import prefixes

SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=12)


def whole(tree: prefixes.Tree, node: prefixes.Node) -> tuple[int, ...]:
    return node.ids if node.parent is None else whole(tree, tree.shared[node.parent]) + node.ids


@given(SEQUENCES, st.integers(1, 5))
def test_every_path_spells_its_sequence(sequences, least):
    tree = prefixes.tree(sequences, least=least)
    assert [list(whole(tree, leaf)) for leaf in tree.leaves] == sequences
    for place, node in enumerate((*tree.shared, *tree.leaves)):
        assert node.ids
        assert node.start == len(whole(tree, node)) - len(node.ids)
        assert node.parent is None or node.parent < place


@given(SEQUENCES)
def test_with_one_token_the_least_every_beginning_is_computed_once(sequences):
    """Then the nodes hold as many tokens as there are distinct beginnings, last tokens aside."""
    tree = prefixes.tree(sequences, least=1)
    beginnings = {tuple(s[:end]) for s in sequences for end in range(1, len(s))}
    # A last token stands alone, unless it is inside another sequence: counted once for each sequence.
    assert tree.size <= len(beginnings) + len(sequences)
    assert tree.size >= len(beginnings | {tuple(s) for s in sequences})


def test_sharing_stops_where_a_sequence_may_share_no_more():
    tree = prefixes.tree([[1, 2, 3, 4], [1, 2, 3, 4]], [2, 3], least=1)
    assert [node.ids for node in tree.shared] == [(1, 2)]
    assert [leaf.ids for leaf in tree.leaves] == [(3, 4), (3, 4)]


def test_little_sharing_makes_no_node():
    sequences = [[1, 2, 3, 9], [1, 2, 3, 8], [1, 2, 3, 7]]
    assert [node.ids for node in prefixes.tree(sequences, least=6).shared] == [(1, 2, 3)]
    assert prefixes.tree(sequences, least=7).shared == []


def test_levels_of_documents():
    """A system message, two first documents, second documents: computed once each."""
    system, documents = [9] * 20, {name: [name] * 20 for name in (1, 2, 3)}
    orders = [(1, 2), (1, 3), (2, 1), (2, 3)]
    tree = prefixes.tree([system + documents[a] + documents[b] + [0] for a, b in orders])
    assert sorted(node.ids for node in tree.shared) == [(1,) * 20, (2,) * 20, (9,) * 20]
    assert [leaf.ids for leaf in tree.leaves] == [tuple(documents[b] + [0]) for _, b in orders]


def test_no_sequences_make_an_empty_tree():
    assert prefixes.tree([]) == ([], [])
    assert prefixes.windows([]) == []


@given(SEQUENCES, st.integers(1, 5))
def test_windows_hold_every_sequence_in_order(sequences, most):
    windows = prefixes.windows(sequences, most)
    places = [place for window in windows for place in window]
    assert sorted(places) == list(range(len(sequences)))
    assert [sequences[place] for place in places] == sorted(sequences)
    assert all(1 <= len(window) <= most for window in windows)
