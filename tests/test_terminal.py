"""What reaches a terminal: readable in every encoding, and never its controls."""

import ast
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pbr_jax.base import compilation, terminal
from pbr_jax.cli.main import main

PACKAGE = Path(terminal.__file__).parents[1]
HOSTILE = "\x1b[2Jred\x07\rover \x9b31m \u202etxt.exe\u2066 end\x00"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttab\nline", "plain\ttab\nline"),
        ("naïve 日本 مرحبا שלום\u200f", "naïve 日本 مرحبا שלום\u200f"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("a\rb\x08\x7f\x85\x9b", "a\\rb\\x08\\x7f\\x85\\x9b"),
        ("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029", None),
        ("caf\udce9", "caf\\udce9"),
    ],
)
def test_control_characters_are_shown_as_escapes(text: str, shown: str | None):
    wanted = shown if shown is not None else "".join(f"\\u{ord(c):04x}" for c in text)
    assert terminal.visible(text) == wanted


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("ascii", "\\u201ca\\u201d 3 \\xd7 4 \\u0394R \\u65e5 \\xe9"),
        ("cp437", "\\u201ca\\u201d 3 \\xd7 4 \\u0394R \\u65e5 é"),
        ("cp1252", "“a” 3 × 4 \\u0394R \\u65e5 é"),
        ("utf-8", "“a” 3 × 4 ΔR 日 é"),
    ],
)
def test_what_an_encoding_lacks_is_written_as_an_escape(
    encoding: str, shown: str, monkeypatch: pytest.MonkeyPatch
):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding, newline=""))
    terminal.prepare()
    terminal.out("“a” 3 × 4 ΔR 日 é")
    assert raw.getvalue().decode(encoding).rstrip("\r\n") == shown


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "utf-8"])
def test_a_bar_fits_the_console(encoding: str, monkeypatch: pytest.MonkeyPatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(raw, encoding=encoding, errors="strict"))
    with terminal.bar(desc="feedback \x1b[2J", total=3, show=True) as bar:
        bar.update(2)
        bar.refresh()
    sys.stderr.flush()
    shown = raw.getvalue().decode(encoding)
    assert "feedback \\x1b[2J:  67%" in shown
    assert ("█" in shown) == (encoding == "utf-8")


def test_everything_is_printed_in_one_place():
    calls = (
        (path.name, node.func.id)
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    )
    found = {(file, name) for file, name in calls if name in ("print", "tqdm")}
    assert found == {("terminal.py", "print")}  # bars are a subclass there


@pytest.mark.parametrize("encoding", ["cp1252", "cp437", "ascii"])
@pytest.mark.parametrize("command", [["configs"], ["run", "cfrag", "--help-all"], ["report", "RUN"]])
def test_no_command_fails_for_a_console(
    command: list[str], encoding: str, histories_run: Path, monkeypatch: pytest.MonkeyPatch
):
    raw, told = io.BytesIO(), io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(told, encoding=encoding))
    words = [str(histories_run) if word == "RUN" else word for word in command]
    try:
        status = main(words)
    except SystemExit as error:
        status = error.code
    sys.stdout.flush()
    assert status == 0, told.getvalue()
    assert raw.getvalue().decode(encoding)


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "ascii"])
def test_a_bad_flag_is_told_without_a_frame(encoding: str, monkeypatch: pytest.MonkeyPatch):
    told = io.BytesIO()
    for name, raw in (("stdout", io.BytesIO()), ("stderr", told)):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(raw, encoding=encoding))
    assert main(["run", "bm25", "--retrieve.k=x", "--out", "none"]) == 2
    sys.stderr.flush()
    assert told.getvalue().startswith(b"pbr-jax: error: retrieve.k is 'x' (str), want int")
    assert b"--------" not in told.getvalue()
    told.seek(0)
    assert main(["run", "bm25", "--stream.folds", "3", "--out", "none"]) == 2
    sys.stderr.flush()
    assert told.getvalue().startswith(b"pbr-jax: error: stream.")


@pytest.fixture(scope="module")
def histories_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run whose users, questions and system are named with controls."""
    root = tmp_path_factory.mktemp("hostile")
    records = [
        {
            "id": f"q{i}{HOSTILE}",
            "input": f"{HOSTILE} what {i}",
            "profile": [{"id": f"d{i}-{n}{HOSTILE}", "text": f"{HOSTILE} text {n}"} for n in range(2)],
        }
        for i in range(2)
    ]
    golds = [{"id": record["id"], "output": f"{HOSTILE} out"} for record in records]
    (root / "dev_questions.json").write_text(json.dumps(records))
    (root / "dev_outputs.json").write_text(json.dumps({"task": "LaMP_7", "golds": golds}))
    place = ["--benchmark.name", "lamp_7", "--benchmark.root", str(root), "--system", f"mine{HOSTILE}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PBR_JAX_CACHE", str(root / "cache"))
        assert main(["run", "bm25", *place, "--generate.method", "none", "--out", str(root / "out")]) == 0
    return root / "out"


def test_no_control_of_a_file_reaches_the_terminal(histories_run: Path, capfd: pytest.CaptureFixture[str]):
    root = histories_run.parent
    place = ["--benchmark.name", "lamp_7", "--benchmark.root", str(root)]
    assert main(["report", str(histories_run)]) == 0
    assert main(["data", "validate", *place]) == 0
    assert main(["report", str(root / f"none{HOSTILE[:-1]}")]) == 2
    assert main(["picture", "--run", str(histories_run), "--question", "\x1b[2J", "--out", "x.svg"]) == 2
    printed = "".join(capfd.readouterr())
    assert "\\x1b[2J" in printed
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", printed)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_a_closed_stream_stops_no_work(closed: str, tmp_path: Path):
    """And no file that is opened afterwards takes its number, into which libraries would print."""
    code = (
        "from importlib.util import module_from_spec as made, spec_from_file_location as found; "
        f"spec = found('terminal', {str(PACKAGE / 'base' / 'terminal.py')!r}); "  # without jax
        "terminal = made(spec); "
        "spec.loader.exec_module(terminal); "
        "terminal.prepare(); terminal.err('e'); terminal.out('o'); "
        "terminal.bar(range(2)).close(); file = open('kept', 'w'); assert file.fileno() > 2"
    )
    script = f'exec "$@" {closed}'
    done = subprocess.run(
        ["bash", "-c", script, "-", sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr


def test_a_bar_shows_what_goes_on_within_a_step(monkeypatch):
    """Where there is no bar, what takes seconds has a line of its own, once."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with terminal.bar(desc="answers", total=3, show=True) as bar:
        terminal.doing("compiling decoding", slow=True)
        assert "0/3" in stream.getvalue()
        assert "compiling decoding" in stream.getvalue()
        bar.update()
        stream.truncate(0)
        bar.refresh()
        assert "1/3" in stream.getvalue()
        assert "compiling" not in stream.getvalue()
    stream.truncate(0)
    for _ in range(2):
        terminal.doing("loading a model of this test", slow=True)
        terminal.doing("5 tokens")
    assert stream.getvalue().strip("\0") == "loading a model of this test ...\n"


def test_every_program_is_announced_before_it_is_compiled(monkeypatch):
    told = []
    monkeypatch.setattr(terminal, "doing", lambda what, slow=False: told.append((what, slow)))
    double = compilation.compiled(lambda x: 2 * x, True)
    for size in (2, 2, 3):
        double(np.ones(size))
    assert told == [("compiling test_terminal", True)] * 2
