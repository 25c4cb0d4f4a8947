"""Tuning the cross-encoder: what it learns, and that selection scores as training did."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pbr_jax.base.types import Example, Feedback, UserError
from pbr_jax.methods.select import Tuned
from pbr_jax.methods.select.cross_encoder import pretrained
from pbr_jax.models.cross_encoder import cross_encoder
from pbr_jax.models.pretrained import locate
from pbr_jax.options import Distillation, Encoder, Optimizer, Training
from pbr_jax.stages import reranking
from pbr_jax.stages.users import Users
from pbr_jax.text.padding import pair_arrays
from pbr_jax.train import reranker
from pbr_jax.train.distillation import distill

TOPICS = ("tea", "cats", "football", "violins")
TEXTS = [f"{topic} day {i}" + " that" * (i % 3) for i in range(4) for topic in TOPICS]
QUERIES = [f"i love {topic}" for topic in TOPICS] * 6
ADAM = Optimizer(name="adam", learning_rate=3e-3)
TRAINING = Training(
    epochs=15, batch_size=4, devices=1, selection=0.25, patience=99, evaluate_every=15, optimizer=ADAM
)


def texts(rows: np.ndarray) -> list[str]:
    return [TEXTS[row] for row in rows]


def feedback() -> list[Feedback]:
    """Documents of the asked topic help; some questions have fewer candidates."""
    random = np.random.default_rng(0)
    found = []
    for i, _ in enumerate(QUERIES):
        rows = np.sort(random.choice(len(TEXTS), 3 + i % 4, replace=False))
        found.append(Feedback(rows, (rows % 4 == i % 4).astype(np.float32)))
    return found


class Known(Users):
    """Users by the place of their question."""

    def __init__(self, vectors: np.ndarray):
        self.vectors = vectors

    def asking(self, examples) -> np.ndarray:
        return self.vectors[[int(example.id) for example in examples]]


@pytest.mark.long
@pytest.mark.parametrize("personal", [True, pytest.param(False, marks=pytest.mark.long)])
def test_it_learns_which_documents_help_and_selects_by_the_same_scores(tiny_models, tmp_path, personal):
    options = Tuned(
        model=tiny_models["encoder.model"],
        max_length=32,
        users=personal,
        distillation=Distillation(loss="forward_kl", teacher_temperature=0.2),
        training=TRAINING,
    )
    users = np.random.default_rng(1).normal(size=(len(QUERIES), 16)).astype(np.float32)
    scorer = reranker.scorer(
        QUERIES, users if personal else None, feedback(), texts, locate(options.model),
        max_length=options.max_length, user_layers=options.user_layers, seed=0,
    )  # fmt: skip
    fitted = distill(scorer, feedback(), options.distillation, options.training, tmp_path, seed=0)
    values = [line["selection"] for line in fitted.metrics if "selection" in line]
    assert max(values) > 0.8 * values[0]
    assert "head" not in fitted.params
    assert set(fitted.moved) == ({"user", "score"} if personal else {"score"})

    _, _, config = reranker.load(locate(options.model), 16 if personal else 0, options.user_layers, 0)
    config = dataclasses.replace(config, head=False)
    folder, model = locate(options.model), cross_encoder(config)
    selector = reranking.Reranker(model, fitted.params, config, folder, 32, Known(users))
    examples = [Example(str(i), "u", query, query, None) for i, query in enumerate(QUERIES)]
    pairs = [[(query, text) for text in TEXTS[: 1 + 3 * (i % 5)]] for i, query in enumerate(QUERIES)]
    pairs[2] = []
    found = selector.scores(examples, pairs)
    assert [len(scores) for scores in found] == [len(of_query) for of_query in pairs]
    narrow = reranking.Reranker(model, fitted.params, config, folder, 32, Known(users), "bfloat16")
    assert narrow.params["body"]["embeddings"]["word"]["embedding"].dtype == jnp.bfloat16
    assert jax.tree.leaves(narrow.params["score"])[0].dtype == jnp.float32
    for near, scores in zip(narrow.scores(examples, pairs), found, strict=True):
        assert near.dtype == np.float32
        np.testing.assert_allclose(near, scores, atol=0.05 * np.abs(np.concatenate(found)).max())
    apply = jax.jit(model.apply)
    for i in (0, 4, 9):
        tokens = selector.tokenizer.encode_pairs(pairs[i])
        padded = pair_arrays(tokens, 40, True)
        asking = np.repeat(users[i : i + 1], len(tokens), axis=0)
        wanted = apply(fitted.params, padded.ids, asking, mask=padded.mask, types=padded.types)
        np.testing.assert_allclose(found[i], wanted, atol=1e-5)


def test_an_encoder_without_a_head_does_not_judge_untuned(tiny_models):
    node = pretrained(tiny_models["encoder.model"], 32, Encoder())
    with pytest.raises(UserError, match=r"has no head that judges documents; give the folder of a reranker"):
        node.check()


def test_pairs_carry_types_and_the_longer_text_is_cut(tiny_models):
    from pbr_jax.text.tokenizing import load_tokenizer

    tokenizer = load_tokenizer(locate(tiny_models["encoder.model"]), max_length=10)
    ((ids, types),) = tokenizer.encode_pairs([("tea cats", "football " * 20)])
    assert len(ids) == 10
    assert types == [0] * 4 + [1] * 6
    assert ids[:4] == [2, 4, 5, 3]
