"""Losses: pure functions of arrays. Each returns one value per example or token, without reduction."""

from pbr_jax.losses.contrastive import encode_in_chunks, info_nce, nt_xent, symmetric_info_nce
from pbr_jax.losses.distillation import kl_distillation
from pbr_jax.losses.language_model import token_cross_entropy
from pbr_jax.losses.margin import margin_mse, rank_weighted_margin, triplet
from pbr_jax.losses.policy_gradient import (
    grpo,
    leave_one_out,
    plackett_luce_log_prob,
    reinforce,
    sample_plackett_luce,
    z_scored,
)
from pbr_jax.losses.reduction import masked_log_softmax, masked_logsumexp, masked_mean

__all__ = [
    "encode_in_chunks",
    "grpo",
    "info_nce",
    "kl_distillation",
    "leave_one_out",
    "margin_mse",
    "masked_log_softmax",
    "masked_logsumexp",
    "masked_mean",
    "nt_xent",
    "plackett_luce_log_prob",
    "rank_weighted_margin",
    "reinforce",
    "sample_plackett_luce",
    "symmetric_info_nce",
    "token_cross_entropy",
    "triplet",
    "z_scored",
]
