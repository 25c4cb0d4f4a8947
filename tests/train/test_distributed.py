"""Two processes that train one model."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import test_loop as model

from pbr_jax.train import loop

SCRIPT = """
import json, sys
from pathlib import Path
import jax
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
place, port, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=place)
import test_loop as model
from pbr_jax.train import loop
assert len(jax.devices()) == 4 and len(jax.local_devices()) == 2
fitted = loop.fit(model.task(), model.settings(devices=None), folder / "run", seed=1)
leaves = [jax.device_get(leaf.addressable_shards[0].data).tolist() for leaf in jax.tree.leaves(fitted.params)]
(folder / f"{place}.json").write_text(json.dumps({"step": fitted.step, "leaves": leaves}))
"""


@pytest.mark.long
def test_two_processes_train_one_model(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    arguments = [[sys.executable, "-c", SCRIPT, str(n), str(port), str(tmp_path)] for n in range(2)]
    processes = [subprocess.Popen(a, env=environment, stderr=subprocess.PIPE, text=True) for a in arguments]
    errors = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(errors)
    alone = loop.fit(model.task(), model.settings(), tmp_path / "alone", seed=1)
    for place in range(2):
        found = json.loads((tmp_path / f"{place}.json").read_text())
        assert found["step"] == alone.step
        for name, leaf in zip(("bias", "kernel"), found["leaves"], strict=True):
            np.testing.assert_allclose(leaf, alone.params["layer"][name], rtol=1e-5, atol=1e-6)
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    assert len(lines) == len(alone.metrics)  # one process writes
