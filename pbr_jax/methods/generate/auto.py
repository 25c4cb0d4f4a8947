"""Answers where the benchmark scores answers, and none where it scores retrieval."""

from dataclasses import dataclass
from typing import Any, Literal

from pbr_jax.methods.generate.ipa import Ipa
from pbr_jax.methods.generate.label import Label
from pbr_jax.options import Generate, swapped
from pbr_jax.tasks import Task


@dataclass(frozen=True, kw_only=True)
class Auto(Generate):
    """In-prompt augmentation (ipa). For questions with options label is used instead, and on retrieval
    benchmarks nothing is answered."""

    method: Literal["auto"] = "auto"

    def resolved(self, task: Task) -> Ipa | Label | None:
        if task.kind == "choice":
            return swapped(self, Label)
        return None if task.kind == "retrieval" else swapped(self, Ipa)

    def slot(self, *_: Any, **__: Any) -> Any:
        raise ValueError("auto stands for another method; see `resolved`")
