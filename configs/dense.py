"""Dense retrieval inside the user's history with any BERT-family encoder (`encoder.model`)."""

from pbr_jax.config import Config, Retrieve


def get_config() -> Config:
    return Config(system="dense", retrieve=Retrieve(method="dense"))
