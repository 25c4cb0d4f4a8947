"""Parameters of trained slots leave a run and come back: the run that starts from them ranks alike."""

import json
from pathlib import Path

import numpy as np
import pytest
from test_trained_runs import config, histories  # of the tests' root, which conftest.py adds

import pbr_jax
from pbr_jax import models, train
from pbr_jax.base.types import UserError
from pbr_jax.cli.main import main
from pbr_jax.config import Training

pytestmark = pytest.mark.usefixtures("fresh_cache")


def ranked(results: pbr_jax.Results) -> list[list[tuple[str, float]]]:
    return [[(d["id"], d["score"]) for d in record["documents"]] for record in results.records()]


@pytest.mark.long
def test_a_run_that_starts_from_exported_parameters_ranks_as_the_one_that_trained_them(
    tiny_models, write_tweets, tmp_path: Path
):
    write_tweets(histories("a", 12), "train")
    parts = {"retrieve": "retriever", "select": "reranker", "neighbours": "user_encoder"}
    trained = config("cfrag", tiny_models, write_tweets(histories("b", 8)), **{"generate.method": "none"})
    first = pbr_jax.run(trained, tmp_path / "first")
    fields = {}
    for slot, part in parts.items():
        out = tmp_path / f"of_{slot}"
        assert main(["export", str(first.path), "--format", "state", "--slot", slot, "--out", str(out)]) == 0
        told = json.loads((out / "export.json").read_text())
        assert {part} <= {*told["key"]}
        assert told["slot"] == slot
        section = "user_encoder" if part == "user_encoder" else slot
        fields[f"{section}.training.start"] = str(out / part / "params.safetensors")
        fields[f"{section}.training.epochs"] = 0
    again = pbr_jax.run(trained, tmp_path / "again", overrides=fields)
    assert ranked(again) == ranked(first)
    untrained = {field: 0 for field in fields if field.endswith("epochs")}
    assert ranked(pbr_jax.run(trained, tmp_path / "untrained", overrides=untrained)) != ranked(first)


def test_other_parameters_and_no_file_are_one_line(tmp_path: Path):
    file = tmp_path / "own.safetensors"
    models.save_params({"head": np.ones((2, 3), np.float32)}, file)
    wanted = {"head": np.ones((2, 4), np.float32)}
    read = train.started(lambda: wanted, Training(start=str(file)))
    with pytest.raises(UserError, match=r"head has the shape \(2, 3\), want \(2, 4\); take a"):
        read()
    assert train.started(lambda: wanted, Training())() is wanted
    assert train.started(lambda: {"head": np.zeros((2, 3))}, Training(start=str(file)))()["head"].sum() == 6


def test_the_content_of_a_start_counts_in_keys_and_its_path_does_not(tmp_path: Path):
    from pbr_jax.options import key_of

    for name, value in (("a", 1), ("b", 1), ("c", 2)):
        models.save_params({"head": np.full(2, value, np.float32)}, tmp_path / name)
    a, b, c = (key_of(Training(start=str(tmp_path / name))) for name in "abc")
    assert a == b != c
    assert "start" not in key_of(Training())
    with pytest.raises(UserError, match="an option names nowhere, and there is no such file"):
        key_of(Training(start="nowhere"))
