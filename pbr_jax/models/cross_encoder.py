"""The reranker: a cross-encoder that reads query and document together and scores them for a user.

Shi et al. (CFRAG), https://arxiv.org/abs/2504.05731, 2025, Eq. 9-10::

    h = [CLS] state of (query, document),  S(u, q, d) = MLP_3(concat(h, MLP_2(e_u)))

The reranker without users is the same body with its pretrained classification head.

>>> sizes = {"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
>>> body = bert.BertConfig(**sizes, intermediate_size=8, max_position_embeddings=4)
>>> model = cross_encoder(CrossEncoderConfig(body=body, user_width=0))
>>> params, pairs = model.init(jax.random.key(0)), jnp.ones((2, 4), int)
>>> model.apply(params, pairs, None, mask=pairs > 0).shape
(2,)
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from pbr_jax.base.types import Model, Params, UserError
from pbr_jax.models import bert, layers, sentence_folder
from pbr_jax.models.pretrained import read_tensors
from pbr_jax.models.rules import Rule, assign


@dataclass(frozen=True, kw_only=True)
class CrossEncoderConfig:
    """The sizes of the body and of the layers on top of it."""

    body: bert.BertConfig
    head: bool = False  # the pretrained classification head: dense, tanh, one output
    user_width: int | None = None  # of a user embedding; 0: a score that knows no users; None: no score
    user_layers: int = 2  # of MLP_2, tanh between them; the released code has one linear map

    def __post_init__(self) -> None:
        if self.user_layers < 1:
            raise UserError(f"user_layers is {self.user_layers}; at least one is wanted")


class CrossEncoder(NamedTuple):
    """The pure functions of a reranker. `cross_encoder` documents their arguments."""

    init: Callable[..., Params]
    apply: Callable[..., Any]
    encode: Callable[..., Any]
    relevance: Callable[..., Any]


def cross_encoder(config: CrossEncoderConfig) -> CrossEncoder:
    """Builds the reranker as pure functions: `init(key) -> params`, and

    - `apply(params, ids, users, *, mask, types=None, key=None, rows=None) -> scores [b]`: Eq. 10, the
      personalized score. With `user_width` 0 it is MLP_3(h).
    - `relevance(params, ids, *, mask, types=None) -> scores [b]`: the pretrained head's logit.
    - `encode(params, ids, *, mask, types=None, key=None, rows=None) -> states [b d]`: Eq. 9, those of [CLS].

    Their arguments are:

    - ids: Int [b t], a pair of texts per row with the tokenizer's special tokens, [CLS] first.
    - mask: Bool [b t], True for tokens.
    - types: Int [b t], for a BERT 0 on the query and 1 on the document; None for XLM-R.
    - users: Float [b u], the user embedding of each row; None: no users.
    - key: the random key of dropout in the body; None: no dropout.
    - rows: Int [b], the pairs' numbers, for dropout; None: 0, 1, ...

    Parameters: `body` as in `bert`; `head`, `user` and `score` if the config has them. `apply` raises
    ValueError if the config lacks `user_width`, and `relevance` if it lacks `head`.
    """
    body, head, user, score = parts = _parts(config)

    def encode(
        params: Params,
        ids: Int[Any, "b t"],
        *,
        mask: Bool[Any, "b t"],
        types: Int[Any, "b t"] | None = None,
        key: Array | None = None,
        rows: Int[Any, "b"] | None = None,
    ) -> Float[Array, "b d"]:
        segments = jnp.asarray(mask, jnp.int32)
        return body.apply(params["body"], ids, segments=segments, types=types, key=key, rows=rows)[:, 0]

    def apply(
        params: Params,
        ids: Int[Any, "b t"],
        users: Float[Any, "b u"] | None,
        *,
        mask: Bool[Any, "b t"],
        types: Int[Any, "b t"] | None = None,
        key: Array | None = None,
        rows: Int[Any, "b"] | None = None,
    ) -> Float[Array, "b"]:
        if config.user_width is None:
            raise ValueError("a personal score needs users: state the width of their embeddings, user_width")
        states = encode(params, ids, mask=mask, types=types, key=key, rows=rows)
        if config.user_width:
            states = jnp.concatenate([states, user.apply(params["user"], users)], -1)
        return score.apply(params["score"], states)[:, 0]

    def relevance(
        params: Params, ids: Int[Any, "b t"], *, mask: Bool[Any, "b t"], types: Int[Any, "b t"] | None = None
    ) -> Float[Array, "b"]:
        if not config.head:
            raise ValueError("this model has no classification head; take a reranker that has one")
        pairs = encode(params, ids, mask=mask, types=types)
        return head.apply(params["head"], pairs)[:, 0]

    return CrossEncoder(partial(_init, config, parts), apply, encode, relevance)


class _Parts(NamedTuple):
    """Models of a config, whether it has their parameters or not."""

    body: Model
    head: Model
    user: Model  # MLP_2
    score: Model  # MLP_3


def _parts(config: CrossEncoderConfig) -> _Parts:
    d = config.body.hidden_size
    return _Parts(
        bert.bert(config.body),
        layers.mlp(d, (d, 1)),
        layers.mlp(config.user_width or 0, (d,) * config.user_layers),
        layers.mlp(2 * d if config.user_width else d, (d, d, 1)),
    )


def _init(config: CrossEncoderConfig, parts: _Parts, key: Array) -> Params:
    keys = jax.random.split(key, 4)
    params: Params = {"body": parts.body.init(keys[0])}
    if config.head:
        params["head"] = parts.head.init(keys[1])
    if config.user_width:
        params["user"] = parts.user.init(keys[2])
    if config.user_width is not None:
        params["score"] = parts.score.init(keys[3])
    return params


_HEAD = {
    # RoBERTa and XLM-R: the head has a dense layer of its own. BERT: its pooler is that layer.
    **bert.dense_rules(r"classifier\.dense", "head/dense_0"),
    **bert.dense_rules(r"classifier\.out_proj", "head/dense_1"),
    **bert.dense_rules(r"bert\.pooler\.dense", "head/dense_0"),
    **bert.dense_rules(r"classifier", "head/dense_1"),
}


def has_head(tensors: Iterable[str]) -> bool:
    """Whether weights with these names include a pretrained head for pairs of texts."""
    return any(name.startswith("classifier.") for name in tensors)


def load(
    folder: Path, key: Array, *, user_width: int | None = None, user_layers: int = 2
) -> tuple[CrossEncoder, Params, CrossEncoderConfig]:
    """Loads model, parameters (on the default device) and configuration of a BERT, RoBERTa or XLM-R folder.

    MLP_2 and MLP_3 are not in such folders; their weights are drawn at random with `key`. Raises UserError
    if configuration or weights are missing, unreadable, inconsistent or not supported.
    """
    sentence_folder.check_reranker(folder)
    tensors = read_tensors(folder)
    config = CrossEncoderConfig(
        body=bert.BertConfig.from_json(folder),
        head=has_head(tensors),
        user_width=user_width,
        user_layers=user_layers,
    )
    model = cross_encoder(config)
    target = jax.eval_shape(model.init, key)
    rules = {
        name: Rule(f"body/{rule.path}", rule.transform) for name, rule in bert.rules(config.body).items()
    }
    stored = assign(
        tensors,
        rules | (_HEAD if config.head else {}),
        {name: part for name, part in target.items() if name in ("body", "head")},
        ignore=bert.IGNORED,
        source=f"the weights in {folder}",
    )
    # Under jit only the small parts are computed; the random body is not an output and so never made.
    fresh = jax.jit(lambda key: {k: v for k, v in model.init(key).items() if k not in stored})(key)
    return model, jax.device_put(stored) | fresh, config
