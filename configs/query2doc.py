"""Query2doc: a passage that answers beside the query (Wang et al., 2023)."""

from pbr_jax.config import Config, Expand, Retrieve


def get_config() -> Config:
    return Config(
        system="query2doc", expand=Expand(method="query2doc"), retrieve=Retrieve(method="dense", k=5)
    )
