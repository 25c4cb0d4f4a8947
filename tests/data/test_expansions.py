"""Released expansions: what is read, and what a wrong file is told."""

import json
from pathlib import Path
from typing import Any

import pytest

from pbr_jax.base.types import UserError
from pbr_jax.data import expansions
from pbr_jax.data.expansions import Expansion


def put(folder: Path, value: Any) -> Path:
    path = folder / "expansions.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def test_a_question_gets_what_was_written_for_it(tmp_path: Path):
    values = {
        "7": {"utterances": ["Well, tea?", "Häh"], "reasoning": "First ..."},
        "8": {"utterances": [], "reasoning": " "},
    }
    find = expansions.read(put(tmp_path, values))
    assert find("7") == Expansion(("Well, tea?", "Häh"), ("First ...",))
    assert find("8") == Expansion()


def test_the_fingerprint_is_of_the_content(tmp_path: Path):
    first = expansions.fingerprint(put(tmp_path, {}))
    assert expansions.fingerprint(put(tmp_path, {"a": {"utterances": [], "reasoning": ""}})) != first
    assert expansions.fingerprint(put(tmp_path, {})) == first


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("[1]", "found a list, wanted a JSON object"),
        ('{"7": ', "malformed or truncated JSON"),
        ({"7": ["a"]}, "field '7': found a list, wanted an object"),
        ({"7": {"reasoning": ""}}, "field '7.utterances': found no such key"),
        ({"7": {"utterances": ["a", 3], "reasoning": ""}}, "field '7.utterances': found a number"),
        ({"7": {"utterances": [float("nan")], "reasoning": ""}}, "field '7.utterances': found null"),
        ({"7": {"utterances": [], "reasoning": float("nan")}}, "field '7.reasoning': found null"),
        ({"7": {"utterances": [" "], "reasoning": ""}}, "field '7.utterances': found an empty string"),
        ({"7": {"utterances": ["a"], "reasoning": ["b"]}}, "field '7.reasoning': found a list"),
    ],
)
def test_a_malformed_file_is_told_in_one_line(tmp_path: Path, value: Any, words: str):
    path = put(tmp_path, value)
    with pytest.raises(UserError) as caught:
        expansions.read(path)
    assert str(path) in str(caught.value)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_missing_question_are_told(tmp_path: Path):
    for use in (expansions.read, expansions.fingerprint):
        with pytest.raises(UserError, match=r"found no such file of expansions; check --expand\.released"):
            use(tmp_path / "none.json")
    find = expansions.read(put(tmp_path, {"7": {"utterances": ["a"], "reasoning": "b"}}))
    with pytest.raises(UserError, match="no expansion for question '9'"):
        find("9")
