"""Token vectors of a ColBERT and of a plain encoder against the models; MaxSim against the model's."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from pbr_jax.base.types import UserError
from pbr_jax.models import bert, colbert
from pbr_jax.text.token_encoder import Role, TokenEncoder, max_sims, mean_vectors

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "[unused0]",
    "[unused1]",
    ".",
    ",",
    "tea",
    "cats",
    "love",
]
SIZES: Any = dict(vocab_size=len(WORDS), hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
             intermediate_size=12, max_position_embeddings=24)  # fmt: skip
TEXTS = ["love tea .", "cats", "", "tea , cats , love tea " * 4]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A random ColBERT in the layout of the first release: 6 tokens of a query, 12 of a document."""
    torch.manual_seed(0)
    body = transformers.BertModel(
        transformers.BertConfig(initializer_range=0.5, **SIZES), add_pooling_layer=False
    )
    body.config.save_pretrained(tmp_path)
    tensors = {f"bert.{name}": np.ascontiguousarray(value) for name, value in body.state_dict().items()}
    tensors["linear.weight"] = torch.randn(4, 8).numpy()
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "artifact.metadata").write_text(json.dumps({"query_maxlen": 6, "doc_maxlen": 12}))
    write_tokenizer(tmp_path, WORDS)
    return tmp_path


def write_tokenizer(folder: Path, words: list[str]) -> None:
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(str(folder / "tokenizer.json"))


def ids(text: str, marker: int, length: int) -> list[int]:
    """[CLS], the marker, the text's tokens and [SEP], in `length` places at most."""
    words = [WORDS.index(word) for word in text.split()][: length - 3]
    return [2, marker, *words, 3]


@pytest.mark.long
def test_queries_are_marked_and_filled_with_masks(folder: Path):
    model, params, config = colbert.load(folder)
    found = TokenEncoder(str(folder)).encode(TEXTS, "query")
    for text, vectors in zip(TEXTS, found, strict=True):
        told = ids(text, 5, 6)
        filled, everywhere = jnp.array([told + [4] * (6 - len(told))]), jnp.ones((1, 6), bool)
        attended = everywhere if config.attend_to_mask_tokens else jnp.arange(6)[None] < len(told)
        wanted = model.apply(params, filled, attended=attended, kept=everywhere)[0]
        assert vectors.shape == (6, 4)
        np.testing.assert_allclose(vectors, wanted, atol=1e-5)


@pytest.mark.long
def test_documents_are_marked_and_lose_their_punctuation(folder: Path):
    model, params, _ = colbert.load(folder)
    found = TokenEncoder(str(folder)).encode(TEXTS, "document")
    for text, vectors in zip(TEXTS, found, strict=True):
        told = ids(text, 6, 12)
        kept = [i for i, token in enumerate(told) if token not in (7, 8)]
        wanted = model.apply(params, jnp.array([told]), attended=jnp.ones((1, len(told)), bool))[0]
        np.testing.assert_allclose(vectors, np.asarray(wanted)[kept], atol=1e-5)
    assert len(found[2]) == 3  # an empty text: [CLS], the marker and [SEP]


def test_a_plain_encoder_is_taken_as_it_is(tiny_models):
    folder = Path(tiny_models["encoder.model"])
    encoder = TokenEncoder(str(folder))
    assert not encoder.is_colbert
    model, params, _ = bert.load(folder)
    roles: tuple[Role, ...] = ("document", "query")
    for role in roles:
        vectors = encoder.encode(["i love tea about that day 1 2 3"], role)[0]
        told = encoder._tokenizers[role].encode_batch(["i love tea about that day 1 2 3"])[0]
        states = model.apply(params, jnp.array([told]), segments=jnp.ones((1, len(told)), jnp.int32))[0]
        assert len(vectors) == 11
        wanted = states / np.linalg.norm(states, axis=1, keepdims=True)
        np.testing.assert_allclose(vectors, wanted, atol=1e-5)


def test_the_same_on_eight_devices_alone_and_in_any_company(folder: Path):
    together = TokenEncoder(str(folder)).encode(TEXTS * 5, "document")
    one = TokenEncoder(str(folder), devices=jax.devices()[:1])
    assert len(jax.devices()) == 8
    for text, vectors in zip(TEXTS * 5, together, strict=True):
        np.testing.assert_allclose(one.encode([text], "document")[0], vectors, atol=1e-5)
    assert one.encode([], "document") == []


def test_the_best_match_of_every_token_is_summed():
    draw = np.random.default_rng(0)
    query, documents = draw.normal(size=(5, 4)), [draw.normal(size=(n, 4)) for n in (3, 0, 7, 1)]
    wanted = [
        sum(max((vector @ token for token in tokens), default=-1.0) for vector in query)
        for tokens in documents
    ]
    np.testing.assert_allclose(max_sims(query, documents), wanted, rtol=1e-5)
    means = mean_vectors([tokens.astype(np.float32) for tokens in documents], 4)
    np.testing.assert_allclose(
        means[0], documents[0].mean(0) / np.linalg.norm(documents[0].mean(0)), rtol=1e-5
    )
    assert not means[1].any()


def test_the_text_encoder_takes_a_colberts_body(folder: Path):
    assert bert.load(folder)[2].hidden_size == 8
    assert colbert.has_projection(folder)


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"query_length": 3}, "query_length is 3, want 4 to 24"),
        ({"document_length": 25}, "document_length is 25, want 4 to 24"),
    ],
)
def test_lengths_without_room_or_positions_are_refused(
    folder: Path, stated: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
):
    config = dataclasses.replace(colbert.read_config(folder), **stated)
    monkeypatch.setattr(colbert, "read_config", lambda folder, projection: config)
    with pytest.raises(UserError, match=message):
        TokenEncoder(str(folder))


def test_a_marker_that_the_vocabulary_lacks_is_refused(folder: Path):
    write_tokenizer(folder, [word.replace("unused", "used") for word in WORDS])
    with pytest.raises(UserError, match=r"vocabulary has no '\[unused0\]'"):
        TokenEncoder(str(folder))
    with pytest.raises(UserError, match="models are read from disk"):
        TokenEncoder("no such folder")
