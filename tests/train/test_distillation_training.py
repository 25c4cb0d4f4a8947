"""Teaching by feedback: the losses' meaning, and what a scorer learns."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import spearmanr

from pbr_jax.base.types import Feedback, UserError
from pbr_jax.config import Distillation, Optimizer, Training
from pbr_jax.text.padding import padded
from pbr_jax.train import distillation as lessons
from pbr_jax.train.distillation import Scorer, distill, sampled_reinforce
from pbr_jax.train.selection import divided

WIDTH = 6


def _spearman(one: np.ndarray, other: np.ndarray) -> float:
    found: Any = spearmanr(one, other)
    return float(found.statistic)


def world(questions=40, seed=0):
    """Candidates are points; their value is their height along a hidden direction."""
    random = np.random.default_rng(seed)
    counts = [0, 1, *random.integers(2, 5, questions - 2)]
    points = random.normal(size=(questions, max(counts), WIDTH)).astype(np.float32)
    hidden = random.normal(size=WIDTH).astype(np.float32)
    values = 1 / (1 + np.exp(-points @ hidden))
    feedback = [Feedback(np.arange(n), values[i, :n].astype(np.float32)) for i, n in enumerate(counts)]
    return points, hidden, feedback


def scorer(points):
    def scores(params, batch, key):
        return batch["points"] @ params["direction"]

    return Scorer(
        lambda: {"direction": jnp.zeros(WIDTH)}, lambda questions: {"points": points[questions]}, scores
    )


@pytest.mark.parametrize("loss", ["reverse_kl", "forward_kl", "reinforce"])
def test_every_lesson_finds_the_direction_that_feedback_prefers(tmp_path, loss):
    points, hidden, feedback = world()
    config = Training(
        epochs=30,
        batch_size=8,
        devices=1,
        patience=99,
        evaluate_every=30,
        optimizer=Optimizer(name="adam", learning_rate=0.1),
    )
    distillation = Distillation(loss=loss, teacher_temperature=0.1)
    fitted = distill(scorer(points), feedback, distillation, config, tmp_path, seed=0)
    found = np.asarray(fitted.params["direction"])
    cosine = found @ hidden / np.linalg.norm(found) / np.linalg.norm(hidden)
    assert cosine > 0.9
    values = [line["selection"] for line in fitted.metrics if "selection" in line]
    assert max(values) > values[0]


def taught(tmp_path, **changes):
    points, _, feedback = world()
    adam = Optimizer(name="adam", learning_rate=changes.pop("learning_rate", 0.1))
    config = Training(**{"epochs": 2, "batch_size": 8, "devices": 1, "optimizer": adam, **changes})
    start = np.random.default_rng(2).normal(size=WIDTH).astype(np.float32)
    one = scorer(points)._replace(params=lambda: {"direction": jnp.asarray(start)}, heads=("direction",))
    return distill(one, feedback, Distillation(teacher_temperature=0.1), config, tmp_path, seed=0), start


def test_the_step_may_be_chosen_by_the_order_of_held_out_candidates(tmp_path):
    fitted, _ = taught(tmp_path, select_by="rank_correlation", epochs=4)
    points, _, feedback = world()
    held = divided(feedback, None, share=Training().selection, least=0.0, seed=0).held
    wanted = [
        _spearman(feedback[i].values, (points[i] @ fitted.params["direction"])[: len(feedback[i].rows)])
        for i in held
    ]
    values = {line["step"]: line["selection"] for line in fitted.metrics if "selection" in line}
    assert values[fitted.step] == max(values.values())
    assert values[fitted.step] == pytest.approx(np.mean(wanted), abs=1e-5)


def test_a_training_tells_how_far_it_came(tmp_path):
    fitted, start = taught(tmp_path)
    wanted = np.linalg.norm(fitted.params["direction"] - start) / np.linalg.norm(start)
    assert fitted.moved == pytest.approx({"direction": wanted}, rel=1e-5)
    assert fitted.report is not None
    assert fitted.report["moved"] == fitted.moved
    lines = {line["step"]: line["moved_direction"] for line in fitted.metrics if "moved_direction" in line}
    assert lines[0] == 0.0
    assert lines[fitted.step] == pytest.approx(wanted, rel=1e-5)
    assert (fitted.report["held_out"], fitted.report["informative"], fitted.notes) == (8, 38, ())


@pytest.mark.parametrize(
    ("changes", "notes"),
    [
        ({"learning_rate": 1e-5}, ["the head 'direction' moved", "scores are almost those before training"]),
        ({"selection": 0.0}, ["no questions chose the step (training.selection is 0); the last step was"]),
        ({"epochs": 0}, ["untrained, as training.epochs is 0"]),
    ],
)
def test_what_a_training_did_not_do_is_told(tmp_path, changes, notes):
    fitted, start = taught(tmp_path, **changes)
    assert [told.startswith(note) for told, note in zip(fitted.notes, notes, strict=True)] == [True] * len(
        notes
    )
    if "epochs" in changes:
        np.testing.assert_array_equal(fitted.params["direction"], start)
    if "selection" in changes:
        assert fitted.step == 2 * 5


def test_values_that_are_no_numbers_choose_nothing(tmp_path):
    points, _, feedback = world()
    feedback[7] = feedback[7]._replace(values=np.full_like(feedback[7].values, np.nan))
    config = Training(epochs=1, batch_size=64, devices=1)
    with pytest.raises(UserError, match="the loss of step 1 is nan"):
        distill(scorer(points), feedback, Distillation(), config, tmp_path, seed=0)


def test_padded_candidates_and_questions_teach_nothing():
    """Loss and gradients are those of the questions alone, one by one."""
    points, _, feedback = world(12)
    direction = jnp.asarray(np.random.default_rng(1).normal(size=WIDTH), jnp.float32)
    values, present = padded([each.values for each in feedback], points.shape[:2], np.float32)
    distillation = Distillation(loss="reverse_kl", student_temperature=0.5, teacher_temperature=0.2)
    where = np.arange(12) < 9
    batch = {"points": points, "values": values, "present": present, "where": where}
    batch = jax.tree.map(jnp.asarray, batch)
    loss = jax.value_and_grad(lessons._loss(scorer(points), distillation))
    value, gradients = loss({"direction": direction}, batch, jax.random.key(0))
    assert np.isfinite(np.asarray(gradients["direction"])).all()
    total = 0.0
    for i in range(9):
        n = len(feedback[i].rows)
        student = np.float64(points[i, :n] @ np.asarray(direction)) / 0.5
        teacher = np.float64(feedback[i].values) / 0.2
        if n:
            q = np.exp(student - student.max()) / np.exp(student - student.max()).sum()
            p = np.exp(teacher - teacher.max()) / np.exp(teacher - teacher.max()).sum()
            total += float((q * np.log(q / p)).sum())
    np.testing.assert_allclose(value, total / 9, rtol=1e-5)
    other = batch | {"points": jnp.asarray(np.where(present[..., None], points, 1e3), jnp.float32)}
    _, same = loss({"direction": direction}, other, jax.random.key(0))
    np.testing.assert_allclose(same["direction"], gradients["direction"], rtol=1e-5)


def test_the_teacher_speaks_in_the_unit_that_is_asked_for():
    values = np.array([[-2.0, -1.5, -1.0, 7.0], [0.3, 0.31, 0.29, 0.3], [4.0, 4.0, 4.0, 4.0]], np.float32)
    present = np.array([[True, True, True, False], [True] * 4, [True] * 4])
    for kind in ("values", "z_scores", "bounded_z_scores"):
        distillation = Distillation(teacher=kind, teacher_temperature=0.1)
        found = np.asarray(lessons.teacher_logits(jnp.asarray(values), jnp.asarray(present), distillation))
        for row, there, logits in zip(values, present, found, strict=True):
            kept = row[there].astype(float)
            centred, deviation = kept - kept.mean(), kept.std()
            wanted = {
                "values": kept / 0.1,
                "z_scores": centred / max(deviation, 1e-6) / 0.1,
                "bounded_z_scores": centred / max(deviation, 0.1),
            }[kind]
            np.testing.assert_allclose(logits[there], wanted, rtol=1e-3, atol=1e-4)
    # Below the bound it is the plain temperature, up to a constant; far above it a scale does not matter.
    assert np.ptp(found[1]) == pytest.approx(0.02 / 0.1, rel=1e-3)
    louder = lessons.teacher_logits(jnp.asarray(10 * values), jnp.asarray(present), distillation)
    np.testing.assert_allclose(louder[0, :3], found[0, :3], rtol=1e-4)


@pytest.mark.long
def test_sampled_reinforce_is_the_policy_gradient_on_average():
    """Its gradient over many draws is that of minus the expected value, whatever the baseline."""
    scores = jnp.array([[0.3, -0.2, 0.9, 5.0]])
    values = jnp.array([[0.1, 0.7, 0.4, 9.0]])
    present = jnp.array([[True, True, True, False]])
    keys = jax.random.split(jax.random.key(0), 20_000)

    def drawn(s):
        return jax.vmap(lambda key: sampled_reinforce(s, values, present, 0.5, key)[0])(keys).mean()

    def exact(s):
        return -(jax.nn.softmax(s[0, :3] / 0.5) * values[0, :3]).sum()

    found, wanted = jax.grad(drawn)(scores), jax.grad(exact)(scores)
    np.testing.assert_allclose(found[0, :3], wanted[0, :3], atol=6e-3)
    assert found[0, 3] == 0.0


def test_without_two_candidates_anywhere_there_is_nothing_to_teach(tmp_path):
    points, _, feedback = world(12)
    with pytest.raises(UserError, match="no training question has two candidate documents"):
        distill(scorer(points), feedback[:2], Distillation(), Training(devices=1), tmp_path, seed=0)
