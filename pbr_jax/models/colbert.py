"""ColBERT: a vector per token; relevance is the sum over query tokens of the best match in the document.

Khattab and Zaharia (ColBERT), https://arxiv.org/abs/2004.12832, 2020; Santhanam et al. (ColBERTv2),
https://arxiv.org/abs/2112.01488, 2022. The reranker of ClusterRAG.

A text is encoded as `[CLS] [Q] tokens [SEP]` or `[CLS] [D] tokens [SEP]`. The config names the markers.
"""

import string
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from pbr_jax.base.types import Model, Params, UserError
from pbr_jax.models import bert, layers, sentence_folder
from pbr_jax.models.pretrained import Tensors, read_tensors
from pbr_jax.models.rules import Rule, assign, transpose


@dataclass(frozen=True, kw_only=True)
class ColbertConfig:
    """The sizes of body and projection, and the format of their input texts."""

    body: bert.BertConfig
    width: int | None = 128  # of a token's vector; None: the body's states, without projection
    query_length: int | None = 32  # tokens of a query, [MASK] included; None: as the tokenizer says
    document_length: int | None = 180  # at most
    expand_queries: bool = True  # whether [MASK]s fill a query up to its length
    expansion_token: str | None = None  # in place of [MASK]
    attend_to_mask_tokens: bool = False  # whether [MASK]s are seen by the other tokens of a query
    skiplist: tuple[str, ...] = tuple(string.punctuation)  # tokens of documents that are left out
    query_token: str | None = "[unused0]"  # stands behind [CLS]; None: no token does
    document_token: str | None = "[unused1]"
    query_prompt: str = ""  # text that is put before every query
    document_prompt: str = ""

    def __post_init__(self) -> None:
        for name in ("width", "query_length", "document_length"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name} is {value}; a positive whole number is wanted")


def colbert(config: ColbertConfig) -> Model:
    """Builds the token encoder as a pair of pure functions.

    `apply(params, ids, *, attended, kept=None, key=None) -> vectors [b t e]`. Vectors have unit length, and
    are zero where not kept:

    - ids: Int [b t].
    - attended: Bool [b t], True for tokens to which others attend.
    - kept: Bool [b t], True for tokens whose vectors are compared. None: the attended tokens.
    - key: the random key of dropout in the body. None: no dropout.
    """
    body = bert.bert(config.body)

    def init(key: Array) -> Params:
        params: Params = {"body": body.init(key)}
        if config.width is not None:
            shape = (config.body.hidden_size, config.width)
            params["linear"] = {"kernel": 0.02 * jax.random.normal(jax.random.fold_in(key, 1), shape)}
        return params

    def apply(
        params: Params,
        ids: Int[Any, "b t"],
        *,
        attended: Bool[Any, "b t"],
        kept: Bool[Any, "b t"] | None = None,
        key: Array | None = None,
    ) -> Float[Array, "b t e"]:
        attended = jnp.asarray(attended)
        compared = attended if kept is None else jnp.asarray(kept)
        segments = (attended | compared).astype(jnp.int32)
        vectors = body.apply(params["body"], ids, segments=segments, attended=attended, key=key)
        if config.width is not None:
            vectors = jnp.einsum("btd,de->bte", vectors, params["linear"]["kernel"])
        return bert.unit_length(jnp.where(compared[..., None], vectors, 0))

    return Model(init, layers.exact(apply))


def _read_weights(folder: Path) -> Tensors:
    """The folder's tensors; PyLate and sentence-transformers keep the projection in a folder of its own."""
    tensors = read_tensors(folder)
    projection = None if "linear.weight" in tensors else sentence_folder.projection(folder)
    if projection is not None:
        tensors.update(read_tensors(projection))
    return tensors


def has_projection(folder: Path) -> bool:
    """Whether a folder contains a ColBERT rather than a plain BERT."""
    return "linear.weight" in _read_weights(folder)


def read_config(folder: Path, *, projection: bool = True) -> ColbertConfig:
    """Reads the configuration of a ColBERT folder or, without projection, of a plain BERT folder."""
    body = bert.BertConfig.from_json(folder)
    if not projection:
        return ColbertConfig(body=body, width=None)
    return ColbertConfig(
        body=body,
        width=_read_weights(folder)["linear.weight"].shape[0],
        **sentence_folder.colbert_settings(folder),
    )


def load(folder: Path, *, projection: bool = True) -> tuple[Model, Params, ColbertConfig]:
    """Loads model, parameters (on the default device) and configuration from a Hugging Face folder.

    Without `projection` the folder is a plain BERT, whose states are compared directly. Raises UserError if
    configuration or weights are missing, unreadable or inconsistent.
    """
    tensors = _read_weights(folder) if projection else read_tensors(folder)
    if projection and "linear.weight" not in tensors:
        raise UserError(
            f"{folder} holds no linear.weight, ColBERT's projection; give a ColBERT's folder, "
            "or load it without projection"
        )
    config = read_config(folder, projection=projection)
    model = colbert(config)
    rules = {
        name: Rule(f"body/{rule.path}", rule.transform) for name, rule in bert.rules(config.body).items()
    }
    rules[r"linear\.weight"] = Rule("linear/kernel", transpose)
    target = jax.eval_shape(model.init, jax.random.key(0))
    params = assign(tensors, rules, target, ignore=bert.IGNORED, source=f"the weights in {folder}")
    return model, jax.device_put(params), config
