"""Query rewriting: the query in words that a search engine understands (Ma et al., 2023)."""

from pbr_jax.config import Config, Expand, Retrieve


def get_config() -> Config:
    return Config(system="rewrite", expand=Expand(method="rewrite"), retrieve=Retrieve(method="dense", k=5))
