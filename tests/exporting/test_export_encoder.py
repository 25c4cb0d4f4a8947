"""A tuned retriever as sentence-transformers loads it: the run's own vectors, and a card."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

import pbr_jax
from pbr_jax.base.types import UserError
from pbr_jax.config import Config, Feedback, override, tuning
from pbr_jax.experiment.opening import plan_of
from pbr_jax.exporting.models import tensors
from pbr_jax.methods import retrieve
from pbr_jax.models import bert
from pbr_jax.text.encode import TextEncoder

peer: Any = pytest.importorskip("sentence_transformers")
TEXTS = ["tea cats", "i love football that day 3", "", "violins " * 60]


def config(models: dict[str, str], root: Path, **fields: Any) -> Config:
    place = {
        "benchmark.name": "lamp_7",
        "benchmark.root": str(root),
        "encoder.model": models["encoder.model"],
    }
    training = tuning(epochs=2, batch_size=4, devices=1, selection=0.0)
    base = Config(
        system="ropg",
        collaboration="signals",
        feedback=Feedback(candidates=3, metric="likelihood"),
        retrieve=retrieve.Tuned(k=2, alpha=0.0, training=training),
    )
    small = {"llm.model": models["llm.model"], "prompt.max_tokens": 200, "eval.resamples": 10}
    small |= {"generate.max_new_tokens": 2, "encoder.max_length": 24, "eval.likelihood": "off"}
    return override(base, {**place, **small, **fields})


@pytest.fixture
def root(write_tweets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "cache"))
    topics = ("tea", "cats", "football", "violins")
    write_tweets(
        {f"a{i}": [f"i love {topics[(i + j) % 4]} day {j}" for j in range(4)] for i in range(8)}, "train"
    )
    return write_tweets({f"b{i}": [f"i love {topics[i]}", "about that day"] for i in range(3)})


@pytest.mark.long
@pytest.mark.parametrize(
    "fields",
    [
        {"encoder.query_prefix": "i love ", "encoder.document_prefix": "about "},
        pytest.param(
            {"encoder.pooling": "cls", "retrieve.similarity": "dot", "encoder.normalize": "no"},
            marks=pytest.mark.long,
        ),
    ],
)
def test_sentence_transformers_gives_our_vectors(tiny_models, root: Path, tmp_path: Path, fields):
    pbr_jax.run(config(tiny_models, root, **fields), tmp_path / "out")
    folder = pbr_jax.export(tmp_path / "out", tmp_path / "model", "sentence-transformers")
    plan = plan_of(tmp_path / "out")
    ours: TextEncoder = plan.config.retrieve.encoder(plan.run).value  # type: ignore[attr-defined]
    plain = TextEncoder(plan.config.encoder, devices=jax.devices()[:1])
    assert np.abs(ours.encode(TEXTS) - plain.encode(TEXTS)).max() > 1e-5  # it was tuned
    theirs = peer.SentenceTransformer(str(folder), device="cpu")
    for role in ("query", "document"):
        wanted = ours.encode(TEXTS, role=role)
        np.testing.assert_allclose(getattr(theirs, f"encode_{role}")(TEXTS), wanted, atol=1e-5)
    again = TextEncoder(override(Config(), {"encoder.model": str(folder)}).encoder, devices=jax.devices())
    assert (again.encode(TEXTS, role="query") == ours.encode(TEXTS, role="query")).all()
    dot = fields.get("retrieve.similarity") == "dot"
    assert theirs.similarity_fn_name == ("dot" if dot else "cosine")
    assert {oct(path.stat().st_mode)[-3:] for path in folder.rglob("*")} == {"700", "600"}
    card = (folder / "README.md").read_text()
    for said in ("tuned on lamp_7", "split `train`", '"alpha": 0.0', "| rouge1 |", "does not say under which",
                 "may hold traces of them", json.dumps(fields.get("encoder.query_prefix", ""))):  # fmt: skip
        assert said in card
    assert str(tmp_path) not in card
    assert tiny_models["encoder.model"] not in card


def test_an_untuned_retriever_has_nothing_to_export(tiny_models, root: Path, tmp_path: Path):
    place = {"benchmark.name": "lamp_7", "benchmark.root": str(root)}
    options = {"encoder.model": tiny_models["encoder.model"], "generate.method": "none"}
    dense = override(Config(), {**place, **options, "eval.likelihood": "off"})
    pbr_jax.run(dense, tmp_path / "out")
    with pytest.raises(UserError, match=r"retrieve.method dense tunes no encoder; export a run of"):
        pbr_jax.export(tmp_path / "out", tmp_path / "model", "sentence-transformers")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("kind", ["Bert", "Roberta"])
def test_tensors_are_read_back(kind: str, tmp_path: Path):
    """With a head's prefix, another order of names, and positions that RoBERTa keeps for padding."""
    import torch
    import transformers

    torch.manual_seed(0)
    sizes: Any = dict(vocab_size=20, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                      intermediate_size=24, max_position_embeddings=12, pad_token_id=1)  # fmt: skip
    model = getattr(transformers, f"{kind}ForMaskedLM")(getattr(transformers, f"{kind}Config")(**sizes))
    model.save_pretrained(tmp_path)
    _, params, found = bert.load(tmp_path)
    base = load_file(tmp_path / "model.safetensors")
    moved = jax.tree.map(lambda leaf: leaf + 1, params)
    written = tensors(base, moved, found)
    body = getattr(model, kind.lower()).state_dict()
    assert set(written) == {name for name in body if not name.endswith(("position_ids", "token_type_ids"))}
    offset = found.position_offset
    for name, tensor in written.items():
        added = np.ones_like(tensor)
        added[:offset] -= name == "embeddings.position_embeddings.weight"
        np.testing.assert_allclose(tensor, body[name].numpy() + added, atol=1e-6)
