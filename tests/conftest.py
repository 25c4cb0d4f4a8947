"""Eight virtual CPU devices, strict numerics, and the places of real weights and real data."""

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

# Test workers share the cores, and torch's threads spin while they wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Workers and the processes that tests start share what they compile; the first process makes the folder.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    _compiled = tempfile.TemporaryDirectory(prefix="pbr_jax_tests_")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _compiled.name

import jax
import pytest
from hypothesis import settings

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_default_matmul_precision", "highest")

# A slow machine is no fault, and CI tries the same cases every time.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if "CI" in os.environ else "default")

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


@pytest.fixture(scope="session")
def weights() -> None:
    """Skips where the embedded default models are not installed."""
    from pbr_jax.models import pretrained
    from pbr_jax.types import UserError

    try:
        for name in pretrained.EMBEDDED:
            pretrained.locate(name)
    except UserError as error:
        pytest.skip(str(error))


Tweets = Mapping[str, Sequence[str]]


@pytest.fixture
def write_tweets(tmp_path: Path) -> Callable[[Tweets], Path]:
    """Writes histories as a LaMP-7 dev split; each user's question rephrases the last tweet, or "hello"."""

    def write(histories: Tweets) -> Path:
        folder = tmp_path / "tweets"
        folder.mkdir(exist_ok=True)
        start = "Paraphrase the following tweet without any explanation before or after it: "
        questions = [
            {
                "id": user,
                "input": start + (f"About that: {tweets[-1]}" if tweets else "hello"),
                "profile": [{"id": f"{user}-{i}", "text": tweet} for i, tweet in enumerate(tweets)],
            }
            for user, tweets in histories.items()
        ]
        golds = [{"id": user, "output": f"{user} says hi"} for user in histories]
        (folder / "dev_questions.json").write_text(json.dumps(questions))
        (folder / "dev_outputs.json").write_text(json.dumps({"task": "LaMP_7", "golds": golds}))
        return folder

    return write
