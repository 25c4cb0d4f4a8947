"""The document store: what goes in comes out, and who may see what."""

import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbr_jax.base.types import Document, Example, UserError
from pbr_jax.corpus.store import Store, build


def example(id: str, user: str, profile: tuple[Document, ...] = (), **fields: object) -> Example:
    values = {"query": "q", "input": "in", "target": "t", **fields}
    return Example(id=id, user_id=user, profile=profile, **values)  # type: ignore[arg-type]


def document(user: str, id: str, time: float | None = None, text: str = "") -> Document:
    return Document(id, user, text or f"{user} {id}", {"title": f"title {id}"}, time)


def stored(folder: Path, *examples: Example, target: str | None = None) -> Store:
    build(folder / "store.sqlite", examples, target)
    return Store(folder / "store.sqlite")


def test_examples_and_documents_come_back_as_they_went_in(tmp_path: Path):
    a = example("1", "u", (document("u", "x", 5.0), document("u", "ü\n\"y\"")), relevant=(("x", "y"), ("z",)),
                category="c", scored=False, time=7.5, target=None, alternatives=("ü", ""),
                unit="a 1", options=("yes", "ü"))  # fmt: skip
    b = example("2", "v")
    store = stored(tmp_path, a, b)
    assert [e.id for e in store.examples()] == ["1", "2"]
    back = next(store.examples())
    assert store.documents(store.visible(back, "u")) == list(a.profile)
    assert (back.relevant, back.category, back.scored, back.time) == (a.relevant, "c", False, 7.5)
    assert [e.alternatives for e in store.examples()] == [("ü", ""), ()]
    assert [e.unit for e in store.examples()] == ["a 1", ""]
    assert [e.options for e in store.examples()] == [("yes", "ü"), ()]
    assert (back.target, back.query, back.input, back.user_id) == (None, "q", "in", "u")
    assert [text for _, text in store.texts()] == [d.text for d in a.profile]
    assert store.summary[:7] == (2, 0, 2, 2, 1, 0, 0)


def test_a_users_document_is_stored_once_and_changed_ones_twice(tmp_path: Path):
    early, late = document("u", "1"), document("u", "2")
    other = document("v", "1", text="u 1")
    edited = document("u", "1", text="edited")
    store = stored(
        tmp_path, example("a", "u", (early,)), example("b", "v", (other,)),
        example("c", "u", (early, late)), example("d", "u", (edited, late)),
    )  # fmt: skip
    assert [text for _, text in store.texts()] == ["u 1", "u 1", "u 2", "edited"]
    assert [store.visible(e, e.user_id).tolist() for e in store.examples()] == [[0], [1], [0, 2], [3, 2]]
    assert store.history("u").tolist() == [0, 2, 3]
    assert store.owners.tolist() == [0, 1, 0, 0]


def test_another_user_gives_only_documents_dated_before_the_question(tmp_path: Path):
    v = (
        document("v", "old", 1.0),
        document("v", "same", 5.0),
        document("v", "new", 9.0),
        document("v", "undated"),
    )
    asked = example("a", "u", (document("u", "mine", 99.0),), time=5.0)
    store = stored(tmp_path, asked, example("b", "v", v))
    ids = [d.id for d in store.documents(store.visible(asked, "v"))]
    assert ids == ["old", "undated"]
    assert [d.id for d in store.documents(store.visible(asked, "u"))] == ["mine"]  # as released
    cold = example("c", "w", time=None)
    assert [d.id for d in store.documents(store.visible(cold, "v"))] == ["undated"]


def test_a_new_question_sees_the_users_whole_history(tmp_path: Path):
    docs = tuple(document("u", str(i)) for i in range(3))
    store = stored(tmp_path, example("a", "u", docs[:1]), example("b", "u", docs))
    assert store.visible(example("", "u"), "u").tolist() == [0, 1, 2]


def test_an_unknown_user_is_an_error_and_never_everybody(tmp_path: Path):
    store = stored(tmp_path, example("a", "user1", (document("user1", "x"),)))
    for name in ("user", "user10", "", "USER1"):
        with pytest.raises(UserError, match="is not among the 1 users"):
            store.visible(example("z", name), name)


def test_targets_that_stand_in_the_own_history_are_counted(tmp_path: Path):
    docs = (document("u", "1"), document("u", "2"))
    store = stored(
        tmp_path, example("a", "u", docs, target=" title 1 "), example("b", "u", docs, target="other"),
        example("c", "u", docs, target=None), target="title",
    )  # fmt: skip
    assert store.summary.targets_in_history == 1


@pytest.mark.parametrize("text", ["दाल दिल हिन्दी", "café thé crème", "สวัสดี วันนี้ ที่"])
def test_a_target_is_found_in_any_script_and_spelling(tmp_path: Path, text: str) -> None:
    spelled = unicodedata.normalize("NFD", text)
    whole = Document("1", "u", "x", {"title": spelled})
    most = Document("1", "v", "x", {"title": " ".join(spelled.split()[1:])})
    bare = Document(
        "1", "w", "x", {"title": "".join(c for c in spelled if unicodedata.category(c)[0] != "M")}
    )
    asked = [example(d.user_id, d.user_id, (d,), target=text) for d in (whole, most, bare)]
    store = stored(tmp_path, *asked, target="title")
    assert (store.summary.targets_in_history, store.summary.near_targets) == (1, 2)
    assert store.leaks_target(asked[0], np.arange(3)).tolist() == [True, False, False]


def test_a_missing_store_says_what_to_do(tmp_path: Path):
    with pytest.raises(UserError, match="run the configuration again"):
        Store(tmp_path / "none.sqlite")


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=6), min_size=1, max_size=8)
)
def test_rows_agree_with_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory, profiles: list[list[tuple[int, int]]]
):
    """Examples of users 0, 1, 2, 0, … with documents (id, version)."""
    examples = [
        example(str(i), str(i % 3), tuple(Document(str(d), str(i % 3), f"{d} {v}") for d, v in profile))
        for i, profile in enumerate(profiles)
    ]
    store = stored(tmp_path_factory.mktemp("store"), *examples)
    keys: dict[tuple[str, str, str], int] = {}
    for e in examples:
        for d in e.profile:
            keys.setdefault((d.user_id, d.id, d.text), len(keys))
    assert store.summary.documents == len(keys)
    for e, back in zip(examples, store.examples(), strict=True):
        rows = [keys[d.user_id, d.id, d.text] for d in e.profile]
        assert store.visible(back, back.user_id).tolist() == rows
        assert store.documents(np.array(rows, np.int64)) == list(e.profile)


def with_training(folder: Path, examples: list[Example], training: list[Example]) -> Store:
    build(folder / "store.sqlite", examples, "title", training)
    return Store(folder / "store.sqlite")


def test_the_training_split_stands_beside_the_evaluated_one(tmp_path: Path):
    """Both have a question "1"; each sees its own list."""
    asked = example("1", "u", (document("u", "x"),))
    learned = [example("1", "u", (document("u", "y"),)), example("2", "v", (document("v", "z"),))]
    store = with_training(tmp_path, [asked], learned)
    (evaluated,), training = list(store.examples()), list(store.examples(training=True))
    assert [e.training for e in (evaluated, *training)] == [False, True, True]
    assert [e.id for e in training] == ["1", "2"]
    seen = [[d.id for d in store.documents(store.visible(e, "u"))] for e in (evaluated, training[0])]
    assert seen == [["x"], ["y"]]
    assert (store.summary.examples, store.summary.training, store.summary.users) == (1, 2, 2)


def test_a_document_that_is_the_target_comes_from_nobody_else(tmp_path: Path):
    asked = example("a", "u", (document("u", "own"),), target=" title 1 ")
    other = (document("v", "1"), document("v", "2"))
    store = with_training(tmp_path, [asked, example("b", "v", other, target="title 2")], [])
    question, neighbour = store.examples()
    assert [d.id for d in store.documents(store.visible(question, "v"))] == ["2"]
    assert [d.id for d in store.documents(store.visible(neighbour, "v"))] == ["1", "2"]  # as released
    assert store.summary.targets_elsewhere == 1
    assert store.summary.targets_in_history == 1


def test_a_coarse_date_is_before_a_question_only_if_all_of_it_is(tmp_path: Path) -> None:
    early, late = Document("early", "v", "a", {}, 1.0, 4.0), Document("late", "v", "b", {}, 1.0, 9.0)
    point = Document("point", "v", "c", {}, 4.0)
    asked = example("a", "u", (Document("mine", "u", "d", {}, 1.0, 9.0),), time=5.0)
    store = stored(tmp_path, asked, example("b", "v", (early, late, point)))
    ids = [[d.id for d in store.documents(store.before("v", time))] for time in (4.0, 5.0, 9.0, 9.5)]
    assert ids == [[], ["early", "point"], ["early", "point"], ["early", "late", "point"]]
    assert [d.id for d in store.documents(store.visible(asked, "v"))] == ["early", "point"]
    assert [d.id for d in store.documents(store.visible(asked, "u"))] == ["mine"]  # as released
    assert store.documents(store.history("v")) == [early, late, point]
    assert store.times[store.history("v")].tolist() == [1.0, 1.0, 4.0]


def test_a_row_gives_away_the_target_that_is_its_answer(tmp_path: Path) -> None:
    own, other = (document("u", "1"), document("u", "2")), (document("v", "1"), document("v", "3"))
    asked, withheld = example("a", "u", own, target=" title 1 "), example("b", "v", other, target=None)
    store = with_training(tmp_path, [asked, withheld, example("c", "v", other, target=" ")], [])
    rows = np.array([3, 2, 1, 0])
    assert store.leaks_target(asked, rows).tolist() == [False, True, False, True]
    assert store.leaks_target(asked, rows[:0]).tolist() == []
    for without in list(store.examples())[1:]:
        assert store.leaks_target(without, rows).tolist() == [False] * 4


def test_what_may_be_learned_from_is_what_every_evaluated_question_sees(tmp_path: Path) -> None:
    docs = tuple(document("u", str(i)) for i in range(5))
    evaluated = [example("a", "u", docs[2::-1]), example("b", "u", docs[1:]), example("c", "w")]
    learned = [
        example("t", "u", (document("u", "only in training"), docs[4])),
        example("x", "v", (document("v", "1"),)),
        example("y", "v", (document("v", "2"), document("v", "1"))),
    ]
    store = with_training(tmp_path, evaluated, learned)
    assert [d.id for d in store.documents(store.history("u"))] == [
        "2",
        "1",
        "0",
        "3",
        "4",
        "only in training",
    ]
    assert [d.id for d in store.documents(store.training_rows("u"))] == ["2", "1"]
    assert [d.id for d in store.documents(store.training_rows("v"))] == ["1", "2"]
    assert store.training_rows("w").tolist() == []
    assert store.training_rows("u").dtype == store.training_rows("w").dtype == np.int64
    with pytest.raises(UserError, match="is not among the 3 users"):
        store.training_rows("z")


def test_everybody_sees_shared_documents_and_they_are_nobodys(tmp_path: Path) -> None:
    shared = (
        Document("p", "", "passage", {"title": "target"}, shared=True),
        Document("q", "", "other", {"title": "x"}, 7.0, shared=True),
    )
    asked = example("a", "u", (document("u", "mine"),), target="target", time=5.0)
    build(tmp_path / "store.sqlite", [asked, example("b", "v", time=9.0)], "title", shared={"c": shared})
    store = Store(tmp_path / "store.sqlite")
    assert store.has_shared
    assert (store.users, store.owners.tolist()) == (["u", "v"], [0, -1, -1])
    assert store.documents(store.history("")) == list(shared)
    assert store.history("u").tolist() == [0]
    # As of other users: neither what is dated later nor the question's own target.
    seen = [store.documents(store.visible(e, "")) for e in store.examples()]
    assert seen == [[], list(shared)]


def test_documents_have_an_owner_or_are_shared(tmp_path: Path) -> None:
    for wrong in (Document("d", "", "x"), Document("d", "u", "x", shared=True)):
        with pytest.raises(UserError, match=r"document 'd' has user_id '.*want user_id \"\" for shared"):
            build(tmp_path / "store.sqlite", [example("a", "u", (wrong,))])
    with pytest.raises(UserError, match="user_id is empty"):
        build(tmp_path / "store.sqlite", [example("a", "")])
    assert not stored(tmp_path, example("a", "u")).has_shared


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.sampled_from([None, 1.0, 5.0, 9.0]), st.sampled_from(["", "t", "else"]))),
    st.sampled_from([None, 1.0, 5.0, 9.5, float("inf")]),
)
def test_of_the_shared_documents_a_question_sees_those_before_it_without_its_target(
    tmp_path_factory: pytest.TempPathFactory, told: list[tuple[float | None, str]], time: float | None
) -> None:
    documents = [
        Document(str(i), "", f"text {i}", {"title": title}, moment, shared=True)
        for i, (moment, title) in enumerate(told)
    ]
    path = tmp_path_factory.mktemp("shared") / "store.sqlite"
    own = example("1", "u", (document("u", "x", 1.0),), time=time)
    build(path, [own], "title", shared={"some": documents[1:]})
    store = Store(path)
    if documents[1:]:
        store = store.copy_to(path.with_name("living.sqlite"))
        store.append(documents[:1])
    wanted = [
        d.id
        for d in documents[1:] + documents[:1] * bool(documents[1:])
        if (d.time is None or (time is not None and d.time < time)) and d.fields["title"] != "t"
    ]
    (asked,) = store.examples()
    if store.has_shared:
        assert [d.id for d in store.documents(store.visible(asked, ""))] == wanted


def test_questions_that_see_all_shared_documents_share_one_array(tmp_path: Path) -> None:
    shared = [Document(str(i), "", f"text {i}", {}, 1.0, shared=True) for i in range(3)]
    asked = [example(str(i), f"u{i}", time=2.0 + i) for i in range(2)]
    build(tmp_path / "store.sqlite", asked, shared={"some": shared})
    store = Store(tmp_path / "store.sqlite").copy_to(tmp_path / "living.sqlite")
    first, second = (store.visible(e, "") for e in store.examples())
    assert first is second  # 8 MB each, of a million documents
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 7
    store.delete("", ["1"])
    assert [store.visible(e, "").tolist() for e in store.examples()] == [[0, 2]] * 2
