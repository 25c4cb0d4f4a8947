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
from pbr_jax.data.recipes import cuts
from pbr_jax.data.recipes.download import download

CONTENT = bytes(range(256)) * 9000
SHA = hashlib.sha256(CONTENT).hexdigest()


class Server(BaseHTTPRequestHandler):
    """`/file` is CONTENT, `/ends` breaks off once, `/whole` ignores ranges, all else is missing."""

    broke: ClassVar[bool] = False
    ranges: ClassVar[list[str]] = []
    encodings: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        Server.encodings.append(self.headers.get("Accept-Encoding", ""))
        if self.path == "/refuses":
            self.send_error(416)
            return
        if self.path not in ("/file", "/ends", "/whole"):
            self.send_error(404)
            return
        asked = self.headers.get("Range", "")
        first = int(asked[6:-1]) if asked and self.path != "/whole" else 0
        Server.ranges.append(asked)
        if first >= len(CONTENT):
            self.send_error(416)
            return
        self.send_response(206 if first else 200)
        self.send_header("Content-Length", str(len(CONTENT) - first))
        self.end_headers()
        if self.path == "/ends" and not Server.broke:
            Server.broke = True
            self.wfile.write(CONTENT[:1_500_000])
            self.wfile.flush()
            self.connection.close()
            return
        self.wfile.write(CONTENT[first:])

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


class Quiet(ThreadingHTTPServer):
    """Prints nothing where a client leaves early."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    Server.broke, Server.ranges, Server.encodings = False, [], []
    with Quiet(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_file_is_downloaded_once(address: str, tmp_path: Path):
    for _ in range(2):
        download(f"{address}/file", tmp_path / "a" / "file", SHA)
    assert (tmp_path / "a" / "file").read_bytes() == CONTENT
    assert Server.ranges == [""]


def test_a_download_that_broke_off_goes_on_where_it_was(address: str, tmp_path: Path):
    with pytest.raises(UserError, match="repeat the command"):
        download(f"{address}/ends", tmp_path / "file", SHA)
    have = (tmp_path / "file.part").stat().st_size
    assert not (tmp_path / "file").exists()
    download(f"{address}/ends", tmp_path / "file", SHA)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert Server.ranges[1] == (f"bytes={have}-" if have else "")


def test_a_server_without_ranges_sends_the_whole_again(address: str, tmp_path: Path):
    (tmp_path / "file.part").write_bytes(b"former")
    download(f"{address}/whole", tmp_path / "file", SHA)
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_more_than_there_is_begins_anew(address: str, tmp_path: Path):
    (tmp_path / "file.part").write_bytes(CONTENT + b"more")
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
    assert Server.ranges == [""]


def test_no_server_is_asked_for_compressed_bytes(address: str, tmp_path: Path):
    download(f"{address}/file", tmp_path / "file")
    assert Server.encodings == ["identity"]


def test_a_server_that_refuses_ranges_that_were_not_asked_for_is_one_line(address: str, tmp_path: Path):
    with pytest.raises(UserError, match="answers 416"):
        download(f"{address}/refuses", tmp_path / "file")


def test_a_file_that_is_there_with_another_hash_is_downloaded_again(address: str, tmp_path: Path):
    (tmp_path / "file").write_bytes(b"former")
    download(f"{address}/file", tmp_path / "file", SHA)
    assert (tmp_path / "file").read_bytes() == CONTENT


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


def test_a_file_that_is_cut_short_is_named(tmp_path: Path):
    row = b'{"reviewerID": "a", "reviewText": "b", "overall": 5.0, "unixReviewTime": 1}\n'
    whole = gzip.compress(row * 999)
    (tmp_path / "reviews_Musical_Instruments_5.json.gz").write_bytes(whole[:-9])
    with pytest.raises(UserError, match="gzip"):
        cuts.reviews(tmp_path, tmp_path)
    (tmp_path / "News_Category_Dataset_v2.json").write_text('{"date": ')
    with pytest.raises(UserError, match="line 1 is not JSON"):
        cuts.headlines(tmp_path, tmp_path)
    (tmp_path / "News_Category_Dataset_v2.json").write_bytes(b'{"date": "\xff"}')
    with pytest.raises(UserError, match="not UTF-8"):
        cuts.headlines(tmp_path, tmp_path)
    damaged = bytearray(whole)
    damaged[20] ^= 0xFF
    (tmp_path / "reviews_Musical_Instruments_5.json.gz").write_bytes(damaged)
    with pytest.raises(UserError, match=r"delete the file and download it again"):
        cuts.reviews(tmp_path, tmp_path)
    number = '{"authors": "a", "headline": null, "short_description": "b", "date": 20200101}'
    for other in ("[]", '{"authors": ""}', number):
        (tmp_path / "News_Category_Dataset_v2.json").write_text(other)
        with pytest.raises(UserError, match="line 1 has no"):
            cuts.headlines(tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("questions", "outputs"), [([], {"golds": []}), ([{"id": "1"}], {"golds": []}), ([{}], []), ([], {})]
)
def test_other_files_than_lamp_7s_are_refused(questions: Any, outputs: Any, tmp_path: Path):
    (tmp_path / "dev_questions.json").write_text(json.dumps(questions))
    (tmp_path / "dev_outputs.json").write_text(json.dumps(outputs))
    with pytest.raises(UserError, match="LaMP"):
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
