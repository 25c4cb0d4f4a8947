"""Distillation against sums in double precision, torch, and what masks must not change."""

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pbr_jax.losses.distillation import kl_distillation

B, C = 5, 6
RANDOM = np.random.default_rng(0)
STUDENT = RANDOM.normal(size=(B, C)).astype(np.float32) * 2
TEACHER = RANDOM.normal(size=(B, C)).astype(np.float32)
WEIGHTS = RANDOM.normal(size=B).astype(np.float32)
ALL = np.ones((B, C), bool)
WHERE = np.array(
    [[1, 1, 1, 1, 1, 1], [1, 1, 0, 1, 0, 0], [0, 1, 1, 1, 1, 1], [0, 0, 0, 1, 0, 0], [0, 0, 0, 0, 0, 0]], bool
)
TEMPERATURES = dict(student_temperature=0.5, teacher_temperature=0.25)

each_direction = pytest.mark.parametrize("direction", ["forward", "reverse"])
compiled = jax.jit(kl_distillation, static_argnames="direction")


def loss(
    student: Any = STUDENT, teacher: Any = TEACHER, where: Any = ALL, *, direction: Any = "forward", **options
):
    arrays = jnp.asarray(student), jnp.asarray(teacher)
    return compiled(*arrays, where=jnp.asarray(where), direction=direction, **(TEMPERATURES | options))


def divergence(p, q):
    return sum(x * np.log(x / y) for x, y in zip(p, q) if x > 0)


def softmax(logits):
    return np.exp(logits.astype(float)) / np.exp(logits.astype(float)).sum()


@each_direction
def test_it_is_the_divergence_of_what_is_not_dropped(direction):
    student = np.where(WHERE, STUDENT, np.nan)
    teacher = np.where(WHERE, TEACHER, np.nan)
    for value, student_row, teacher_row, where in zip(
        loss(student, teacher, WHERE, direction=direction), STUDENT, TEACHER, WHERE
    ):
        q, p = softmax(student_row[where] / 0.5), softmax(teacher_row[where] / 0.25)
        wanted = divergence(p, q) if direction == "forward" else divergence(q, p)
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)


@each_direction
def test_values_and_gradients_of_both_equal_torch(direction):
    torch: Any = pytest.importorskip("torch")
    student, teacher = (torch.tensor(x, requires_grad=True) for x in (STUDENT, TEACHER))
    log_q, log_p = torch.log_softmax(student / 0.5, -1), torch.log_softmax(teacher / 0.25, -1)
    pair = (log_q, log_p) if direction == "forward" else (log_p, log_q)  # torch takes the target last
    wanted = torch.nn.functional.kl_div(*pair, log_target=True, reduction="none").sum(-1)
    (wanted * torch.tensor(WEIGHTS)).sum().backward()
    np.testing.assert_allclose(loss(direction=direction), wanted.detach().numpy(), rtol=1e-5)
    found = jax.grad(lambda *x: (loss(*x, direction=direction) * WEIGHTS).sum(), (0, 1))(STUDENT, TEACHER)
    for mine, theirs in zip(found, (student.grad, teacher.grad)):
        np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-4, atol=1e-5)


@each_direction
def test_padding_may_hold_anything_and_fully_padded_groups_give_zero(direction):
    def total(student, teacher, temperature, filler):
        student, teacher = (jnp.where(WHERE, x, filler) for x in (student, teacher))
        options = dict(student_temperature=temperature, teacher_temperature=temperature)
        return (loss(student, teacher, WHERE, direction=direction, **options) * WEIGHTS).sum()

    both = jax.jit(jax.value_and_grad(total, (0, 1, 2)))
    wanted = both(STUDENT, TEACHER, 0.7, 0.0)
    for filler in (jnp.nan, -jnp.inf, jnp.inf):
        found = both(STUDENT, TEACHER, 0.7, filler)
        jax.tree.map(np.testing.assert_array_equal, found, wanted)
    assert loss(where=WHERE, direction=direction)[4] == 0
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(wanted))
    assert (wanted[1][0][4] == 0).all()


def test_candidates_impossible_for_the_teacher_add_nothing_forwards():
    teacher = np.array([[0.5, 0, 0.25, 0.25, 0, 0]] * B)
    found = loss(
        teacher=np.log(teacher, where=teacher > 0, out=np.full_like(teacher, -np.inf)).astype(np.float32),
        teacher_temperature=1.0,
    )
    wanted = [divergence(p, softmax(student / 0.5)) for p, student in zip(teacher, STUDENT)]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


@each_direction
@pytest.mark.parametrize("low", [-np.inf, -1e4], ids=["exactly zero", "underflow"])
def test_teacher_probabilities_of_zero_have_finite_gradients(direction, low):
    teacher = np.where(WHERE[[1, 2, 3, 1, 2]], TEACHER, low).astype(np.float32)
    value, gradients = jax.value_and_grad(lambda *x: loss(*x, direction=direction).sum(), (0, 1))(
        STUDENT, teacher
    )
    assert jnp.isfinite(value)
    assert all(jnp.isfinite(gradient).all() for gradient in gradients)
    # The student learns to leave alone what the teacher excludes.
    assert (gradients[0][0][~WHERE[1]] > 0).all()


@each_direction
def test_a_teacher_that_excludes_everything_gives_zero(direction):
    value, gradient = jax.value_and_grad(
        lambda x: loss(x, np.full_like(TEACHER, -np.inf), direction=direction).sum()
    )(STUDENT)
    assert value == 0
    assert (gradient == 0).all()


@each_direction
def test_nan_that_counts_is_not_hidden(direction):
    spoilt = np.where(np.arange(C) == 2, np.nan, STUDENT).astype(np.float32)
    assert jnp.isnan(loss(spoilt, direction=direction)).all()
    assert jnp.isnan(loss(teacher=spoilt, direction=direction)).all()


def test_an_unknown_direction_is_refused():
    unchecked: Any = inspect.unwrap(kl_distillation)  # the type checker of the tests would refuse it first
    with pytest.raises(ValueError, match="direction is 'sideways'; want 'forward' or 'reverse'"):
        unchecked(jnp.zeros(2), jnp.zeros(2), direction="sideways")
