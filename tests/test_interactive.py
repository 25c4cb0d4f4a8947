"""What a notebook calls: runs by name, their tables and frames, comparisons, reports, and what is refused."""

import ast
import html
import inspect
import re
from collections.abc import Callable, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pbr_jax
from pbr_jax import index, losses, models, train
from pbr_jax.base.tables import Table, number
from pbr_jax.base.types import UserError
from pbr_jax.cli import main as cli
from pbr_jax.config import LLM, Config, override
from pbr_jax.experiment.results import Results
from pbr_jax.methods import retrieve

ROWS = [
    {"customer": f"u{user}", "question": f"question {turn} of u{user}?", "reply": f"i love {what} day {turn}"}
    for user, what in enumerate(("tea", "cats", "football"))
    for turn in range(4)
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with an empty cache."""
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "cache"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


@pytest.fixture
def fields(tiny_models: Mapping[str, str]) -> dict[str, Any]:
    """Small models, and what is quick to compute."""
    quick = {"generate.max_new_tokens": 2, "eval.resamples": 20}
    return {"overrides": {**tiny_models, **quick}}


@pytest.fixture
def tweets(write_tweets: Callable[..., Path]) -> Path:
    histories = {f"u{i}": ["i love tea", "i love cats", "football that day"][: 1 + i % 3] for i in range(12)}
    return write_tweets(histories)


@pytest.mark.long
def test_a_name_some_data_and_k_make_the_run_that_the_options_would(
    here: Path, tweets: Path, fields: dict[str, Any]
):
    found = pbr_jax.run("bm25", data=tweets, benchmark="lamp_7", k=2, limit=5, **fields)
    assert found.path.parent == Path("runs")
    assert re.fullmatch(r"bm25-[0-9a-f]{16}", found.path.name)
    assert pbr_jax.run("bm25", data=tweets, benchmark="lamp_7", k=2, limit=5, **fields).path == found.path
    assert found.values["n"] == 5
    assert max(len(record["documents"]) for record in found.records()) == 2
    place = {"benchmark.name": "lamp_7", "benchmark.root": str(tweets), "retrieve.k": 2, "limit": 5}
    config = override(Config(system="bm25", retrieve=retrieve.BM25()), {**place, **fields["overrides"]})
    again = pbr_jax.run(config, found.path)  # it is the same run, or it would be refused
    assert again.values == found.values


@pytest.mark.long
def test_rows_in_python_are_data_of_ones_own(here: Path, fields: dict[str, Any], capfd: Any):
    frame = pytest.importorskip("pandas").DataFrame(ROWS)
    found = pbr_jax.run("bm25", data=frame, **fields)
    assert found.values["benchmark"] == "own"
    assert found.values["counts"]["users"] == 3
    assert "12 questions of 3 users" in capfd.readouterr().err
    assert pbr_jax.run("bm25", data=ROWS, **fields).path == found.path
    assert len(list((here.parent / "cache" / "imported").iterdir())) == 1
    frame.to_csv("tickets.csv", index=False)
    assert pbr_jax.run("bm25", data="tickets.csv", **fields).path == found.path
    other = frame.rename(columns={"customer": "who", "question": "x", "reply": "y"})
    with pytest.raises(UserError, match=r"name it: .* in Python columns=\{'user': 'COLUMN'\} and"):
        pbr_jax.run("bm25", data=other, **fields)
    columns = {"user": "who", "input": "x", "output": "y", "document": ["y"]}
    named = pbr_jax.run("bm25", data=other, columns=columns, **fields)
    assert named.values["n"] == found.values["n"]
    assert named.texts()["documents"].tolist()[1][0]["text"] == ROWS[0]["reply"]


def test_an_imported_table_is_the_folder_that_the_command_writes(here: Path, capfd: Any):
    """And what it shows is what the command prints, but for the name of the folder."""
    pytest.importorskip("pandas").DataFrame(ROWS).to_csv("tickets.csv", index=False)
    told = "Answer it."
    made = pbr_jax.import_table("tickets.csv", "mine", columns={"user": "customer"}, instruction=told)
    command = ["data", "import", "tickets.csv", "--user", "customer", "--instruction", told, "--out", "other"]
    assert cli.main(command) == 0
    assert repr(made) == capfd.readouterr().out.rstrip().replace("other", "mine")
    assert "12 questions of 3 users" in repr(made)
    mine, other = (
        {file.name: file.read_bytes() for file in Path(name).iterdir()} for name in ("mine", "other")
    )
    assert mine == other


@pytest.mark.parametrize(
    ("config", "fields", "shown"),
    [
        ("dense", {}, (3, None)),
        ("mmr", {}, (20, 3)),
        ("cfrag", {}, (5, 3)),
        ("cfrag", {"k": 8}, (8, 8)),
        ("dense", {"collaboration": "text", "overrides": {"neighbours.method": "mean", "neighbours.m": 3}},
         (3, 3)),
    ],
)  # fmt: skip
def test_k_is_how_many_documents_a_prompt_shows(
    config: str, fields: dict[str, Any], shown: tuple[int, int | None], monkeypatch: pytest.MonkeyPatch
):
    made: list[Config] = []

    def stub(config: Config, *_: Any, **__: Any) -> Results:
        made.append(config)
        return Results(Path(), {})

    monkeypatch.setattr("pbr_jax.experiment.run.run", stub)
    pbr_jax.run(config, "out", **{"k": 3, **fields})
    assert (made[0].retrieve.k, made[0].select.k) == shown


@pytest.mark.long
def test_a_runs_table_and_frames_say_what_its_files_say(here: Path, tweets: Path, fields: dict[str, Any]):
    pytest.importorskip("pandas")
    found = pbr_jax.run("bm25", "out", data=tweets, benchmark="lamp_7", system="<b>&\x1b[31m", **fields)
    metrics = found.to_frame()
    assert dict(metrics["value"]) == found.metrics
    assert metrics.loc["target_nll", ["low", "high"]].tolist() == found.intervals["target_nll"]
    predictions, texts = found.predictions(), found.texts()
    assert predictions["id"].tolist() == texts["id"].tolist() == [record["id"] for record in found.records()]
    np.testing.assert_allclose(predictions["target_nll"].mean(), found.metrics["target_nll"], rtol=1e-6)
    assert all("i love" in document["text"] for document in texts["documents"][0])
    for text in (repr(found), found._repr_html_()):
        assert "\x1b" not in html.unescape(text)
        assert number(found.metrics["target_nll"]) in text
    assert "<b>" not in found._repr_html_()
    assert _cells(found._repr_html_())[3:6] == [
        "rouge1", number(found.metrics["rouge1"]), *_interval(found, "rouge1")
    ]  # fmt: skip
    (found.path / "texts.jsonl").unlink()
    with pytest.raises(UserError, match=r"has no texts\.jsonl"):
        found.texts()


def _interval(found: Results, name: str) -> list[str]:
    return [f"[{', '.join(map(number, found.intervals[name]))}]"]


def _cells(text: str) -> list[str]:
    """The texts of a table's cells; fails where elements are not closed in their order."""
    cells: list[str] = []

    class Reader(HTMLParser):
        opened: list[str] = []  # noqa: RUF012

        def handle_starttag(self, tag: str, attrs: Any) -> None:
            self.opened.append(tag)
            if tag in ("td", "th"):
                cells.append("")

        def handle_endtag(self, tag: str) -> None:
            assert self.opened.pop() == tag

        def handle_data(self, data: str) -> None:
            if self.opened and self.opened[-1] in ("td", "th"):
                cells[-1] += data

    Reader().feed(text)
    return cells


@pytest.mark.long
def test_a_comparison_is_the_mean_of_the_questions_differences(
    here: Path, tweets: Path, fields: dict[str, Any]
):
    pytest.importorskip("pandas")
    place = {"data": tweets, "benchmark": "lamp_7", **fields}
    own, nothing = pbr_jax.run("bm25", "own", **place), pbr_jax.run("zero_shot", "nothing", **place)
    found = pbr_jax.compare(own, "nothing")
    less = (
        own.predictions().set_index("id")["target_nll"] - nothing.predictions().set_index("id")["target_nll"]
    )
    one = found.differences["target_nll"]
    np.testing.assert_allclose(one.value, less.mean(), rtol=1e-6)
    assert one.low <= one.value <= one.high
    turned = pbr_jax.compare(nothing, own)
    np.testing.assert_allclose(turned.differences["target_nll"][:3], [-one.value, -one.high, -one.low])
    table = found.to_frame()
    assert list(table.index) == [name for name in own.metrics if name in nothing.metrics]
    assert "bm25 less zero_shot, paired over 12 questions" in repr(found)
    assert _cells(found._repr_html_())[:4] == ["metric", "bm25", "zero_shot", "Δ"]
    same = pbr_jax.compare(own, own)
    assert {one.value for one in same.differences.values()} == {0}
    assert not any(map(same.better, same.differences))
    fewer = pbr_jax.run("bm25", "fewer", limit=4, **place)
    with pytest.raises(UserError, match="did not score the same examples"):
        pbr_jax.compare(own, fewer)
    with pytest.raises(UserError, match="no run folder at nowhere"):
        pbr_jax.compare(own, "nowhere")
    shown = pbr_jax.report(own, nothing, format="html")._repr_mimebundle_()
    assert html.escape("<title>") in shown["text/html"]
    assert "zero_shot" in pbr_jax.report(own, "nothing")._repr_mimebundle_()["text/markdown"]


def test_the_better_run_is_named_where_it_is_shown():
    from pbr_jax.eval.significance import Difference
    from pbr_jax.experiment.results import Comparison

    sure, unsure = Difference(-1.0, -2.0, -0.5, 0.01, 0.9), Difference(0.1, -0.1, 0.3, 0.4, 0.4)
    rows = {"target_nll": sure, "rouge1": sure, "meteor": unsure}
    of_users = [
        Comparison(
            "a", "b", 30, "users", n, 0.95, dict.fromkeys(rows, (0.0, 1.0)), rows, dict.fromkeys(rows, 30)
        )
        for n in (9, 10)
    ]
    assert [[one.better(name) for name in rows] for one in of_users] == [["", "", ""], ["a", "b", ""]]
    assert "fewer than 10 users" in repr(of_users[0])


def misspelt(name: str) -> dict[str, Any]:
    """Which no type checker may look at."""
    return {name: 3}


@pytest.mark.long
def test_a_check_shows_its_verdict(here: Path, monkeypatch: pytest.MonkeyPatch, tiny_models: Any):
    """Of three users, on which nothing can be told; the command's own tests are elsewhere."""
    with pytest.raises(UserError, match=r"^minutes is 0"):
        pbr_jax.check(ROWS, minutes=0.0)
    from pbr_jax.api import _place

    base = override(Config(), {**tiny_models, "eval.resamples": 20, **_place(ROWS, Config().benchmark)})
    found = pbr_jax.check(base, "out", minutes=0.001)
    assert found.verdict.answer == "cannot_tell"
    divisions = ("documents in the history", "days since the newest document", "category")
    assert found.verdict.groups == {name: [] for name in divisions}  # so few questions are not divided
    assert found._repr_markdown_() == (here / "out" / "verdict.md").read_text() == repr(found)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: pbr_jax.run("bm25", limt=3), "no argument 'limt'; did you mean limit?"),
        (lambda: pbr_jax.run("bm25", dta="x"), "no argument 'dta'; did you mean data?"),
        (lambda: pbr_jax.run("bm2"), "did you mean bm25"),
        (lambda: pbr_jax.run("zero_shot", k=3), "zero_shot shows no documents; leave k out"),
        (lambda: pbr_jax.run("bm25", k=0), "retrieve.k is 0"),
        (lambda: pbr_jax.run("bm25", data="nowhere"), "found no such folder nowhere"),
        (lambda: pbr_jax.run("bm25", data=ROWS, columns={"usr": "x"}), "no 'usr'; did you mean user?"),
        (lambda: pbr_jax.run("bm25", data=ROWS, columns={"user": ["x"]}), "user is ['x'], want a column's"),
        (lambda: pbr_jax.run("bm25", data=ROWS, columns={"user": "x"}), "found no column 'x'"),
        (lambda: pbr_jax.run("bm25", data="nowhere", columns={"user": "x"}), "is no table's file"),
        (lambda: pbr_jax.run("bm25", columns={"user": "x"}), "columns is given, and no data"),
        (lambda: pbr_jax.check("nowhere", columns={"user": "x"}), "is no table's file"),
        (lambda: pbr_jax.run("bm25", overrides={"retreive.k": 3}), "did you mean retrieve.k"),
        (lambda: Config(**misspelt("retreive")), "Config has no field 'retreive'; did you mean retrieve?"),
        (lambda: retrieve.BM25(**misspelt("kk")), "BM25 has no field 'kk'; did you mean k?"),
        (lambda: LLM(**misspelt("zzzz")), "LLM has no field 'zzzz'; it has model"),
    ],
)  # fmt: skip
def test_a_misspelt_name_is_told_with_the_nearest(call: Callable[[], object], words: str, here: Path):
    with pytest.raises(UserError, match=re.escape(words)) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_small_table_is_aligned_and_plain():
    table = Table("t\n\x1b[2J", ["a", "b"], [["x\ny", "1"], ["<i>", "22"]], ["end"])
    assert table.text() == "t \\x1b[2J\na     b\nx y   1\n<i>  22\nend"
    assert _cells(table.html()) == ["a", "b", "x y", "1", "<i>", "22"]
    assert [number(value, "+") for value in (0.04567, 4.7412, -1234.5)] == ["+0.0457", "+4.74", "-1234"]


def test_the_page_of_help_teaches_what_is_there():
    """Every line of its example parses, and calls what exists with arguments that it takes."""
    text = pbr_jax.__doc__ or ""
    example = "\n".join(line[4:] for line in text.splitlines() if line.startswith("    "))
    calls = [node for node in ast.walk(ast.parse(example)) if isinstance(node, ast.Call)]
    assert len(calls) >= 10
    of_results = {"predictions", "texts"}
    for call in calls:
        assert isinstance(call.func, ast.Attribute)
        name, owner = call.func.attr, ast.unparse(call.func.value)
        kind = pbr_jax if owner == "pbr_jax" else Results if name in of_results else pbr_jax.System
        signature = inspect.signature(getattr(kind, name))
        itself = [] if kind is pbr_jax else [None]
        signature.bind(*itself, *call.args, **{word.arg or "": None for word in call.keywords})
    for name in re.findall(r"`pbr_jax\.(\w+)", text):
        assert hasattr(pbr_jax, name) or Path(pbr_jax.__path__[0], name).is_dir()


def test_every_public_name_is_listed_and_imports():
    for package in (pbr_jax, index, losses, models, train):
        stub = Path(str(package.__file__)).with_suffix(".pyi").read_text(encoding="utf-8")
        assert sorted(re.findall(r"import (\w+) as \1$", stub, flags=re.MULTILINE)) == package.__all__
        assert {*package.__all__} <= {*dir(package)}
        for name in package.__all__:
            assert getattr(package, name).__doc__, name
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            _ = package.nothing
