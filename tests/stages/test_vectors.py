"""The text encoder as a part: which vectors are searched, and whose weights made them."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from pbr_jax.config import Encoder
from pbr_jax.stages import vectors


def test_other_weights_in_the_same_place_are_read_anew(tiny_models: Mapping[str, str], tmp_path: Path):
    place = tmp_path / "model"
    shutil.copytree(tiny_models["encoder.model"], place)
    options = Encoder(model=str(place))
    before = vectors._encoder(options)
    assert vectors._encoder(options) is before
    found = before.encode(["tea"])
    file = place / "model.safetensors"
    save_file({name: 2 * value for name, value in load_file(file).items()}, file)
    after = vectors._encoder(options)
    assert after.fingerprint != before.fingerprint
    assert np.abs(after.encode(["tea"]) - found).max() > 1e-3
    np.testing.assert_array_equal(before.encode(["tea"]), found)
