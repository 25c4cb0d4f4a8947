"""Which class a method's name stands for, where a process has loaded several config files."""

from pathlib import Path

import pytest

from pbr_jax.base.types import UserError
from pbr_jax.cli import flags
from pbr_jax.config import ConfigFile, load, override
from pbr_jax.sweeps import sweep as sweeps

SOURCE = """
from dataclasses import dataclass
from typing import Literal

from pbr_jax.config import Config
from pbr_jax.methods.retrieve import BM25


@dataclass(frozen=True, kw_only=True)
class Decayed(BM25):
    method: Literal["decayed"] = "decayed"
    half_life: float = DAYS


def get_config():
    return Config(system="plain")


def sweep():
    yield {"retrieve.method": "decayed"}
"""
PLAIN = (
    "from pbr_jax.config import Config\n\ndef get_config():\n    return Config()\n\nsweep = lambda: [%s]\n"
)


def loaded(folder: Path, name: str, source: str) -> ConfigFile:
    (folder / name).write_text(source)
    return load(folder / name)


def test_each_file_means_its_own_class(tmp_path: Path):
    """Whichever of them was loaded last."""
    one, two = (loaded(tmp_path, f"{d}.py", SOURCE.replace("DAYS", f"{d}.0")) for d in (1, 2))
    for file, days in ((one, 1.0), (two, 2.0), (one, 1.0)):
        (trial,) = sweeps.trials(file, file.config)
        assert trial.config.retrieve.half_life == days  # type: ignore[attr-defined]
        assert "--retrieve.method=decayed" in sweeps.command(file, trial, tmp_path)
        words = [str(file.path), "--retrieve.method", "decayed", "--retrieve.b", "0.5"]
        _, config = flags.config(words, flags.RUN)
        assert config.retrieve.half_life == days  # type: ignore[attr-defined]
        named = override(file.config, {"retrieve.method": "decayed"}, file.path)
        assert named.retrieve.half_life == days  # type: ignore[attr-defined]


def test_a_class_of_another_file_has_no_name_here(tmp_path: Path):
    loaded(tmp_path, "own.py", SOURCE.replace("DAYS", "1.0"))
    other = loaded(tmp_path, "other.py", PLAIN % '{"retrieve.method": "decayed"}')
    for refused in (
        lambda: sweeps.trials(other, other.config),
        lambda: override(other.config, {"retrieve.method": "decayed"}, other.path),
        lambda: flags.config([str(other.path), "--retrieve.method", "decayed"], flags.RUN),
    ):
        with pytest.raises(
            UserError, match=r"retrieve.method is 'decayed', want one of .*, or a class of your"
        ):
            refused()


def test_without_a_file_a_name_must_be_one_class_alone(tmp_path: Path):
    one = loaded(tmp_path, "one.py", SOURCE.replace("DAYS", "1.0").replace("decayed", "fading"))
    named = override(one.config, {"retrieve.method": "fading"})
    assert named.retrieve.half_life == 1.0  # type: ignore[attr-defined]
    loaded(tmp_path, "two.py", SOURCE.replace("DAYS", "2.0").replace("decayed", "fading"))
    with pytest.raises(
        UserError, match=r"'fading', which several classes are called: .*one.py.*two.py"
    ) as error:
        override(one.config, {"retrieve.method": "fading"})
    assert "\n" not in str(error.value)
