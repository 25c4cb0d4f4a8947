"""Eight virtual CPU devices, strict numerics, and the places of real weights and real data."""

import json
import os
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

# Test workers share the cores, and torch's threads spin while they wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# For the same reason each worker, and with it XLA's threads, keeps to its own share of the cores.
if "PYTEST_XDIST_WORKER" in os.environ and hasattr(os, "sched_setaffinity"):
    _worker, _workers = (
        int(os.environ["PYTEST_XDIST_WORKER"][2:]),
        int(os.environ["PYTEST_XDIST_WORKER_COUNT"]),
    )
    _cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, _cores[_worker::_workers] or [_cores[_worker % len(_cores)]])

# Eight devices on one busy core may meet late, for which XLA would end the process after 40 seconds.
os.environ["XLA_FLAGS"] = (
    f"--xla_cpu_collective_call_terminate_timeout_seconds=600 {os.environ.get('XLA_FLAGS', '')}"
)

# Workers and the processes that tests start share what they compile; the first process makes the folder.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    _compiled = tempfile.TemporaryDirectory(prefix="pbr_jax_tests_")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _compiled.name

import jax
import pytest
from hypothesis import settings
from jaxtyping import install_import_hook
from shaped import SHAPED
from tiny import save_byte_tokenizer

install_import_hook(SHAPED, "beartype.beartype")

# Type checks of containers draw the item to look at. They draw it from a generator of their own: a finalizer
# may run in the middle of a Hypothesis strategy, which may not touch the global generator.
random.getrandbits = random.Random(0).getrandbits

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_default_matmul_precision", "highest")

# A slow machine is no fault, and CI tries the same cases every time.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if "CI" in os.environ else "default")

DATA = Path(os.environ.get("PBR_JAX_DATA", Path(__file__).parents[2] / "shared" / "data"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests first, so that no worker is left with one at the end."""
    items.sort(key=lambda item: not any(item.get_closest_marker(name) for name in ("long", "slow")))


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


@pytest.fixture
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The empty cache of one test."""
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def weights() -> None:
    """Skips where the embedded default models are not installed."""
    from pbr_jax.base.types import UserError
    from pbr_jax.models import pretrained

    try:
        for name in pretrained.EMBEDDED:
            pretrained.locate(name)
    except UserError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def embedded_by_transformers(weights: None) -> Any:
    """The embedded language model as transformers reads it into torch, float32."""
    import transformers
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    from pbr_jax.models import pretrained

    path = pretrained.locate("SmolLM2-135M-Instruct")
    sizes: Any = transformers.AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    model = transformers.LlamaForCausalLM(sizes).eval()
    state = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert set(missing) <= {"lm_head.weight"}
    assert not unexpected
    model.tie_weights()
    return model


Tweets = Mapping[str, Sequence[str]]


@pytest.fixture
def write_tweets(tmp_path: Path) -> Callable[..., Path]:
    """Writes histories as a split of LaMP-7; each user's question rephrases the last tweet, or "hello"."""

    def write(histories: Tweets, split: str = "dev") -> Path:
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
        (folder / f"{split}_questions.json").write_text(json.dumps(questions))
        (folder / f"{split}_outputs.json").write_text(json.dumps({"task": "LaMP_7", "golds": golds}))
        return folder

    return write


@pytest.fixture
def reseal() -> Callable[[Path], None]:
    """Records the hashes of a run's files anew, as if the run had written them as they are."""
    from pbr_jax.eval.run_files import sealed

    def write(folder: Path) -> None:
        file = folder / "results.json"
        file.write_text(json.dumps(sealed(folder, json.loads(file.read_text()))))

    return write


@pytest.hookimpl(tryfirst=True)  # before fixtures of modules, which compile too
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Small models compile for longer than they compute: their tests and processes compile less.

    Tests of real weights and real data run programs that are compiled as users have them.
    """
    asked = set(getattr(item, "fixturenames", ()))
    less = "tiny_models" in asked or not asked & {"weights", "real_data"}
    jax.config.update("jax_disable_most_optimizations", less)
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = str(int(less))


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders of a random encoder of a few words and a random language model of bytes, as config fields."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    torch.manual_seed(0)
    encoder, llm = tmp_path_factory.mktemp("bert"), tmp_path_factory.mktemp("llama")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "tea", "cats", "football", "violins", "i", "love", "about"]
    words += ["that", "day", *"0123456789"]
    sizes: Any = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    sizes |= dict(vocab_size=len(words), max_position_embeddings=64)
    bert = transformers.BertModel(transformers.BertConfig(initializer_range=0.5, **sizes))
    bert.save_pretrained(encoder)
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(str(encoder / "tokenizer.json"))

    sizes |= dict(vocab_size=save_byte_tokenizer(llm), max_position_embeddings=4096, num_key_value_heads=2)
    sizes |= dict(bos_token_id=0, eos_token_id=1, pad_token_id=0)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(initializer_range=0.3, **sizes)).save_pretrained(
        llm
    )
    return {"encoder.model": str(encoder), "llm.model": str(llm)}
