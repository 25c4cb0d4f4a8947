"""Checks of what a caller gives to a `System`: each wrong argument is one clear UserError."""

import math
import typing
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import UnionType
from typing import Any

import numpy as np

from pbr_jax.base.types import Document, Example, UserError
from pbr_jax.corpus.entries import Time, are_messages, document_of, exchanges
from pbr_jax.llm.protocol import brief, check_text
from pbr_jax.options.base import hints

Entry = Document | Mapping[str, Any] | str
"""A document, a record, a message of a chat, or a text."""

_WANTED = {
    float: "seconds since 1970, or None where there is no date",
    int: "a place in a text",
    bool: "True or False",
    tuple: "a list, or two places",
    Mapping: "texts by their names",
    Document: "a Document",
}


def check_filled(text: Any, what: str) -> None:
    """UserError for what is no text, is blank, or holds half of a surrogate pair."""
    if not isinstance(text, str) or not text.strip():
        raise UserError(f"{what} is {brief(text)}, want a text that is not blank")
    check_text(text, what)


def check_examples(examples: Iterable[Example]) -> list[Example]:
    """The examples as a list."""
    found = _listed(examples, "examples", "Examples")
    for place, example in enumerate(found):
        if not isinstance(example, Example):
            raise UserError(
                f"examples[{place}] is {brief(example)}, want an Example; make one of pbr_jax.Example"
            )
        _check_fields(example, f"examples[{place}]")
        check_filled(example.user_id, f"the user_id of examples[{place}]")
    return found


def check_documents(documents: Iterable[Entry], user: str, time: Time = None) -> list[Document]:
    """The documents as those of a user, "" for shared ones; `time` is the date of those without one.

    Texts, records and messages become documents (`corpus.entries`).
    """
    found, listed = [], _listed(documents, "documents", "texts or Documents")
    for place, entry in enumerate(exchanges(listed) if are_messages(listed) else listed):
        what = f"documents[{place}]"
        if not isinstance(entry, Document | Mapping):
            check_filled(entry, what)
        document = entry if isinstance(entry, Document) else document_of(entry, user, time, what)
        _check_document(document, user, what)
        found.append(document)
    return found


def _check_document(document: Document, user: str, what: str) -> None:
    check_filled(document.id, f"the id of {what}")
    check_filled(document.text, f"the text of {what}")
    _check_fields(document, what)
    if document.user_id != user or document.shared == bool(user):
        kind = "a shared document" if document.shared else f"of user {document.user_id!r}"
        place = f"user {user!r}" if user else "the shared documents"
        raise UserError(
            f"{what} ({document.id!r}) is {kind}, and was added to {place}; add takes documents of the user, "
            'add_shared those with shared=True and user_id ""'
        )


def _check_fields(owner: Document | Example, what: str) -> None:
    """UserError for a field whose value does not have its type."""
    for name, hint in hints(type(owner)).items():
        _check_value(getattr(owner, name), hint, f"the {name} of {what}")


def _check_value(value: Any, hint: Any, what: str) -> None:
    """UserError for a value that does not have the type of its field."""
    kind, inner = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind is UnionType:
        if value is None:
            return
        kind = inner[0]
    if kind is str:
        check_text(value, what)
    elif kind is Document and isinstance(value, Document):
        _check_fields(value, what)
    elif kind is Mapping and isinstance(value, Mapping):
        for name, text in value.items():
            check_text(name, f"a name in {what}")
            check_text(text, f"{name!r} in {what}")
    elif kind is tuple and isinstance(value, list | tuple) and (... in inner or len(value) == len(inner)):
        for one in value:
            _check_value(one, inner[0], f"an entry of {what}")
    elif not _is_valid(value, kind):
        raise UserError(f"{what} is {brief(value)}, want {_WANTED[kind]}")


def _is_valid(value: Any, kind: Any) -> bool:
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and value >= 0
    with suppress(OverflowError):  # of an integer that is no float
        if kind is float and isinstance(value, int | float | np.integer | np.floating):
            return float(value) > -math.inf
    return False


def _listed(values: Any, name: str, wanted: str) -> list[Any]:
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        found = "a text" if isinstance(values, str) else f"of type {type(values).__name__}"
        raise UserError(f"{name} is {found}, want a list of {wanted}")
    return list(values)
