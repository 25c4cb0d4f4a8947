"""Chips, by what their makers say of them, and the seconds that work takes there.

Peaks are of dense products in bfloat16. In float32 this package asks for full precision: on NVIDIA's GPUs
the rate of plain float32, on TPUs six passes in bfloat16.
"""

from dataclasses import dataclass

from pbr_jax.base.types import UserError


@dataclass(frozen=True)
class Chip:
    """`bfloat16` and `float32`: peak FLOP/s; `bandwidth`: bytes a second from memory."""

    bfloat16: float
    float32: float
    bandwidth: float


CHIPS = {
    "h100": Chip(989e12, 67e12, 3.35e12),  # SXM
    "h200": Chip(989e12, 67e12, 4.8e12),
    "a100": Chip(312e12, 19.5e12, 2.0e12),  # SXM, 80 GB
    "l4": Chip(121e12, 30e12, 0.3e12),
    "v4": Chip(275e12, 275e12 / 6, 1.2e12),
    "v5e": Chip(197e12, 197e12 / 6, 0.82e12),
    "v5p": Chip(459e12, 459e12 / 6, 2.77e12),
    "v6e": Chip(918e12, 918e12 / 6, 1.64e12),
    "cpu-core": Chip(96e9, 96e9, 10e9),  # AVX2 at 3 GHz: two products of eight numbers a cycle
}

UTILISATION = 0.4
"""Share of the peak that is reached. Large dense models reach about this in training; small ones less."""


def chip(name: str) -> Chip:
    """A chip by its name. Raises UserError for one that is not known."""
    if name not in CHIPS:
        raise UserError(f"--chip is {name!r}, want one of {', '.join(CHIPS)}")
    return CHIPS[name]


@dataclass(frozen=True)
class Work:
    """What a chip does: `flops`, which it may do many at a time, and `loads`, bytes that it must read from
    memory besides, such as all weights for every token that a batch decodes."""

    flops: float = 0.0
    loads: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        return Work(self.flops + other.flops, self.loads + other.loads)

    def seconds(self, chip: Chip, dtype: str, utilisation: float = UTILISATION) -> float:
        """On one chip that reaches this share of its peak and of its bandwidth."""
        peak = chip.bfloat16 if dtype == "bfloat16" else chip.float32
        return max(self.flops / peak, self.loads / chip.bandwidth) / utilisation
