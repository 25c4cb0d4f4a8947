"""Nothing is answered: documents alone are wanted."""

from dataclasses import dataclass
from typing import Any, Literal

from pbr_jax.options import Generate


@dataclass(frozen=True, kw_only=True)
class Nothing(Generate):
    """No answers are generated."""

    method: Literal["none"] = "none"

    def resolved(self, task: Any) -> None:
        return None

    def slot(self, *_: Any, **__: Any) -> Any:
        raise ValueError("this run generates nothing")
