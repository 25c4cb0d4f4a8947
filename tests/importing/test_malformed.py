"""Tables as they come: each is read rightly, or refused in one line with file, row and column."""

import csv
import io
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from malformed_tables import FILE_CASES, GOOD, JSONL, READ, TEXT_CASES, Case, Reading

from pbr_jax import data
from pbr_jax.base.types import UserError
from pbr_jax.base.words import person
from pbr_jax.cli.main import main
from pbr_jax.config import Benchmark
from pbr_jax.importing.columns import Columns
from pbr_jax.importing.writing import import_table

CASES = TEXT_CASES | FILE_CASES


def put(case: Case, path: Path) -> Path:
    if callable(case.content):
        case.content(path)
    else:
        path.write_bytes(case.content if isinstance(case.content, bytes) else case.content.encode())
    return path


def reading(folder: Path) -> Reading:
    benchmark = Benchmark(name="own", root=str(folder))
    assert data.task(benchmark).prompt.own.document
    return [(e.user_id, e.input, e.target, len(e.profile)) for e in data.read(benchmark)]


@pytest.mark.parametrize("name", CASES)
def test_a_table_is_read_rightly_or_refused_in_one_line(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    case, out = CASES[name], tmp_path / "out"
    path = put(case, tmp_path / case.name)
    code = main(["data", "import", str(path), *case.flags, "--out", str(out)])
    told = capsys.readouterr().err
    if isinstance(case.wanted, str):
        assert (code, told.count("\n")) == (2, 1)
        assert case.wanted in told
        assert [one.name for one in tmp_path.iterdir() if one != path] == []
    else:
        assert (code, told) == (0, "")
        assert reading(out) == case.wanted


def test_the_output_is_new_or_empty_and_else_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "t.csv"
    table.write_text(GOOD)
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    (tmp_path / "ahead").symlink_to("later")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note").write_text("mine")
    for out, message in (
        ("t.csv", "found something there"),
        ("full", "found something there"),
        ("t.csv/out", "cannot"),
        ("x" * 300, "File name too long"),
        ("link", None),
        ("ahead", None),
        ("new/er", None),
    ):
        code = main(["data", "import", str(table), "--out", str(tmp_path / out)])
        told = capsys.readouterr().err
        assert (code, told.count("\n")) == ((0, 0) if message is None else (2, 1)), told
        if message is None:
            assert reading(tmp_path / out) == READ
        else:
            assert message in told or "Not a directory" in told
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "full" / "note").read_text() == "mine"


def test_the_folder_may_be_the_one_that_we_are_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.csv").write_text(GOOD)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert main(["data", "import", "../t.csv", "--out", "."]) == 0
    assert reading(tmp_path / "here") == READ


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        ({"question": pd.NA}, "row 2, column 'question': found nothing"),
        ({"question": pd.NaT}, "row 2, column 'question': found nothing"),
        ({"question": float("nan")}, "row 2, column 'question': found nothing"),
        ({"question": b"x"}, "row 2, column 'question': found bytes"),
        ({"question": pd.array([1, 2])}, "row 2, column 'question': found IntegerArray"),
        ({"question": pd.Series([True])[0]}, "row 2, column 'question': found bool"),
    ],
)
def test_cells_of_python(tmp_path: Path, row: dict[str, Any], wanted: str) -> None:
    with pytest.raises(UserError, match=wanted):
        import_table([JSONL[0], {"user": "ann", **row}], tmp_path / "out")


def test_a_frame_of_twins(tmp_path: Path) -> None:
    frame = pd.DataFrame([["ann", "a", "b"]], columns=["user", "question", "question"])
    with pytest.raises(UserError, match="the frame: found two columns named 'question'"):
        import_table(frame, tmp_path / "out")


TEXT = st.text(st.characters(exclude_categories=()), max_size=5)
USER = st.just("ann") | TEXT


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(USER, TEXT, TEXT), min_size=1, max_size=4), st.sampled_from([",", ";", "\t", "|"]))
def test_any_text_comes_back_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, str]], delimiter: str
) -> None:
    root = tmp_path_factory.mktemp("any")
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter).writerows([("user", "question", "reply"), *rows])
    (root / "t.csv").write_bytes(text.getvalue().encode("utf-8", "surrogatepass"))
    try:
        import_table(root / "t.csv", root / "out", Columns(output="reply"))
    except UserError:
        return
    wanted = [(person(user), asked, said if said.strip() else None) for user, asked, said in rows]
    assert Counter(row[:3] for row in reading(root / "out")) == Counter(wanted)
