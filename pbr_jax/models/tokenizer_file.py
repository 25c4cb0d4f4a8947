"""Hugging Face's `tokenizer.json`, read with its bounds checked first."""

from pathlib import Path
from typing import TYPE_CHECKING

from pbr_jax.files import JsonBounds
from pbr_jax.models.pretrained import one_line
from pbr_jax.types import UserError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def read(file: Path) -> "Tokenizer":
    """The tokenizer of a `tokenizer.json`, which neither cuts nor pads; UserError where it is none."""
    from tokenizers import Tokenizer

    try:
        content = file.read_bytes()
        JsonBounds().feed(content)
        tokenizer = Tokenizer.from_str(content.decode("utf-8"))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer
    except BaseException as error:  # the library raises bare Exception, and its panics are not even that
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise UserError(f"{file} is not a tokenizer: {one_line(error):.300}; fetch it again") from error
