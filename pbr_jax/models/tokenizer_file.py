"""A folder's tokenizer as transformers reads it: `tokenizer.json` and the files that add to it.

`special_tokens_map.json` and `added_tokens.json` count where `tokenizer_config.json` lists no
`added_tokens_decoder`, as in transformers 4 and 5.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pbr_jax.base.files import JsonBounds, parse_json
from pbr_jax.base.types import UserError
from pbr_jax.models import fields as model_fields
from pbr_jax.models.pretrained import one_line

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_BERT = ("Bert", "DistilBert", "Electra")


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


def settings(folder: Path) -> dict[str, Any]:
    """The fields of tokenizer_config.json, with those of special_tokens_map.json. Special tokens are
    texts. UserError for a field that would change results and is not followed."""
    content = model_fields.read(folder / "tokenizer_config.json", model_fields.TOKENIZER)
    if "added_tokens_decoder" not in content:
        special = folder / "special_tokens_map.json"
        content = content | model_fields.read(special, model_fields.TOKENIZER)
    for name in filter(_is_special, list(content)):
        text = content.pop(name)
        text = text.get("content") if isinstance(text, Mapping) else text
        if isinstance(text, str) and text:
            content[name] = text
    return content


def _is_special(name: str) -> bool:
    """Whether a field names a special token: bos_token, image_token, ...; not add_bos_token."""
    return name.endswith("_token") and not name.startswith("add_")


def read_folder(folder: Path) -> tuple["Tokenizer", dict[str, Any]]:
    """The tokenizer of a folder that holds a `tokenizer.json`, and its `settings`. Raises UserError: a file
    is malformed, contradicts `tokenizer.json`, or says what is not followed."""
    fields, source = settings(folder), str(folder / "tokenizer_config.json")
    tokenizer = read(folder / "tokenizer.json")
    with model_fields.sound(source):
        _add(tokenizer, folder, fields)
        tokenizer = _normalized(tokenizer, folder, fields)
        _check_ends(tokenizer, fields, source)
    return tokenizer, fields


def _add(tokenizer: "Tokenizer", folder: Path, fields: Mapping[str, Any]) -> None:
    """Makes tokens of what the other files add, and special ones of those that they call special."""
    from tokenizers import AddedToken

    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    for number, token in _added(folder, fields):
        if token.content not in known:
            tokenizer.add_tokens([token])
            if tokenizer.token_to_id(token.content) != number:
                raise UserError(
                    f"{folder}: token {token.content!r:.80} has number {number} in the files beside "
                    f"tokenizer.json and {tokenizer.token_to_id(token.content)} in it; fetch them again"
                )
    for name in ("bos_token", "eos_token"):
        if name in fields and tokenizer.token_to_id(fields[name]) is None:
            raise UserError(
                f"{folder}: found {name} {fields[name]!r:.80}, which is no token of tokenizer.json; "
                "fetch the files again"
            )
    special = [
        fields[name] for name in dict.fromkeys((*SPECIAL, *filter(_is_special, fields))) if name in fields
    ]
    for name in ("extra_special_tokens", "additional_special_tokens", "model_specific_special_tokens"):
        more = fields.get(name) or []
        for token in more.values() if isinstance(more, Mapping) else more:
            special.append(token["content"] if isinstance(token, Mapping) else token)
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    for text in dict.fromkeys(special):
        if text not in known:
            tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False)])


def _added(folder: Path, fields: Mapping[str, Any]) -> Iterator[tuple[int, Any]]:
    """Numbers and tokens that other files than tokenizer.json have, in order of their numbers."""
    from tokenizers import AddedToken

    decoder, file = fields.get("added_tokens_decoder"), folder / "added_tokens.json"
    if decoder is not None:
        for number, fields in sorted(decoder.items(), key=lambda item: int(item[0])):
            yield int(number), AddedToken(**fields)
    elif file.is_file():
        content = model_fields.read_object(file)
        for text, number in sorted(content.items(), key=lambda item: item[1]):
            yield number, AddedToken(text, normalized=True)


def _normalized(tokenizer: "Tokenizer", folder: Path, fields: Mapping[str, Any]) -> "Tokenizer":
    """A BERT's normaliser with the fields of its tokenizer_config.json in place of its own."""
    from tokenizers import Tokenizer

    state = parse_json(tokenizer.to_str())
    normalizer = state["normalizer"]
    prefixed, own = fields.get("add_prefix_space"), (state["pre_tokenizer"] or {}).get("add_prefix_space")
    if None not in (prefixed, own) and prefixed != own:
        raise UserError(
            f"{folder}: found add_prefix_space {prefixed!r:.80} in tokenizer_config.json and {own} in "
            "tokenizer.json; want the same"
        )
    if (
        _kind(fields) not in _BERT
        or not isinstance(normalizer, dict)
        or normalizer["type"] != "BertNormalizer"
    ):
        return tokenizer
    names = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}  # the class's own
    values = [fields.get(name, own) for name, own in names.items()]
    if not all(value is None or isinstance(value, bool) for value in values):
        raise UserError(f"{folder}: {', '.join(names)} are {values!r:.80}; true or false is wanted")
    lower, accents, chinese = values
    wanted = normalizer | dict(
        lowercase=bool(lower), strip_accents=accents, handle_chinese_chars=bool(chinese)
    )
    if wanted == normalizer:
        return tokenizer
    return Tokenizer.from_str(json.dumps(state | {"normalizer": wanted}))


def _check_ends(tokenizer: "Tokenizer", fields: Mapping[str, Any], source: str) -> None:
    """UserError where add_bos_token or add_eos_token say otherwise than `tokenizer.json` does.
    transformers 5 follows tokenizer.json alone there, some classes of transformers 4 the fields. A BERT's
    class takes the cls_token, sep_token and unk_token of the fields, whatever tokenizer.json says."""
    ids = tokenizer.encode("a").ids or [None]
    ends = {"bos_token": ids[0], "eos_token": ids[-1]}
    wrong = [
        (f"add_{name}", fields[f"add_{name}"])
        for name, end in ends.items()
        if None not in (fields.get(f"add_{name}"), fields.get(name), end)
        and bool(fields[f"add_{name}"]) != (end == tokenizer.token_to_id(fields[name]))
    ]
    if _kind(fields) in _BERT:
        unknown = tokenizer.token_to_id(getattr(tokenizer.model, "unk_token", None) or "")
        used = {"cls_token": ids[0], "sep_token": ids[-1], "unk_token": unknown}
        named = {name: text for name, text in fields.items() if name in used}
        wrong += [(name, text) for name, text in named.items() if tokenizer.token_to_id(text) != used[name]]
    for name, value in wrong:
        raise UserError(
            f"{source}: found {name} {value!r:.80}, which tokenizer.json does not do; correct one of them"
        )


def _kind(fields: Mapping[str, Any]) -> str:
    """The tokenizer's class without its ending, such as Bert."""
    return str(fields.get("tokenizer_class")).removesuffix("Fast").removesuffix("Tokenizer")


def check_known(texts: Iterable[Sequence[int]], rows: int | None, source: str) -> None:
    """Raises UserError for a token that a model has no row for; None: it has rows for all."""
    most = max((max(ids) for ids in texts if ids), default=0)
    if rows is not None and most >= rows:
        raise UserError(
            f"{source}: the tokenizer gives token {most}, and the model knows {rows}; put the model's own "
            "tokenizer.json there"
        )


def lowered(tokenizer: "Tokenizer") -> None:
    """Makes it read every text in lower case, as sentence-transformers does for `do_lower_case`."""
    from tokenizers import normalizers

    own = tokenizer.normalizer
    both: list[Any] = [normalizers.Lowercase(), *([] if own is None else [own])]
    tokenizer.normalizer = normalizers.Sequence(both)


def unprefixed(part: Any) -> Any:
    """A normaliser's or pre-tokenizer's state without the space that it puts in front of a text."""
    if not isinstance(part, dict):
        return part
    if part.get("type") == "Prepend":
        return None
    changed = dict(part)
    if part.get("type") == "Metaspace":
        changed["prepend_scheme"] = "never"
    if "add_prefix_space" in part:
        changed["add_prefix_space"] = False
    for name in ("normalizers", "pretokenizers"):
        if name in part:
            changed[name] = [kept for inner in part[name] if (kept := unprefixed(inner)) is not None]
    return changed
