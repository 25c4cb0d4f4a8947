"""Checks of what a caller gives to a `System`: each wrong argument is one clear UserError."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from pbr_jax.base.types import Document, Example, UserError
from pbr_jax.llm.protocol import check_text


def check_filled(text: Any, what: str) -> None:
    """UserError for what is no text, is blank, or holds half of a surrogate pair."""
    if not isinstance(text, str) or not text.strip():
        raise UserError(f"{what} is {text!r:.40}, want a text that is not blank")
    check_text(text, what)


def check_examples(examples: Iterable[Example]) -> list[Example]:
    """The examples as a list."""
    found = _listed(examples, "examples", "Examples")
    for place, example in enumerate(found):
        if not isinstance(example, Example):
            raise UserError(
                f"examples[{place}] is {example!r:.40}, want an Example; make one of pbr_jax.Example"
            )
        check_filled(example.user_id, f"the user_id of examples[{place}]")
    return found


def check_documents(documents: Iterable[Document | str], user: str) -> list[Document]:
    """The documents as those of a user, "" for shared ones.

    A text becomes a document whose id is the hash of the text.
    """
    found = []
    for place, entry in enumerate(_listed(documents, "documents", "texts or Documents")):
        what = f"documents[{place}]"
        if isinstance(entry, Document):
            _check_document(entry, user, what)
            found.append(entry)
        else:
            check_filled(entry, what)
            id = hashlib.sha256(entry.encode()).hexdigest()[:16]
            found.append(Document(id, user, entry, shared=not user))
    return found


def _check_document(document: Document, user: str, what: str) -> None:
    check_filled(document.id, f"the id of {what}")
    check_filled(document.text, f"the text of {what}")
    for name, value in document.fields.items():
        check_text(name, f"the name of a field of {what}")
        check_text(value, f"field {name!r} of {what}")
    if document.user_id != user or document.shared == bool(user):
        kind = "a shared document" if document.shared else f"of user {document.user_id!r}"
        place = f"user {user!r}" if user else "the shared documents"
        raise UserError(
            f"{what} ({document.id!r}) is {kind}, and was added to {place}; add takes documents of the user, "
            'add_shared those with shared=True and user_id ""'
        )


def _listed(values: Any, name: str, wanted: str) -> list[Any]:
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        found = "a text" if isinstance(values, str) else f"of type {type(values).__name__}"
        raise UserError(f"{name} is {found}, want a list of {wanted}")
    return list(values)
