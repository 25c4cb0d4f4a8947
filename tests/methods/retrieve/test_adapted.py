"""States of LUF's retriever that others wrote: what they hold is checked before it is used."""

from pathlib import Path

import numpy as np
import pytest

from pbr_jax.base.types import UserError
from pbr_jax.config import Config, override
from pbr_jax.experiment.plan import Plan
from pbr_jax.methods.retrieve import Adapted
from pbr_jax.methods.retrieve import adapted as luf_state
from pbr_jax.text.encode import TextEncoder


@pytest.mark.parametrize(
    ("header", "params", "message"),
    [
        ({}, {"map": np.eye(16, dtype=np.float32)}, None),
        ({"questions": 0}, None, None),
        ({}, None, "lacks the parameters of moves 'map' for this encoder"),
        ({}, {"map": np.eye(3, dtype=np.float32)}, "lacks the parameters of moves 'map'"),
        ({}, {"map": np.eye(16, dtype=np.int32)}, "lacks the parameters of moves 'map'"),
        ({"moves": "both"}, {"map": np.eye(16, dtype=np.float32)}, "lacks the parameters of moves 'both'"),
        ({"moves": 5}, {"map": np.eye(16, dtype=np.float32)}, "lacks the parameters of moves 5"),
        ({"encoder": None}, {"map": np.eye(16, dtype=np.float32)}, "was learned with the encoder None"),
        ({}, {"map": np.full((16, 16), np.nan, np.float32)}, "holds NaN or infinity"),
    ],
)
def test_a_state_of_others_is_checked_before_it_is_used(
    header, params, message: str | None, write_tweets, tiny_models, tmp_path: Path
):
    place = {"benchmark.name": "lamp_7", "benchmark.root": str(write_tweets({"ann": ["i love tea"]}))}
    told = {**place, "benchmark.training": "none", "encoder.normalize": "yes", **tiny_models}
    options = override(Config(retrieve=Adapted(state=str(tmp_path))), told)
    state = luf_state.State("map", TextEncoder(options.encoder).fingerprint, questions=4, steps=1)
    luf_state.write(tmp_path, state._replace(**header), params)
    if message is None:
        Plan(options).check()
    else:
        with pytest.raises(UserError, match=message):
            Plan(options).check()
