"""Eight virtual CPU devices, strict numerics, and the places of real weights and real data."""

import os
from pathlib import Path

import jax
import pytest

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_default_matmul_precision", "highest")

DATA = Path(os.environ.get("PBR_JAX_DATA", Path(__file__).parents[2] / "shared" / "data"))


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real benchmarks; tests that need it skip where it is absent."""
    if not DATA.is_dir():
        pytest.skip(f"real benchmark data not found at {DATA}; set PBR_JAX_DATA to its folder")
    return DATA


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's cache."""
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
