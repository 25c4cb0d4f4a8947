"""Tuning the dual encoder on feedback: CFRAG section 4.2, and ROPG where no users count."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pbr_jax.models import bert, dual_encoder
from pbr_jax.models.dual_encoder import DualEncoderConfig, Tokens
from pbr_jax.models.layers import precision
from pbr_jax.models.sentence_folder import Role
from pbr_jax.options import Distillation, Training
from pbr_jax.text.encode import TextEncoder
from pbr_jax.text.padding import multiple
from pbr_jax.train.distillation import Scorer, candidate_rows, distill
from pbr_jax.train.loop import Fitted
from pbr_jax.train.sharding import Batch
from pbr_jax.types import Feedback, Params, UserError

_WIDTH = 8  # token widths are multiples of it


@runtime_checkable
class Options(Protocol):
    """What the training is told (`methods.retrieve.tuned`)."""

    @property
    def alpha(self) -> float: ...
    @property
    def similarity(self) -> str: ...
    @property
    def user_layers(self) -> int: ...
    @property
    def distillation(self) -> Distillation: ...
    @property
    def training(self) -> Training: ...


def train(
    queries: Sequence[str],
    users: np.ndarray | None,
    feedback: Sequence[Feedback],
    texts: Callable[[np.ndarray], list[str]],
    encoder: TextEncoder,
    options: Options,
    folder: Path,
    *,
    seed: int,
    owners: Sequence[str] | None = None,
    least: float = 0.0,
) -> Fitted:
    """Tunes the encoder's tower and, where there are users, the map of their vectors.

    Args:
      queries: of the training questions.
      users: their asking users' vectors, float32 [n u]; None: relevance alone (alpha 0).
      feedback: on each question's candidates.
      texts: of documents by their rows.
      encoder: what is tuned: its weights, pooling and lengths.
      folder: of checkpoints.
      owners, least: see `lessons.distill`.

    Returns:
      Parameters of `model_config`'s dual encoder.
    """
    config = model_config(encoder, options.user_layers, None if users is None else users.shape[1])
    config = dataclasses.replace(config, normalize=options.similarity == "cosine")
    rows = np.unique(np.concatenate([found.rows for found in feedback]))
    place = {row: i for i, row in enumerate(rows.tolist())}
    documents = token_arrays(encoder, texts(rows), "document")
    asked = token_arrays(encoder, queries, "query")
    width = max((len(found.rows) for found in feedback), default=1)

    def arrays(questions: np.ndarray) -> Batch:
        chosen = np.zeros((len(questions), width), np.int64)
        for i, question in enumerate(questions.tolist()):
            found = feedback[question].rows
            chosen[i, : len(found)] = [place[row] for row in found.tolist()]
        batch = {
            "query_ids": asked.ids[questions], "query_mask": asked.mask[questions],
            "document_ids": documents.ids[chosen], "document_mask": documents.mask[chosen],
        }  # fmt: skip
        return batch if users is None else batch | {"users": users[questions].astype(np.float32)}

    def params() -> Params:
        _, tower, _ = bert.load(encoder.folder)
        return dual_encoder.from_bert(config, tower, jax.random.key(seed))

    heads = () if users is None else ("user",)  # MLP_1
    scorer = Scorer(params, arrays, _scores(config, options.alpha), heads)
    return distill(
        scorer,
        feedback,
        options.distillation,
        options.training,
        folder,
        seed=seed,
        owners=owners,
        least=least,
    )


def model_config(encoder: TextEncoder, user_layers: int, user_width: int | None) -> DualEncoderConfig:
    """The dual encoder that starts from a text encoder: one tower for queries and documents."""
    return DualEncoderConfig(
        tower=encoder.bert_config,
        pooling=encoder.settings.pooling,
        user_width=user_width,
        user_layers=user_layers,
    )


def token_arrays(encoder: TextEncoder, texts: Sequence[str], role: Role) -> Tokens:
    """Token ids [n t] and mask of texts, with the role's prefix, padded on the right."""
    prefix = encoder.prefix(role)
    if prefix and not encoder.settings.include_prompt:
        raise UserError(
            f"{encoder.folder}: its pooling leaves the prompt {prefix!r:.80} out, and training does not; "
            "set encoder.query_prefix and encoder.document_prefix to ''"
        )
    tokens = encoder.tokenizer.encode_batch([prefix + text for text in texts])
    width = multiple(max(map(len, tokens), default=1), _WIDTH)
    ids, mask = np.zeros((len(tokens), width), np.int32), np.zeros((len(tokens), width), bool)
    for row, found in enumerate(tokens):
        ids[row, : len(found)], mask[row, : len(found)] = found, True
    return Tokens(ids, mask)


def _scores(config: DualEncoderConfig, alpha: float):
    apply = dual_encoder.dual_encoder(config).apply

    def scores(params: Params, batch: dict[str, Array], key: Array | None) -> Float[Array, "b c"]:
        b, c, t = batch["document_ids"].shape
        rows, each = batch.get("row"), candidate_rows(batch, c)
        asked = Tokens(batch["query_ids"], batch["query_mask"])
        asked = apply(params, queries=asked, users=batch.get("users"), key=key, rows=rows)
        texts = Tokens(batch["document_ids"].reshape(b * c, t), batch["document_mask"].reshape(b * c, t))
        documents = apply(params, documents=texts, key=key, rows=each).documents.reshape(b, c, -1)
        queries = asked.queries
        if asked.users is not None:
            queries = dual_encoder.personalize(queries, asked.users, alpha)
        with precision(queries.dtype):
            return jnp.einsum("bd,bcd->bc", queries, documents, preferred_element_type=jnp.float32)

    return scores
