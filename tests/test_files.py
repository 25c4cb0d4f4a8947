"""JSON from anybody: the same values as the standard library's, and bounds before memory is taken."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pbr_jax
from pbr_jax.base.files import DEEPEST, LONGEST_NUMBER, JsonBounds, parse_json

TEXTS = st.text(st.sampled_from(list('ab"\\[]{}19,é\n')), max_size=8)
VALUES = st.recursive(
    TEXTS | st.integers() | st.floats(allow_nan=False) | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=12,
)


@given(VALUES, st.booleans())
def test_values_are_the_standard_librarys(value: Any, ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii)
    assert parse_json(text) == parse_json(text.encode()) == value


def depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


@given(VALUES, st.integers(0, 4), st.integers(1, 30))
def test_depth_is_counted_whatever_strings_hold_and_wherever_the_file_is_cut(
    value: Any, more: int, size: int
) -> None:
    lists = DEEPEST - 2 + more
    text = ("[" * lists + json.dumps(value) + "]" * lists).encode()
    bounds = JsonBounds()

    def feed() -> None:
        for start in range(0, len(text), size):
            bounds.feed(text[start : start + size])

    if depth(value) + lists > DEEPEST:
        with pytest.raises(ValueError, match="nested more than 100 deep"):
            feed()
    else:
        feed()


@pytest.mark.parametrize("size", [1, 4000, 10**6])
@pytest.mark.parametrize("start", [b"[1, -", b'["5", ', b'{"a\\"1":'])
def test_long_numbers_are_refused(start: bytes, size: int) -> None:
    bounds, text = JsonBounds(), start + b"7" * LONGEST_NUMBER
    for place in range(0, len(text), size):
        bounds.feed(text[place : place + size])
    with pytest.raises(ValueError, match="more than 4300 digits"):
        bounds.feed(b"7")
    JsonBounds().feed(b'"' + b"7" * 9999 + b'"')


HOSTILE = """
import resource, sys
from pathlib import Path
from pbr_jax.data import json_stream
from pbr_jax.models import pretrained
from pbr_jax.base.types import UserError

path = Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_DATA, (600 << 20, 600 << 20))  # bytes; half are there already
for content in ("[" * 40_000, "[" * 200_000, '[{"a":' * 40_000, "[" + "7" * 10**6 + "]"):
    path.write_text(content)
    for read in (json_stream.records, json_stream.lines, json_stream.load, pretrained.read_json):
        try:
            list(read(path))
        except UserError as error:
            assert str(path) in str(error)
            assert any(word in str(error) for word in ("nested", "digits", "wanted a JSON list"))
        else:
            raise AssertionError(read)
"""


def test_deep_nesting_and_long_numbers_take_no_memory(tmp_path: Path) -> None:
    pytest.importorskip("resource")
    command = [sys.executable, "-c", HOSTILE, str(tmp_path / "hostile.json")]
    subprocess.run(command, check=True, timeout=100)


# What these read, this program wrote into its own cache, where digests guard it; or it is one string; or a
# process of the same run said it, which knows the run's password.
OWN = {
    "corpus/schema.py", "corpus/store.py", "data/own.py", "base/processes.py", "experiment/audit.py",
    "experiment/run_folder.py", "external/host.py", "importing/writing.py", "methods/retrieve/external.py",
    "serving/graph_store.py", "llm/http/client.py", "methods/expand/parsing.py",
    "methods/neighbours/cohorts.py", "methods/retrieve/centred.py", "methods/select/purple_training.py",
    "options/shared.py", "stages/profiles.py", "stages/records.py", "stages/run.py", "stages/together.py",
    "stages/trained.py", "stream/stage.py", "tasks/states.py", "train/metrics.py",
}  # fmt: skip


def test_files_of_others_are_read_within_bounds_everywhere() -> None:
    root = Path(pbr_jax.__file__).parent
    unbounded = {
        file.relative_to(root).as_posix()
        for file in root.rglob("*.py")
        if re.search(r"json\.loads?\b", file.read_text(encoding="utf-8"))
    }
    assert unbounded <= OWN
