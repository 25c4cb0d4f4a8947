"""Ownership, the contract of `users`, and index folders that survive being cut short."""

import json
import pickle

import numpy as np
import pytest

from pbr_jax.index.base import (
    EVERYONE,
    Entries,
    Owners,
    check_matrix,
    check_users,
    load_folder,
    replaced,
    save_folder,
)
from pbr_jax.types import UserError

LOOKALIKES = ["user1", "user", "user10", "User1", "user1 ", "us\u00e9r1", "use\u0301r1", "user/1", "../user1"]


def test_rows_belong_to_one_spelling_of_an_id():
    owners = Owners(LOOKALIKES * 2)
    for place, user in enumerate(LOOKALIKES):
        assert owners.rows(user).tolist() == [place, place + len(LOOKALIKES)]
    assert owners.rows("USER1").tolist() == []
    assert owners.code("user2") == -1


def test_integer_owners_stand_for_their_decimal_ids():
    owners = Owners(np.array([7, 3, 7, 12]))
    assert [owners.rows(user).tolist() for user in ("3", "7", "12", "1")] == [[1], [0, 2], [3], []]
    assert owners.rows_of_all(["12", "7", "7", "9"]).tolist() == [0, 2, 3]
    assert owners.rows_of_all([]).tolist() == []


def test_arrays_of_strings_and_no_owners_at_all_work():
    assert Owners(np.array(["b", "a", "b"])).rows("b").tolist() == [0, 2]
    assert Owners([]).rows("a").tolist() == []


def test_an_owner_without_a_name_is_refused():
    with pytest.raises(UserError, match="non-empty string"):
        Owners(["a", ""])


def test_users_must_name_somebody_for_every_query():
    assert check_users(EVERYONE, 3) is EVERYONE
    assert check_users([["a"], {"b", "c"}], 2) == [["a"], {"b", "c"}]
    with pytest.raises(UserError, match="1 entries for 2 queries"):
        check_users([["a"]], 2)
    with pytest.raises(UserError, match=r"users\[1\] is 'ab'"):
        check_users([["a"], "ab"], 2)
    with pytest.raises(UserError, match="users is 'ab'"):
        check_users("ab", 2)
    with pytest.raises(UserError, match=r"users\[0\] is \[\]"):
        check_users([[]], 1)
    with pytest.raises(UserError, match=r"users\[0\] is \[''\]"):
        check_users([[""]], 1)


@pytest.mark.parametrize("nobody", [None, [None], [[None]]])
def test_nobody_is_refused_also_by_the_type_checker(nobody):
    with pytest.raises(Exception, match=r"users|type"):
        check_users(nobody, 1)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_matrix_with_nan_names_the_row(bad):
    vectors = np.zeros((5, 2), np.float32)
    vectors[3, 1] = bad
    with pytest.raises(UserError, match="row 3 of vectors"):
        check_matrix(vectors)
    with pytest.raises(UserError, match=r"width 2.*width 4"):
        check_matrix(np.zeros((1, 2), np.float32), 4)


def test_entries_place_known_ids_where_they_are_and_new_ones_at_the_end():
    entries, rows = Entries(("a", "b"), ("u", "v")).place(["c", "b"], ["u", "v"])
    assert entries == Entries(("a", "b", "c"), ("u", "v", "u"))
    assert rows.tolist() == [2, 1]
    kept, keep = entries.without(["a", "unknown"])
    assert kept == Entries(("b", "c"), ("v", "u"))
    assert keep.tolist() == [False, True, True]


def test_a_document_does_not_change_hands():
    with pytest.raises(UserError, match="'a' belongs to another user"):
        Entries(("a",), ("u",)).place(["a"], ["v"])
    with pytest.raises(UserError, match="'a' occurs twice"):
        Entries(("a", "b", "a"), ("u", "u", "u"))
    with pytest.raises(UserError, match="2 document ids for 1 owners"):
        Entries(("a", "b"), ("u",))


def test_replaced_overwrites_and_grows_a_copy():
    old = np.ones((2, 3), np.float32)
    new = replaced(old, np.array([3, 1]), np.array([[5, 5, 5], [6, 6, 6]], np.float32))
    assert new[[0, 1, 3], 0].tolist() == [1, 6, 5]
    assert old.tolist() == np.ones((2, 3)).tolist()


def test_a_save_that_dies_leaves_the_old_index(tmp_path):
    entries = Entries(("a",), ("u",))
    save_folder(tmp_path, "exact", entries, lambda files: {"mark": 1})

    def dies(files):
        (files / "half").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_folder(tmp_path, "exact", Entries((), ()), dies)
    files, header, loaded = load_folder(tmp_path, "exact")
    assert (loaded, header["mark"], files.is_dir()) == (entries, 1, True)

    save_folder(tmp_path, "exact", Entries((), ()), lambda files: {})
    assert load_folder(tmp_path, "exact")[2] == Entries((), ())
    assert len(list(tmp_path.glob("files-*"))) == 1, "the remains of the save that died are gone"


def test_a_folder_with_a_pickle_is_refused(tmp_path):
    save_folder(tmp_path, "exact", Entries((), ()), lambda files: {})
    (next(tmp_path.glob("files-*")) / "x.pkl").write_bytes(pickle.dumps([]))
    with pytest.raises(UserError, match="is a pickle"):
        load_folder(tmp_path, "exact")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 99}, "99"),
        ({"kind": "scann"}, "scann"),
        ({"files": "../.."}, "files-"),
        ({"ids": ["a", "a"]}, "occurs twice"),
        ({"ids": None}, "not an index"),
        (None, "not JSON"),
        ("gone", "not found"),
    ],
)
def test_a_damaged_index_is_one_clear_error(tmp_path, change, message):
    save_folder(tmp_path, "exact", Entries(("a", "b"), ("u", "u")), lambda files: {})
    path = tmp_path / "index.json"
    if change == "gone":
        path.unlink()
    elif change is None:
        path.write_text("{")
    else:
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=message):
        load_folder(tmp_path, "exact")
