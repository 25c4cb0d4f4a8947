"""Recipes of data: cuts rebuilt from the data that they gave, downloads from a server that stops and lies."""

import gzip
import hashlib
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from pbr_jax.base.types import UserError
from pbr_jax.cli import main as cli
from pbr_jax.data import recipes
from pbr_jax.data.recipes import cuts, download

CONTENT = bytes(range(256)) * 9000
SHA = hashlib.sha256(CONTENT).hexdigest()


class Server(BaseHTTPRequestHandler):
    """`/file` is CONTENT, `/ends` breaks off, all else is missing."""

    asked: ClassVar[int] = 0

    def do_GET(self) -> None:
        if self.path not in ("/file", "/ends"):
            self.send_error(404)
            return
        Server.asked += 1
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT[:1_500_000] if self.path == "/ends" else CONTENT)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    Server.asked = 0
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_file_is_downloaded_once(address: str, tmp_path: Path):
    for _ in range(2):
        download(f"{address}/file", tmp_path / "a" / "file", SHA)
    assert (tmp_path / "a" / "file").read_bytes() == CONTENT
    assert Server.asked == 1


def test_a_download_that_breaks_off_leaves_no_file(address: str, tmp_path: Path):
    with pytest.raises(UserError, match="repeat the command"):
        download(f"{address}/ends", tmp_path / "file", SHA)
    assert not (tmp_path / "file").exists()
    download(f"{address}/file", tmp_path / "file", SHA)
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_another_hash_is_refused_and_nothing_is_kept(address: str, tmp_path: Path):
    with pytest.raises(UserError, match="SHA-256"):
        download(f"{address}/file", tmp_path / "file", "0" * 64)
    assert [path.name for path in tmp_path.iterdir()] in ([], ["file.lock"])


def test_two_that_download_at_once_get_it_whole(address: str, tmp_path: Path):
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: download(f"{address}/file", tmp_path / "file"), range(4)))
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert Server.asked == 1


def test_a_missing_page_is_one_line(address: str, tmp_path: Path):
    with pytest.raises(UserError, match="404"):
        download(f"{address}/none", tmp_path / "file", SHA)


def test_from_without_out_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["data", "recipe", "locomo", "--from", str(tmp_path)]) == 2
    assert "--from needs --out FOLDER" in capsys.readouterr().err
    assert cli.main(["data", "recipe", "locomo", "--from", str(tmp_path), "--check", str(tmp_path)]) == 2


def test_a_recipe_downloads_and_checks(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "cache"))
    one = recipes.Recipe(
        benchmark="locomo", what="one file", page="a page", licence="none", sources={"f": f"{address}/file"}
    )
    monkeypatch.setattr(recipes, "recipes", lambda: {"one": one})
    monkeypatch.setattr(recipes, "hashes", lambda: {"one": {"f": SHA}})
    assert cli.main(["data", "recipe", "one", "--out", str(tmp_path / "out")]) == 0
    assert "1 of 1 files" in capsys.readouterr().out
    assert (tmp_path / "out" / "f").read_bytes() == CONTENT
    (tmp_path / "out" / "f").write_bytes(b"edited")
    assert cli.main(["data", "recipe", "one", "--check", str(tmp_path / "out")]) == 0
    assert "f: differs" in capsys.readouterr().out
    assert cli.main(["data", "recipe", "one", "--out", str(tmp_path / "out")]) == 2


@pytest.mark.parametrize(
    "words",
    [
        ["no_such"],
        ["lamp_7", "--check", "no_such_folder"],
        ["headlines", "--from", "no_such_folder", "--out", "out"],
        ["lamp_7", "--outt", "x"],
    ],
)
def test_bad_words_are_one_line(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["data", "recipe", *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_every_recipe_is_described_and_has_hashes(capsys: pytest.CaptureFixture[str]):
    assert set(recipes.recipes()) == set(recipes.hashes())
    for name, recipe in recipes.recipes().items():
        assert cli.main(["data", "recipe", name]) == 0
        said = capsys.readouterr().out
        assert recipe.page in said
        assert recipe.licence in said


def test_a_malformed_file_is_named(tmp_path: Path):
    row = b'{"reviewerID": "a", "reviewText": "b", "overall": "5", "unixReviewTime": 1}\n'
    reviews, headlines = "reviews_Musical_Instruments_5.json.gz", "News_Category_Dataset_v2.json"
    for name, content, wanted in (
        (reviews, gzip.compress(row * 999)[:-9], "damaged compressed data"),
        (reviews, gzip.compress(row * 2), "field 'overall': found '5', wanted a number"),
        (headlines, b'{"date": ', "line 1 .*malformed or truncated JSON"),
        (headlines, b'{"authors": ""}', "record 0, field 'headline': found no such key"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=wanted):
            (cuts.reviews if name == reviews else cuts.headlines)(tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("questions", "outputs"), [([], {"golds": []}), ([{"id": "1"}], {"golds": []}), ([{}], []), ([], {})]
)
def test_other_files_than_lamp_7s_are_refused(questions: Any, outputs: Any, tmp_path: Path):
    (tmp_path / "dev_questions.json").write_text(json.dumps(questions))
    (tmp_path / "dev_outputs.json").write_text(json.dumps(outputs))
    with pytest.raises(UserError, match=r"LaMP-7|dev_questions\.json|dev_outputs\.json"):
        recipes.make("lamp_7", tmp_path / "out", tmp_path)
    assert not (tmp_path / "out").exists()


# -- the cuts of the tables, from sources that are rebuilt from them --


def read(folder: Path) -> tuple[list[dict[str, Any]], dict[str, str]]:
    questions = [
        q for s in ("train", "dev") for q in json.loads((folder / f"{s}_questions.json").read_text())
    ]
    golds = [
        g for s in ("train", "dev") for g in json.loads((folder / f"{s}_outputs.json").read_text())["golds"]
    ]
    return questions, {gold["id"]: gold["output"] for gold in golds}


@pytest.mark.data
def test_lamp_7_is_cut_as_for_the_tables(real_data: Path, tmp_path: Path):
    questions, golds = read(real_data / "LaMP_7")
    there = {question["id"]: question for question in questions}
    ids = [f"61{number}" for number in range(1500)]
    official = [there.get(name, {"id": name, "input": "", "profile": []}) for name in ids]
    outputs = {"task": "LaMP_7", "golds": [{"id": name, "output": golds.get(name, "")} for name in ids]}
    (tmp_path / "dev_questions.json").write_text(json.dumps(official))
    (tmp_path / "dev_outputs.json").write_text(json.dumps(outputs))
    assert recipes.make("lamp_7", tmp_path / "out", tmp_path) == [
        "4 of 4 files are those that the tables were made with"
    ]


@pytest.mark.data
def test_reviews_are_cut_as_for_the_tables(real_data: Path, tmp_path: Path):
    questions, golds = read(real_data / "LaMP_3_amazon_mi")
    there = {int(question["id"]): question for question in questions}
    rows = []
    for number in range(1429):
        question = there.get(number, {"profile": [], "input": cuts._SCORE + "filler"})
        reviews = [(p["text"], p["score"], int(p["date"])) for p in question["profile"]]
        last = question["input"].removeprefix(cuts._SCORE)
        reviews.append((last, golds.get(str(number), "3"), 2_000_000_000))
        rows += [
            {
                "reviewerID": f"user {number}",
                "reviewText": text,
                "overall": float(score),
                "unixReviewTime": at,
            }
            for text, score, at in reviews
        ]
    with gzip.open(tmp_path / "reviews_Musical_Instruments_5.json.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    assert recipes.make("reviews", tmp_path / "out", tmp_path) == [
        "4 of 4 files are those that the tables were made with"
    ]


@pytest.mark.data
def test_headlines_are_cut_as_for_the_tables(real_data: Path, tmp_path: Path):
    questions, golds = read(real_data / "LaMP_4_huffpost")
    longest: dict[int, dict[str, Any]] = {}
    for question in questions:
        longest[question["user_id"]] = question
    rows = []
    for author in range(max(longest) + 1):
        question = longest.get(author)
        articles = [(p["text"], p["title"], p["date"]) for p in question["profile"]] if question else []
        if question:
            asked = question["input"].removeprefix(cuts._HEADLINE)
            articles.append((asked, golds[question["id"]], "2018-05-27"))
        else:
            articles = [("filler", "filler", "2018-03-01")] * 6
        rows += [
            {"authors": f"{author:03}", "short_description": text, "headline": title, "date": date}
            for text, title, date in articles
        ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "News_Category_Dataset_v2.json").write_text(text)
    assert recipes.make("headlines", tmp_path / "out", tmp_path) == [
        "4 of 4 files are those that the tables were made with"
    ]
