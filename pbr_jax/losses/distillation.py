"""Distillation: fits a student's distribution over a query's candidates to that of a teacher."""

import math
from typing import Literal, get_args

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from pbr_jax.losses.reduction import masked_log_softmax

Direction = Literal["forward", "reverse"]
"""forward: KL(teacher || student); the student covers all candidates that are probable for the teacher.
reverse: KL(student || teacher); the student avoids all candidates that are improbable for the teacher."""

_LOG_SMALLEST = math.log(jnp.finfo(jnp.float32).tiny)


def kl_distillation(
    student_logits: Float[Array, "*b c"],
    teacher_logits: Float[Array, "*b c"],
    *,
    direction: Direction = "forward",
    student_temperature: float | Float[Array, ""] = 1.0,
    teacher_temperature: float | Float[Array, ""] = 1.0,
    where: Bool[Array, "*b c"] | None = None,
) -> Float[Array, "*b"]:
    r"""Kullback-Leibler divergence between the teacher's p and the student's q over c candidates.

    .. math::
       \text{forward: } \sum_c p_c (\log p_c - \log q_c) \qquad
       \text{reverse: } \sum_c q_c (\log q_c - \log p_c)

       p = \mathrm{softmax}(\text{teacher} / \tau_t), \quad q = \mathrm{softmax}(\text{student} / \tau_s)

    Args:
      teacher_logits: logits, or logarithms of probabilities; gradients flow to them too. -inf means
        probability 0: the candidate adds 0 to the forward divergence, and the reverse divergence uses the
        smallest normal float32 as its probability.
      direction: LUF and CFRAG's released code use the forward divergence, CFRAG's paper the reverse.
      student_temperature, teacher_temperature: divide the logits.
      where: False for padding, whose values are ignored.

    Returns:
      One float32 value per group of candidates. A group in which all candidates are masked or have teacher
      logits of -inf has value and gradient 0.

    Shi et al. (CFRAG), https://arxiv.org/abs/2504.05731, 2025, Eq. 7, 8, 11 and 12 (reverse); LUF
    (anonymous ACL submission), Eq. 3 (forward).

    >>> import jax.numpy as jnp
    >>> teacher = jnp.log(jnp.array([1.0, 0.0]))  # a uniform student: log 2 forward
    >>> round(float(kl_distillation(jnp.zeros(2), teacher)), 4)
    0.6931
    """
    if direction not in get_args(Direction):
        raise ValueError(f"direction is {direction!r}; want 'forward' or 'reverse'")
    if where is None:
        where = jnp.ones_like(student_logits, bool)
    possible = where & ~jnp.isneginf(teacher_logits)
    where = where & possible.any(axis=-1, keepdims=True)
    log_p = _log_softmax(teacher_logits, teacher_temperature, possible)
    log_q = _log_softmax(student_logits, student_temperature, where)
    if direction == "forward":
        return (jnp.where(possible, jnp.exp(log_p), 0.0) * (log_p - log_q)).sum(axis=-1)
    log_p = jnp.where(possible, log_p, _LOG_SMALLEST)
    return (jnp.where(where, jnp.exp(log_q), 0.0) * (log_q - log_p)).sum(axis=-1)


def _log_softmax(
    logits: Float[Array, "*b c"], temperature: float | Float[Array, ""], where: Bool[Array, "*b c"]
) -> Float[Array, "*b c"]:
    # Masked before the division: the gradient of a learned temperature would be 0 times NaN.
    logits = jnp.where(where, logits.astype(jnp.float32), 0.0)
    return masked_log_softmax(logits / temperature, where)
