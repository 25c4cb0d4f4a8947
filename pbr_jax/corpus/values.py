"""Documents as the values of a store's columns, and which documents and moments a store takes."""

import json
import math
from collections.abc import Sequence
from typing import Any

from pbr_jax.base.types import Document, UserError


def values_of(document: Document) -> tuple[Any, ...]:
    """Id, text, fields as JSON, and both moments."""
    fields = json.dumps(dict(document.fields), ensure_ascii=False)
    return document.id, document.text, fields, moment(document.time), moment(document.until)


def check_texts(document: Document) -> None:
    """Raises UserError for what is no text, or has no bytes: half of a character (a lone surrogate)."""
    for name in ("user_id", "id", "text"):
        if not isinstance(value := getattr(document, name), str):
            raise UserError(f"document {document.id!r:.40} has {name} {value!r:.40}, want a text; correct it")
    try:
        " ".join((document.user_id, *values_of(document)[:3])).encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"document {document.id!r} of user {document.user_id!r} holds {error.object[error.start]!r}, "
            "which is half of a character; decode its text anew, or replace that"
        ) from error


def latest(profile: Sequence[Document], newest: int | None) -> Sequence[int]:
    """Places of so many of the latest documents, undated ones being the oldest, in order; None: all."""
    if newest is None:
        return range(len(profile))
    by_age = sorted(range(len(profile)), key=lambda i: -math.inf if (t := profile[i].time) is None else t)
    return sorted(by_age[max(len(profile) - newest, 0) :])


def moment(value: float | None) -> float | None:
    """As it is stored. Raises UserError for what is no moment: of nan SQLite makes null, which is undated."""
    if value is None:
        return None
    if not value > -math.inf:
        raise UserError(f"a time is {value}, want seconds since 1970, or None where there is no date")
    return float(value) + 0.0  # SQLite knows no -0.0
