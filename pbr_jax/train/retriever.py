"""Tuning the dual encoder on feedback: CFRAG section 4.2, and ROPG where no users count."""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pbr_jax.base.types import Feedback, Params, UserError
from pbr_jax.models import bert, dual_encoder
from pbr_jax.models.dual_encoder import DualEncoderConfig, Tokens
from pbr_jax.models.layers import precision
from pbr_jax.models.sentence_folder import Role
from pbr_jax.text.encode import TextEncoder
from pbr_jax.text.padding import multiple, padded
from pbr_jax.train.distillation import Scorer, candidate_rows
from pbr_jax.train.sharding import Batch

_WIDTH = 8  # token widths are multiples of it


def scorer(
    queries: Sequence[str],
    users: np.ndarray | None,
    feedback: Sequence[Feedback],
    texts: Callable[[np.ndarray], list[str]],
    encoder: TextEncoder,
    *,
    alpha: float,
    similarity: str,
    user_layers: int,
    seed: int,
) -> Scorer:
    """What is tuned: the encoder's tower and, where there are users, the map of their vectors.

    Args:
      queries: of the training questions.
      users: the vectors of the users who ask, float32 [n u]; None: relevance alone (alpha 0).
      feedback: on each question's candidates.
      texts: of documents by their rows.
      encoder: its weights, pooling and lengths are where the tower begins.

    Returns:
      The scorer; its parameters are those of `model_config`'s dual encoder.
    """
    config = model_config(encoder, user_layers, None if users is None else users.shape[1])
    config = dataclasses.replace(config, normalize=similarity == "cosine")
    rows = np.unique(np.concatenate([each.rows for each in feedback]))
    places = {row: i for i, row in enumerate(rows.tolist())}
    documents = token_arrays(encoder, texts(rows), "document")
    questions = token_arrays(encoder, queries, "query")
    width = max((len(each.rows) for each in feedback), default=1)

    def arrays(chosen: np.ndarray) -> Batch:
        candidates = np.zeros((len(chosen), width), np.int64)
        for i, question in enumerate(chosen.tolist()):
            own = feedback[question].rows
            candidates[i, : len(own)] = [places[row] for row in own.tolist()]
        batch = {
            "query_ids": questions.ids[chosen], "query_mask": questions.mask[chosen],
            "document_ids": documents.ids[candidates], "document_mask": documents.mask[candidates],
        }  # fmt: skip
        return batch if users is None else batch | {"users": users[chosen].astype(np.float32)}

    def params() -> Params:
        _, tower, _ = bert.load(encoder.folder)
        return dual_encoder.from_bert(config, tower, jax.random.key(seed))

    heads = () if users is None else ("user",)  # MLP_1
    return Scorer(params, arrays, _scores(config, alpha), heads)


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
    return Tokens(*padded(tokens, (len(tokens), width)))


def _scores(config: DualEncoderConfig, alpha: float):
    apply = dual_encoder.dual_encoder(config).apply

    def scores(params: Params, batch: dict[str, Array], key: Array | None) -> Float[Array, "b c"]:
        b, c, t = batch["document_ids"].shape
        rows, each = batch.get("row"), candidate_rows(batch, c)
        questions = Tokens(batch["query_ids"], batch["query_mask"])
        read = apply(params, queries=questions, users=batch.get("users"), key=key, rows=rows)
        texts = Tokens(batch["document_ids"].reshape(b * c, t), batch["document_mask"].reshape(b * c, t))
        documents = apply(params, documents=texts, key=key, rows=each).documents.reshape(b, c, -1)
        queries = read.queries
        if read.users is not None:
            queries = dual_encoder.personalize(queries, read.users, alpha)
        with precision(queries.dtype):
            return jnp.einsum("bd,bcd->bc", queries, documents, preferred_element_type=jnp.float32)

    return scores
