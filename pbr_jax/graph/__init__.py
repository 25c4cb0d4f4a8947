"""The graph of a run: nodes with keys, and lists of them."""

from pbr_jax.graph.nodes import Bound as Bound
from pbr_jax.graph.nodes import Node as Node
from pbr_jax.graph.nodes import Slot as Slot
from pbr_jax.graph.nodes import Stage as Stage
from pbr_jax.graph.nodes import Together as Together
from pbr_jax.graph.nodes import Value as Value
from pbr_jax.graph.nodes import builds_nodes as builds_nodes
from pbr_jax.graph.nodes import constant as constant
from pbr_jax.graph.nodes import logging_to as logging_to
from pbr_jax.graph.nodes import tell as tell
from pbr_jax.graph.nodes import walk as walk
