"""The numbers of a model's config, checked: an untrusted file says how much is computed."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from pbr_jax.base.types import UserError

MOST = 1 << 24
"""The largest width, vocabulary or context that is believed; released models stay below 11 million."""

MOST_LAYERS = 1 << 14
MOST_HEADS = 1 << 14
MOST_HEAD_WIDTH = 1 << 14


def size(fields: Mapping[str, Any], name: str, source: str, *, default: Any = None, most: int = MOST) -> int:
    """A field that says how many or how wide; `default` where it is absent, null or 0.

    Raises:
      KeyError: absent without a default.
      UserError: no whole number from 1 to `most`.
    """
    value = fields[name] if default is None else fields.get(name) or default
    whole = isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1
    if not whole or not 1 <= value <= most:
        raise UserError(f"{source}: {name} is {value!r:.40}; a whole number from 1 to {most} is wanted")
    return int(value)


def check_object(content: Any, source: str) -> None:
    """UserError where a JSON file does not hold an object."""
    if not isinstance(content, Mapping):
        raise UserError(f"{source} holds a {type(content).__name__}; an object is wanted, fetch it again")


@contextlib.contextmanager
def sound(source: str) -> Iterator[None]:
    """What goes wrong while a config is read as a `UserError` that names the file."""
    try:
        yield
    except UserError:
        raise
    except KeyError as error:
        raise UserError(f"{source} has no field {error}; a model's config names its sizes") from None
    except (TypeError, ValueError, AttributeError, ArithmeticError, IndexError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{source}: a field is not of the kind that a model's config has ({reason:.200}); fetch it again"
        ) from error
