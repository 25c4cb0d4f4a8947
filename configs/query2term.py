"""Query2Term: keywords of an answer beside the query (Jagerman et al., 2023)."""

from pbr_jax.config import Config, Expand, Retrieve


def get_config() -> Config:
    return Config(
        system="query2term", expand=Expand(method="query2term"), retrieve=Retrieve(method="dense", k=5)
    )
