"""How a ColBERT's folder wants texts read; the first release, PyLate and sentence-transformers write others.

Chaffin and Sourty, "PyLate", https://github.com/lightonai/pylate, 2024.
"""

from pathlib import Path
from typing import Any, get_args

from pbr_jax.base.types import UserError
from pbr_jax.models import known_fields, sentence_folder
from pbr_jax.models.sentence_folder import Module, Role

_ORDERS = (
    ("Transformer", "Dense"),
    ("Transformer", "Dense", "MultiVectorMask", "Normalize"),
    ("Transformer", "Dense", "Normalize", "MultiVectorMask"),
)
_ARTIFACT = {
    "query_maxlen": ("query_length", int),
    "doc_maxlen": ("document_length", int),
    "attend_to_mask_tokens": ("attend_to_mask_tokens", bool),
    "query_token_id": ("query_token", str),
    "doc_token_id": ("document_token", str),
}
_LENGTHS = {name: (name, int) for name in ("query_length", "document_length")}
_PYLATE = _LENGTHS | {
    "do_query_expansion": ("expand_queries", bool),
    "attend_to_expansion_tokens": ("attend_to_mask_tokens", bool),
    "query_prefix": ("query_token", str),
    "document_prefix": ("document_token", str),
}
_EXPANSION = {
    "length": ("query_length", int),
    "attend": ("attend_to_mask_tokens", bool),
    "token": ("expansion_token", str),
}


def projection(folder: Path) -> Path | None:
    """Where the projection's weights are, where not beside the body's. Raises UserError: the projection is
    more than a matrix."""
    modules = sentence_folder.modules(folder)
    folders = [module.folder for module in modules if module.kind == "Dense"]
    if not modules and (folder / "1_Dense").is_dir():
        folders = [folder / "1_Dense"]
    if len(folders) != 1 or any(module.kind == "Pooling" for module in modules):
        return None
    known_fields.read(folders[0] / "config.json", known_fields.PROJECTION)
    return folders[0]


def settings(folder: Path) -> dict[str, Any]:
    """The fields of a `ColbertConfig` that the folder's files state. Raises UserError: a file is malformed,
    or has a field that is not followed."""
    modules = sentence_folder.modules(folder)
    sentence_folder.check_order(modules, folder, *_ORDERS)
    file = folder / "artifact.metadata"
    artifact = known_fields.read(file, known_fields.ARTIFACT)
    stated = _renamed(artifact, _ARTIFACT, file)
    if artifact.get("mask_punctuation") is False:
        stated["skiplist"] = ()
    native = any(module.kind == "MultiVectorMask" for module in modules)
    return stated | (_sentence_transformers(folder, modules) if native else _pylate(folder))


def _pylate(folder: Path) -> dict[str, Any]:
    """PyLate inserts a marker behind [CLS], and puts a prompt, where there is one, before the text."""
    file, content = folder / sentence_folder.MODEL, sentence_folder.model(folder)
    if "attend_to_mask_tokens" in content:
        content.setdefault("attend_to_expansion_tokens", content["attend_to_mask_tokens"])
    stated = _renamed(content, _PYLATE, file) | _skiplist(content, file)
    stated |= _expansion(content, file) if "query_expansion" in content else {}
    for role in get_args(Role):
        marker = stated.get(f"{role}_token") or ""
        if text := sentence_folder.prompt(folder, role).removeprefix(marker):
            stated[f"{role}_prompt"] = text
    return stated


def _sentence_transformers(folder: Path, modules: list[Module]) -> dict[str, Any]:
    """sentence-transformers writes markers as prompts: texts whose tokenizer has a token for them."""
    file, body = folder / "sentence_bert_config.json", sentence_folder.transformer(folder)
    stated: dict[str, Any] = dict(query_length=None, document_length=None, skiplist=())
    stated |= _renamed(body, _LENGTHS, file) | _expansion(body, file)
    for module in modules:
        if module.kind == "MultiVectorMask":
            mask = module.folder / "config.json"
            stated |= _skiplist(known_fields.read(mask, known_fields.MASK), mask)
        elif module.kind == "Normalize":
            known_fields.read(module.folder / "config.json", known_fields.NORMALIZE_TOKENS)
    for role in get_args(Role):
        stated |= {f"{role}_token": None, f"{role}_prompt": sentence_folder.prompt(folder, role)}
    return stated


def _expansion(content: dict[str, Any], file: Path) -> dict[str, Any]:
    stated = content.get("query_expansion")
    if not stated:
        return {"expand_queries": False}
    known = {"strategy", *_EXPANSION}
    if not isinstance(stated, dict) or stated.get("strategy") != "fixed" or set(stated) - known:
        raise UserError(
            f"{file}: found query_expansion {stated!r:.120}; want null, or an object with strategy 'fixed' "
            f"and {', '.join(_EXPANSION)}"
        )
    return _renamed(stated, _EXPANSION, file)


def _skiplist(content: dict[str, Any], file: Path) -> dict[str, Any]:
    words = content.get("skiplist_words")
    if words is None:
        return {}
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise UserError(f"{file}: skiplist_words is {words!r:.80}; a list of tokens is wanted")
    return {"skiplist": tuple(words)}


def _renamed(content: dict[str, Any], names: dict[str, tuple[str, type]], file: Path) -> dict[str, Any]:
    values = {}
    for theirs, (ours, kind) in names.items():
        value = content.get(theirs)
        if value is not None and type(value) is not kind:
            raise UserError(f"{file}: {theirs} is {value!r:.80}; {kind.__name__} is wanted")
        values |= {} if value is None else {ours: value}
    return values
