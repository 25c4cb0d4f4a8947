"""Encoding against torch one text at a time, alone and in company, on 8 devices and 1."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental.compilation_cache import compilation_cache
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, processors

from pbr_jax.base import compilation
from pbr_jax.base.types import UserError
from pbr_jax.config import Encoder
from pbr_jax.models.pretrained import locate
from pbr_jax.text import encode
from pbr_jax.text.encode import Role, TextEncoder

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghij", "query", "passage", ":"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random BERT of 300 positions with its tokenizer."""
    path = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=300, initializer_range=0.5,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(path)
    backend = Backend(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    backend.save(str(path / "tokenizer.json"))
    return path


def reference(folder: Path, texts: Sequence[str], *, cls: bool = False, unit: bool = False) -> np.ndarray:
    """torch, one text at a time, without padding."""
    model = transformers.BertModel.from_pretrained(folder).eval()
    tokenizer = Backend.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(300)
    rows = []
    for text in texts:
        with torch.no_grad():
            states = model(torch.tensor([tokenizer.encode(text).ids])).last_hidden_state[0]
        vector = states[0] if cls else states.mean(0)
        rows.append((vector / vector.norm() if unit else vector).numpy())
    return np.stack(rows)


def some_texts(n: int, longest: int = 310) -> list[str]:
    """Random texts of every length, cut ones and equal ones among them."""
    rng = np.random.default_rng(n)
    texts = [" ".join(rng.choice(list("abcdefghij"), rng.integers(0, longest))) for _ in range(n)]
    return texts + texts[:2]


def encoder(folder: Path, *, devices: int = 1, **options: Any) -> TextEncoder:
    return TextEncoder(Encoder(model=str(folder), **options), devices=jax.devices()[:devices])


@pytest.mark.long
@pytest.mark.parametrize(("pooling", "normalize"), [("mean", "no"), ("cls", "yes")])
@pytest.mark.parametrize("n", [1, 40])
def test_equals_torch_text_by_text(n: int, pooling: str, normalize: str, folder: Path) -> None:
    texts = some_texts(n)
    ours = encoder(folder, pooling=pooling, normalize=normalize, batch_tokens=256).encode(texts)
    assert ours.dtype == np.float32
    wanted = reference(folder, texts, cls=pooling == "cls", unit=normalize == "yes")
    np.testing.assert_allclose(ours, wanted, atol=1e-5, rtol=0)


@pytest.mark.long
@pytest.mark.parametrize("role", ["query", "document"])
@pytest.mark.parametrize("model", ["random", "all-MiniLM-L6-v2"])
def test_company_changes_no_bit(model: str, role: Role, folder: Path) -> None:
    if model != "random" and not is_installed(model):
        pytest.skip(f"{model} is not installed")
    ours = encoder(folder if model == "random" else Path(model))
    texts = list(dict.fromkeys(some_texts(12, 40)))
    alone = np.concatenate([ours.encode([text], role=role) for text in texts])

    @settings(max_examples=5, deadline=None, derandomize=True)
    @given(st.lists(st.integers(0, len(texts) - 1), min_size=1, max_size=30))
    def holds(company: list[int]) -> None:
        together = ours.encode([texts[i] for i in company], role=role)
        np.testing.assert_array_equal(together, alone[company])

    holds()


def is_installed(model: str) -> bool:
    try:
        return locate(model).is_dir()
    except UserError:
        return False


@pytest.mark.long
def test_batch_sizes_and_devices_change_little(folder: Path) -> None:
    texts = some_texts(10, 60)
    wanted = encoder(folder).encode(texts)
    for options in (dict(batch_tokens=1), dict(batch_tokens=2000), dict(devices=8)):
        np.testing.assert_allclose(encoder(folder, **options).encode(texts), wanted, atol=1e-5, rtol=0)
    assert encoder(folder, devices=8).encode(["a b"]).shape == (1, 16)


def test_windows_change_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = some_texts(20)
    wanted = encoder(folder).encode(texts)
    monkeypatch.setattr(encode, "WINDOW", 7)
    np.testing.assert_array_equal(encoder(folder).encode(texts), wanted)


def test_equal_texts_are_encoded_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = encoder(folder)
    sent: list[str] = []
    genuine = type(ours.tokenizer).encode_batch

    def spy(self: object, texts: Sequence[str]) -> list[list[int]]:
        sent.extend(texts)
        return genuine(ours.tokenizer, texts)

    monkeypatch.setattr(type(ours.tokenizer), "encode_batch", spy)
    vectors = ours.encode(["a", "b", "a", "a"])
    assert sent == ["a", "b"]
    np.testing.assert_array_equal(vectors[[0, 0, 0]], vectors[[0, 2, 3]])
    assert np.abs(vectors[0] - vectors[1]).max() > 1e-3


def test_prefixes_by_role(folder: Path) -> None:
    ours = encoder(folder, query_prefix="query: ", document_prefix="passage: ")
    wanted = reference(folder, ["query: a b", "passage: a b"])
    np.testing.assert_allclose(ours.encode(["a b"], role="query"), wanted[:1], atol=1e-5, rtol=0)
    np.testing.assert_allclose(ours.encode(["a b"]), wanted[1:], atol=1e-5, rtol=0)


def test_no_texts_and_empty_text(folder: Path) -> None:
    ours = encoder(folder)
    assert ours.encode([]).shape == (0, 16)
    np.testing.assert_allclose(ours.encode([""]), reference(folder, [""]), atol=1e-5, rtol=0)


@pytest.mark.long
def test_few_programs_are_compiled(folder: Path) -> None:
    ours = encoder(folder, batch_tokens=512, pooling="cls")
    program = encode._forward(ours.bert_config, "cls", False, ours._lanes > 1, 0)
    before = program._cache_size()
    for n in (100, 150, 200):
        ours.encode(some_texts(n))
    assert 0 < program._cache_size() - before <= len(encode.row_sizes(300))


def test_fingerprint_sees_what_embeddings_depend_on(folder: Path) -> None:
    same = [
        encoder(folder),
        encoder(folder, batch_tokens=64),
        encoder(folder, pooling="mean", max_length=300),
    ]
    assert len({e.fingerprint for e in same}) == 1
    changes: list[dict[str, Any]] = [
        dict(pooling="cls"), dict(normalize="yes"), dict(max_length=9), dict(query_prefix="q"),
        dict(dtype="bfloat16"),
    ]  # fmt: skip
    others = [encoder(folder, **options) for options in [{}, dict(document_prefix="q"), *changes]]
    assert len({e.fingerprint for e in others}) == 7


def test_vectors_key_sees_what_a_roles_vectors_depend_on(folder: Path) -> None:
    plain, asking = encoder(folder), encoder(folder, query_prefix="q")
    assert asking.vectors_key("document") == plain.vectors_key("document") != plain.vectors_key("query")
    assert asking.vectors_key("query") != plain.vectors_key("query")
    assert encoder(folder, batch_tokens=64).vectors_key("document") != plain.vectors_key("document")


@pytest.mark.long
@pytest.mark.parametrize("pooling", [pytest.param("mean", marks=pytest.mark.long), "cls"])
def test_bfloat16_is_near_and_its_vectors_are_float32(folder: Path, pooling: str) -> None:
    texts = some_texts(20)
    wide = encoder(folder, pooling=pooling, normalize="yes")
    narrow = encoder(folder, pooling=pooling, normalize="yes", dtype="bfloat16")
    assert narrow._params["layers"]["up"]["kernel"].dtype == "bfloat16"
    assert narrow._params["layers"]["mlp_norm"]["scale"].dtype == "float32"
    found, wanted = narrow.encode(texts), wide.encode(texts)
    assert found.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)  # pooled in float32
    assert not np.array_equal(found, wanted)
    assert (found * wanted).sum(1).min() >= 0.999


@pytest.mark.long
@pytest.mark.data
def test_bfloat16_finds_what_float32_finds(real_data: Path, weights: None) -> None:
    """Headlines of a benchmark: cosines, and how much of the ten nearest is the same."""
    rows = json.loads((real_data / "LaMP_4_huffpost" / "train_questions.json").read_text())
    texts = list(dict.fromkeys(one["text"] for row in rows for one in row["profile"]))[:300]
    wide, narrow = (TextEncoder(Encoder(dtype=dtype)).encode(texts) for dtype in ("float32", "bfloat16"))
    assert (wide * narrow).sum(1).min() >= 0.999
    nearest = [np.argsort(-(x[:60] @ x[60:].T), axis=1)[:, :10] for x in (wide, narrow)]
    same = [len({*a} & {*b}) / 10 for a, b in zip(*nearest, strict=True)]
    assert np.mean(same) >= 0.98


def test_settings_that_do_not_fit(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="more than the 300 positions"):
        encoder(folder, max_length=301)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(UserError, match="GGUF"):
        encoder(tmp_path / "model.gguf")


@pytest.fixture
def compilation_settings() -> Iterator[None]:
    """As they were, afterwards."""
    names = (
        "jax_compilation_cache_dir",
        "jax_persistent_cache_min_compile_time_secs",
        "jax_persistent_cache_min_entry_size_bytes",
    )
    before = {name: getattr(jax.config, name) for name in names}
    compilation_cache.reset_cache()  # another test may have opened one elsewhere
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.mark.usefixtures("compilation_settings")
def test_compilation_cache_is_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    compilation.enable_compilation_cache(tmp_path / "xla")
    jax.jit(lambda x: x * 3 + 1)(np.arange(7.0)).block_until_ready()
    assert any((tmp_path / "xla").iterdir())


@pytest.mark.usefixtures("compilation_settings")
def test_a_folder_that_the_user_has_chosen_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "chosen"))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "chosen"))
    compilation.enable_compilation_cache(tmp_path / "xla")
    jax.jit(lambda x: x * 5 + 1)(np.arange(7.0)).block_until_ready()
    assert any((tmp_path / "chosen").iterdir())
    assert not (tmp_path / "xla").exists()


@pytest.mark.long
@pytest.mark.slow
def test_real_minilm_equals_sentence_transformers() -> None:
    try:
        folder = locate("all-MiniLM-L6-v2")
    except UserError as error:
        pytest.skip(str(error))
    texts = [
        "The weather is lovely today.", "It's so sunny outside!", "", "naïve café, 東京 🙂", "A",
        "He drove to the stadium.", "guitar strings " * 200, "What is the score of this review?",
        "UPPER lower\nnew line", "the " * 64,
    ]  # fmt: skip
    ours = TextEncoder(Encoder(), devices=jax.devices()[:1]).encode(texts)
    sentence_transformers = pytest.importorskip("sentence_transformers")
    peer = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    np.testing.assert_allclose(ours, peer.encode(texts), atol=1e-5, rtol=0)
