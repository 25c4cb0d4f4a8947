"""What the methods share that lead the language model token by token: what they need, and no beams."""

from collections.abc import Mapping
from dataclasses import dataclass

from pbr_jax.base.types import UserError
from pbr_jax.graph import Node, builds_nodes
from pbr_jax.options import Generate
from pbr_jax.stages import language_model
from pbr_jax.stages.generator import decoding
from pbr_jax.stages.run import Run


@dataclass(frozen=True, kw_only=True)
class TokenLevelGenerate(Generate):
    """Base of methods whose answers do not continue a single prompt. They compute their own likelihood."""

    own_likelihood = True

    def check(self) -> None:
        super().check()
        if self.num_beams > 1:
            raise UserError(
                f"generate.num_beams is {self.num_beams}, and generate.method {self.method} does not search "
                "beams; set it to 1"
            )

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        language_model.check_tokens(run.config.llm, f"generate.method {self.method}")
        return decoding(run, self)
