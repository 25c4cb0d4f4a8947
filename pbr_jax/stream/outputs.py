"""What a config's questions get: in one batch here, in folds of units (`folds`), or in a stream (`stage`)."""

from typing import NamedTuple

from pbr_jax.config import Config
from pbr_jax.graph import Node, builds_nodes
from pbr_jax.options import Generate
from pbr_jax.stages.answers import answers, likelihoods
from pbr_jax.stages.rankings import rankings
from pbr_jax.stages.run import Run


class Outputs(NamedTuple):
    """The nodes of what the questions get. None: the config does not ask for it."""

    ranked: Node
    answered: Node | None = None
    scored: Node | None = None
    judged: Node | None = None

    def nodes(self) -> dict[str, Node]:
        """Those that are asked for, by name."""
        return {name: node for name, node in self._asdict().items() if node is not None}


@builds_nodes
def batch(run: Run, config: Config, method: Generate | None, scored: bool) -> Outputs:
    """All questions at once. `method` generates the answers; `scored`: targets get likelihoods."""
    ranked = rankings(run)
    return Outputs(
        ranked,
        None if method is None else answers(run, method, ranked),
        likelihoods(run, ranked, method) if scored else None,
    )
