"""Single questions in the terminal: cards of one run and of several, and answers as JSON."""

import html
import json
import re
import shutil
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from pbr_jax import ask, run
from pbr_jax.base import terminal
from pbr_jax.base.terminal import Paragraph
from pbr_jax.cli.main import main
from pbr_jax.config import Config, override
from pbr_jax.methods import retrieve

CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
HOSTILE = "\x1b[2J\x9b31m\u202e"


@pytest.fixture(scope="module")
def config(tiny_models: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Config:
    """Of data of one's own: ann has three documents, of which two are ranked and one is hostile."""
    root = tmp_path_factory.mktemp("mine")
    documents = [("tea", "i love tea"), ("cats", f"cats {HOSTILE} that day"), ("ball", "football that day")]
    lines = [{"id": id, "user": "ann", "time": f"2024-01-0{i}", "text": text}
             for i, (id, text) in enumerate(documents, 1)]  # fmt: skip
    lines.append({"id": "tea", "user": "bob", "time": "2024-01-01", "text": "i love violins"})
    questions = [
        {"id": "a-1", "user": "ann", "time": "2024-02-01", "input": f"what do i love {HOSTILE}",
         "target": f"tea{HOSTILE}", "relevant": ["tea"], "category": "drinks"},
        {"id": "a-2", "user": "ann", "time": "2024-02-02", "input": "what day", "target": "that",
         "relevant": ["tea", "cats", "ball"]},
        {"id": "b-1", "user": "bob", "time": "2024-02-02", "input": "what do i love", "target": "tea"},
    ]  # fmt: skip
    (root / "task.toml").write_text('kind = "generation"\n')
    for name, records in (("documents", lines), ("dev", questions)):
        (root / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    place = {"benchmark.name": "own", "benchmark.root": str(root)}
    short = {"generate.method": "ipa", "generate.max_new_tokens": 3, "eval.resamples": 20, "retrieve.k": 2}
    base = Config(system="fused", retrieve=retrieve.Fused())
    return override(base, {**place, **tiny_models, **short})


@pytest.fixture(scope="module")
def folder(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PBR_JAX_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        return run(config, tmp_path_factory.mktemp("runs") / "fused").path


def shown(capfd: pytest.CaptureFixture[str], *words: object) -> str:
    assert main(["show", *map(str, words)]) == 0
    return capfd.readouterr().out


@pytest.mark.long
def test_a_card_says_what_the_runs_files_say(folder: Path, capfd: pytest.CaptureFixture[str]):
    text = shown(capfd, folder, "--question", "a-1")
    (record, *_) = (json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines())
    assert text.startswith(
        "question a-1 · user ann · category drinks · 3 documents in the history · 2024-02-01\n"
    )
    assert f"rouge1 {record['metrics']['rouge1']:.3g}" in text
    for rank, told in enumerate(record["documents"], 1):
        parts = ", ".join(f"{name} {score:.3g}" for name, score in told["scores"].items())
        assert f"    {rank}. {told['id']} · score {told['score']:.3g} ({parts}) · 2024-01-0" in text
    assert [line.split(".")[0].strip() for line in text.splitlines() if line.endswith(" · relevant")] == [
        str(1 + [told["id"] for told in record["documents"]].index("tea"))
    ]
    assert f"of {record['prompt_tokens']} tokens" in text
    second = shown(capfd, folder, "--question", "a-2")
    (missing,) = {"tea", "cats", "ball"} - set(re.findall(r"\d\. (\w+) · ", second))
    assert f"relevant, and not ranked: {missing}\n" in second
    assert "not ranked" not in text
    assert "[user]" not in text
    assert "    [user]\n" in shown(capfd, folder, "--question", "a-1", "--prompt")
    assert "and 1 more" in shown(capfd, folder, "--question", "a-1", "--documents", "1")


def test_what_users_wrote_controls_no_terminal(folder: Path, capfd: pytest.CaptureFixture[str]):
    for words in ([], ["--prompt"], ["--json", "--prompt"]):
        assert not CONTROLS.search(shown(capfd, folder, "--user", "ann", *words))
    found = json.loads(shown(capfd, folder, "--question", "a-1", "--json", "--prompt"))
    (question,) = found["questions"]
    assert question["id"] == "a-1"
    card = question["runs"]["fused"]
    assert HOSTILE in card["input"]
    assert HOSTILE in card["target"]
    assert card["messages"][-1]["role"] == "user"
    assert [one["relevant"] for one in card["documents"]] == [one["id"] == "tea" for one in card["documents"]]


def test_a_users_first_questions_are_shown(folder: Path, capfd: pytest.CaptureFixture[str]):
    assert main(["show", str(folder), "--user", "ann", "--limit", "1"]) == 0
    printed = capfd.readouterr()
    assert printed.out.count("question a-") == 1
    assert printed.err == "1 of 2 questions of user ann; --limit N shows more\n"
    assert shown(capfd, folder, "--user", "ann").count("question a-") == 2
    found = json.loads(shown(capfd, folder, "--user", "ann", "--json", "--limit", "1"))
    assert ([one["id"] for one in found["questions"]], found["of"]) == (["a-1"], 2)
    assert "messages" not in found["questions"][0]["runs"]["fused"]


@pytest.mark.long
def test_runs_of_a_folder_stand_beside_each_other(
    config: Config, folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    shutil.copytree(folder, tmp_path / "fused")
    plain = override(config, {"system": "nothing", "retrieve.method": "none"})
    run(plain, tmp_path / "nothing")
    run(override(plain, {"seed": 1}), tmp_path / "nothing_1")
    text = shown(capfd, tmp_path, "--question", "b-1")
    headings = [line for line in text.splitlines() if line and not line.startswith(" ")]
    assert headings[0].startswith("question b-1 · user bob")
    assert [re.sub(r"\(.*/", "(", line) for line in headings[1:]] == [
        "fused", "nothing (nothing)", "nothing (nothing_1)"
    ]  # fmt: skip
    assert text.count("answer: ") == 3
    assert text.count("target: tea") == 1
    names = ", ".join(str(tmp_path / name) for name in ("fused", "nothing", "nothing_1"))
    for command in (["ask", "--user", "ann", "tea", "--run"], ["store", "log", "--run"]):
        assert main([*command, str(tmp_path)]) == 2
        (line,) = capfd.readouterr().err.splitlines()
        assert f"holds several runs, want one of them; give {names}" in line


def test_a_sweeps_runs_are_named_with_their_settings(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    shutil.copytree(folder, tmp_path / "fused")
    listed = {"run": "fused", "overrides": {"retrieve.k": 2}}
    (tmp_path / "sweep.jsonl").write_text(json.dumps(listed) + "\n")
    assert main(["ask", "--run", str(tmp_path), "--user", "ann", "tea"]) == 2
    assert f"give {tmp_path / 'fused'} (retrieve.k 2)" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--question", "a1"], "has no question 'a1'; did you mean 'a-1'?"),
        (["--question", "zzzz"], "has no question 'zzzz'; there are, for example, 'a-1' or 'a-2' or 'b-1'"),
        (["--user", "anna"], "has no question of user 'anna'; did you mean 'ann'?"),
        (["--user", "ann", "--limit", "0"], "--limit is 0, want at least 1"),
        (["--question", "a-1", "--documents", "0"], "--documents is 0, want at least 1"),
        (["--question", "a-1", "--user", "ann"], "not allowed with"),
        ([], "one of the arguments --question --user is required"),
    ],
)
def test_what_cannot_be_shown_is_one_line(
    folder: Path, words: list[str], told: str, capfd: pytest.CaptureFixture[str]
):
    assert main(["show", str(folder), *words]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert told in line


def test_a_folder_without_texts_shows_scores(
    config: Config, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    bare = run(override(config, {"keep_texts": False}), tmp_path / "bare")
    text = shown(capfd, bare.path, "--question", "a-1", "--prompt")
    assert "(the run keeps no texts)" in text
    assert "1. " in text
    assert "love" not in text


def test_a_notebook_shows_the_same_card(config: Config, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    found = run(override(config, {"system": "<b>&"}), tmp_path / "out")
    card = found.card("a-1")
    assert repr(card) + "\n" == shown(capfd, found.path, "--question", "a-1")
    assert card.runs["<b>&"].id == "a-1"
    texts: list[str] = []

    class Reader(HTMLParser):
        def handle_data(self, data: str) -> None:
            texts.append(data)

    Reader().feed(card._repr_html_())
    assert [line.strip() for line in "\n".join(texts).splitlines()] == [
        line.strip() for line in repr(card).splitlines() if line
    ]
    assert "<b>" not in card._repr_html_()
    assert not CONTROLS.search(html.unescape(card._repr_html_()))


class Screen(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("width", [20, 60])
def test_a_terminal_gets_lines_of_its_width(width: int, monkeypatch: pytest.MonkeyPatch):
    """Wide characters too, and no control but those of styles."""
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = "日本語の文章 " * 9 + "[bold]word " * 9 + HOSTILE
    terminal.page([Paragraph("head", 0, "bold"), Paragraph(text, 4)])
    lines = screen.getvalue().splitlines()
    assert lines[0].startswith("\x1b[1mhead\x1b[0m")
    bare = [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in lines]
    assert max(map(cell_len, bare)) <= width
    assert all(line.startswith("    ") for line in bare[1:])
    joined = "".join(line.strip() for line in bare[1:]).replace(" ", "")
    assert joined == terminal.visible(text).replace(" ", "")


def test_a_pipe_gets_whole_lines(capfd: pytest.CaptureFixture[str]):
    terminal.page([Paragraph("head", 0, "bold"), Paragraph("word " * 99 + "\nend", 4)])
    assert capfd.readouterr().out == f"head\n    {'word ' * 99}\n    end\n"


def test_an_answer_as_json_is_the_reply(
    folder: Path, capfd: pytest.CaptureFixture[str], reply: Callable[..., dict[str, Any]]
):
    found = reply(folder, "ann", "what do i love")
    expected = ask(folder, "ann", "what do i love")
    assert found["answer"] == expected.text
    assert [(one["id"], one["score"], one["text"]) for one in found["documents"]] == [
        (one.document.id, one.score, one.document.text) for one in expected.documents
    ]
    assert found["documents"][0]["scores"].keys() == {"bm25", "dense"}
    assert (found["user"], found["question"], found["run"]) == ("ann", "what do i love", str(folder))
    assert found["prompt_tokens"] > found["answer_tokens"] > 0
    assert found["seconds"] >= 0
    again = reply(folder, "ann", "what do i love")  # by the same open system: of one question, not of both
    assert again["prompt_tokens"] == found["prompt_tokens"]


@pytest.fixture
def reply(capfd: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    def asked(folder: Path, user: str, question: str) -> dict[str, Any]:
        capfd.readouterr()
        assert main(["ask", "--run", str(folder), "--user", user, "--json", question]) == 0
        (line,) = capfd.readouterr().out.splitlines()
        return json.loads(line)

    return asked
