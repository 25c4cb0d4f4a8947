"""The completion scripts, asked by the shells themselves."""

import shutil
import subprocess
from pathlib import Path

import pytest

from pbr_jax.cli import main as cli

ASKS = r"""
source "$1"; shift
complete_words() {
  COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
  "$(complete -p pbr-jax | sed 's/.*-F \(\S*\).*/\1/')" pbr-jax "${COMP_WORDS[COMP_CWORD]}"
  printf '%s\n' "${COMPREPLY[@]}"
}
complete_words "$@"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("bash") is None:
        pytest.skip("bash is absent")
    path = tmp_path_factory.mktemp("completion") / "pbr-jax.bash"
    with pytest.MonkeyPatch.context() as patch:
        printed: list[str] = []
        patch.setattr("pbr_jax.base.terminal.out", lambda text: printed.append(str(text)))
        assert cli.main(["completion", "bash"]) == 0
    path.write_text("\n".join(printed))
    return path


def completed(script: Path, *words: str) -> list[str]:
    done = subprocess.run(
        ["bash", "-c", ASKS, "bash", str(script), "pbr-jax", *words],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["swe"], {"sweep"}),
        (["run", "zero"], {"zero_shot"}),
        (["run", "dense", "--retrieve.met"], {"--retrieve.method"}),
        (["run", "dense", "--retrieve.method", "bm"], {"bm25", "bm25_lamp"}),
        (["run", "dense", "--distr"], {"--distributed"}),
        (["data", "imp"], {"import"}),
        (["report", "--form"], {"--format"}),
        (["run", "nothing-begins-so"], set()),
    ],
)
def test_bash_completes(script: Path, words: list[str], wanted: set[str]):
    assert set(completed(script, *words)) == wanted


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells_have_scripts_with_the_commands(shell: str, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["completion", shell]) == 0
    assert "sweep" in capsys.readouterr().out


def test_an_unknown_shell_is_one_line(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["completion", "fish"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
