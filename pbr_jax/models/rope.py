"""Rotary positions: their settings, read from Hugging Face's `config.json` or from a GGUF file."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pbr_jax.base.types import UserError
from pbr_jax.models import gguf_file
from pbr_jax.models.families import Family


@dataclass(frozen=True, kw_only=True)
class Rope:
    """Rotary positions: pair i of `width / 2` turns by position * theta ** (-2 i / width) / divisor i.

    Su et al., RoFormer, https://arxiv.org/abs/2104.09864, 2021. Texts longer than `original` tokens take
    `long_divisors` where there are any: Ding et al., LongRoPE, https://arxiv.org/abs/2402.13753, 2024.
    """

    width: int  # of the part of a head that turns
    theta: float = 10_000.0
    divisors: tuple[float, ...] = ()  # empty: ones
    long_divisors: tuple[float, ...] = ()
    original: int = 0  # tokens, where there are long_divisors
    scale: float = 1.0  # of cosines and sines

    def __post_init__(self) -> None:
        if self.width < 2 or self.width % 2:
            raise UserError(
                f"rotary positions turn {self.width} numbers of a head, want an even number; "
                "check the model's config"
            )
        for divisors in (self.divisors, self.long_divisors):
            if divisors and len(divisors) != self.width // 2:
                raise UserError(
                    f"{len(divisors)} rotary factors for {self.width // 2} frequencies; "
                    "check the model's config"
                )


def json_ropes(
    family: Family, fields: Mapping[str, Any], head_width: int, context: int, source: str
) -> tuple[Rope, Rope | None]:
    """Rotary positions of full and of sliding layers (None: the same); as of transformers 5, or older."""
    given = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    top = {
        "rope_theta": fields.get("rope_theta"),
        "partial_rotary_factor": fields.get("partial_rotary_factor"),
    }
    if "original_max_position_embeddings" in fields:
        top["original_max_position_embeddings"] = fields["original_max_position_embeddings"]
    full = given.get("full_attention", given)
    rope = _rope({name: value for name, value in top.items() if value} | full, head_width, context, source)
    if not family.local_rope:
        return rope, None
    local = {"rope_theta": fields["rope_local_base_freq"]} | (given.get("sliding_attention") or {})
    return rope, _rope(local, head_width, context, source)


def _rope(fields: Mapping[str, Any], head_width: int, context: int, source: str) -> Rope:
    theta = float(fields.get("rope_theta") or 10_000.0)
    width = _width(int(head_width * float(fields.get("partial_rotary_factor") or 1.0)), head_width, source)
    kind = fields.get("rope_type", fields.get("type", "default"))
    if kind == "default":
        return Rope(width=width, theta=theta)
    if kind == "linear":
        return Rope(width=width, theta=theta, divisors=(float(fields["factor"]),) * (width // 2))
    if kind == "llama3":
        return Rope(width=width, theta=theta, divisors=_llama3_divisors(fields, theta, width))
    if kind in ("longrope", "su"):
        original = int(fields["original_max_position_embeddings"])
        factor = float(fields.get("factor") or context / original)
        return Rope(
            width=width,
            theta=theta,
            divisors=tuple(float(value) for value in fields["short_factor"]),
            long_divisors=tuple(float(value) for value in fields["long_factor"]),
            original=original,
            scale=float(fields.get("attention_factor") or _longrope_scale(factor, original)),
        )
    raise UserError(f"{source}: rope_type {kind!r} is not supported; use default, linear, llama3 or longrope")


def _width(width: int, head_width: int, source: str) -> int:
    """How much of a head turns, checked before so many frequencies are made."""
    if not 2 <= width <= head_width or width % 2:
        raise UserError(
            f"{source}: rotary positions turn {width} numbers of a head, want an even number from 2 to its "
            f"width, {head_width}; check partial_rotary_factor, or fetch the file again"
        )
    return width


def _longrope_scale(factor: float, original: int) -> float:
    """What a context grown by `factor` does to the spread of scores (LongRoPE, as released with Phi-3)."""
    return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0


def _llama3_divisors(fields: Mapping[str, Any], theta: float, width: int) -> tuple[float, ...]:
    """Llama 3's banded position interpolation. It leaves wavelengths below `original / high_freq_factor`
    alone, divides those above `original / low_freq_factor` by `factor`, and blends the frequencies
    linearly in between."""
    names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    factor, low, high, original = (float(fields[name]) for name in names)
    divisors = []
    for i in range(width // 2):
        turns = original / (2 * math.pi * theta ** (2 * i / width))  # of this frequency in the context
        blend = min(max((turns - low) / (high - low), 0.0), 1.0)
        divisors.append(1 / (blend + (1 - blend) / factor))
    return tuple(divisors)


def gguf_rope(file: gguf_file.GGUFFile, head_width: int, context: int) -> Rope:
    """Rotary positions of all layers, or of those that have none of their own."""
    width = _width(int(file.get("{arch}.rope.dimension_count", head_width)), head_width, str(file.path))
    theta = float(file.get("{arch}.rope.freq_base", file.family.absent.get("rope_theta", 10_000.0)))
    if short := file.rope_divisors("rope_factors_short.weight"):
        original = int(file.get("{arch}.rope.scaling.original_context_length", context))
        scale = file.get("{arch}.rope.scaling.attn_factor") or _longrope_scale(context / original, original)
        long = file.rope_divisors("rope_factors_long.weight")
        return Rope(
            width=width,
            theta=theta,
            divisors=short,
            long_divisors=long,
            original=original,
            scale=float(scale),
        )
    if divisors := file.rope_divisors("rope_freqs.weight"):
        return Rope(width=width, theta=theta, divisors=divisors)
    scaling = file.get("{arch}.rope.scaling.type", "none")
    fields = {"rope_theta": theta, "rope_type": "default" if scaling == "none" else scaling}
    if scaling == "linear":
        fields["factor"] = file.field("{arch}.rope.scaling.factor")
    return _rope(fields, width, context, str(file.path))
