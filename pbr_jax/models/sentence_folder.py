"""What sentence-transformers (2 to 6), PyLate and ColBERT's first release write beside an encoder's weights.

Chaffin and Sourty, "PyLate", https://github.com/lightonai/pylate, 2024.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from pbr_jax.base.types import UserError
from pbr_jax.models import fields, tokenizer_file
from pbr_jax.models.pretrained import read_json

Role = Literal["query", "document"]

MODEL = "config_sentence_transformers.json"
_BODIES = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
_PROMPTS: dict[Role, tuple[str, ...]] = {"query": ("query",), "document": ("document", "passage", "corpus")}


class Module(NamedTuple):
    """A step of the model: its class's name, and its folder."""

    kind: str
    folder: Path


def modules(folder: Path) -> list[Module]:
    """The steps that `modules.json` lists, in order; none where there is no such file. Raises UserError:
    the file is malformed, names a class of another library, or a body in a folder of its own."""
    file = folder / "modules.json"
    if not file.is_file():
        return []
    listed = []
    try:
        for module in read_json(file):
            fields.check(module, fields.MODULES, str(file))
            library, kind = module["type"].split(".", 1)[0], module["type"].rsplit(".", 1)[-1]
            if library not in ("sentence_transformers", "pylate"):
                raise UserError(
                    f"{file}: found module {module['type']!r:.80}, the model's own code, which is not run; "
                    "want the modules of sentence-transformers"
                )
            if kind == "Transformer" and module["path"]:
                raise UserError(
                    f"{file}: found the Transformer in {module['path']!r:.80}; want it beside modules.json, "
                    "where recent sentence-transformers save it"
                )
            listed.append(Module(kind, folder / module["path"]))
    except (TypeError, KeyError, AttributeError) as error:
        raise UserError(
            f"{file}: every module wants the fields type and path; fetch the file again"
        ) from error
    return listed


def _transformer_file(folder: Path) -> Path:
    files = [folder / f"sentence_{body}_config.json" for body in _BODIES]
    return next((file for file in files if file.is_file()), files[0])


def transformer(folder: Path, known: fields.FileFields = fields.TRANSFORMER) -> dict[str, Any]:
    """The fields of `sentence_bert_config.json` (or `sentence_roberta_config.json`, ...)."""
    return fields.read(_transformer_file(folder), known)


def lower_case(folder: Path) -> bool:
    """Whether texts are read in lower case; UserError where that is neither true nor false."""
    file = _transformer_file(folder)
    stated = fields.read_object(file, absent=True).get("do_lower_case", False)
    if type(stated) is not bool:
        raise UserError(f"{file}: do_lower_case is {stated!r:.80}; true or false is wanted")
    return stated


def check_reranker(folder: Path) -> None:
    """UserError where a CrossEncoder's folder says what is not followed. Its activation is none of that:
    it changes no order."""
    file = folder / MODEL
    content = fields.read_object(file, absent=True)
    if content.get("model_type") == "CrossEncoder":
        fields.check(content, fields.RERANKER, str(file))
        fields.read(_transformer_file(folder), fields.RERANKER_TRANSFORMER)
        check_order(modules(folder), folder, ("Transformer",))


def max_length(folder: Path, known: fields.FileFields = fields.TRANSFORMER) -> int | None:
    """Tokens of a text, special ones included, as the folder says; None where it does not. Raises
    UserError: no positive whole number."""
    length = transformer(folder, known).get("max_seq_length")
    if length is None:
        settings = tokenizer_file.settings(folder)
        length = settings.get("model_max_length", settings.get("max_len"))
        return int(length) if isinstance(length, int | float) else None
    if not isinstance(length, int) or length < 1:
        raise UserError(f"{folder}: max_seq_length is {length!r:.80}; a positive whole number is wanted")
    return length


def model(folder: Path) -> dict[str, Any]:
    """The fields of `config_sentence_transformers.json`."""
    return fields.read(folder / MODEL, fields.MODEL)


def prompt(folder: Path, role: Role) -> str:
    """What is put before every text of a role, "" where the folder names nothing.

    A query gets the prompt `query`, a document the first of `document`, `passage` and `corpus` with a text.
    A role without a prompt of these names gets that of `default_prompt_name`. Raises UserError: prompts
    that are no texts, or a default that is none of them.
    """
    content, file = model(folder), folder / MODEL
    prompts, default = content.get("prompts") or {}, content.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(text, str | None) for text in prompts.values()):
        raise UserError(f"{file}: prompts are {prompts!r:.80}; an object of texts is wanted")
    if default is not None and default not in list(prompts):
        raise UserError(
            f"{file}: default_prompt_name is {default!r:.80}; want one of {', '.join(prompts)!r:.80}"
        )
    own = [prompts[name] or "" for name in _PROMPTS[role] if name in prompts]
    if own or default is None:
        return next(filter(None, own), "")
    return prompts[default] or ""


def check_order(modules: Sequence[Module], folder: Path, *orders: tuple[str, ...]) -> None:
    """UserError unless the modules are none or come in one of these orders."""
    kinds = tuple(module.kind for module in modules)
    if not kinds or kinds in orders:
        return
    file, known = folder / "modules.json", dict.fromkeys(kind for order in orders for kind in order)
    foreign = next((kind for kind in kinds if kind not in known), None)
    problem = f"module {foreign} is" if foreign else f"modules {', '.join(kinds)} in this order are"
    raise UserError(f"{file}: {problem} not supported; want {' or '.join(map(', '.join, orders))}")


# -- one vector a token --------------------------------------------------------------------------------

_ORDERS = (
    ("Transformer", "Dense"),
    ("Transformer", "Dense", "MultiVectorMask", "Normalize"),
    ("Transformer", "Dense", "Normalize", "MultiVectorMask"),
)
_STATED: dict[str, tuple[str, type]] = {  # fields of all files -> those of `ColbertConfig`
    "query_length": ("query_length", int),
    "document_length": ("document_length", int),
    "query_maxlen": ("query_length", int),
    "doc_maxlen": ("document_length", int),
    "attend_to_mask_tokens": ("attend_to_mask_tokens", bool),
    "attend_to_expansion_tokens": ("attend_to_mask_tokens", bool),
    "do_query_expansion": ("expand_queries", bool),
    "query_token_id": ("query_token", str),
    "doc_token_id": ("document_token", str),
    "query_prefix": ("query_token", str),
    "document_prefix": ("document_token", str),
    "skiplist_words": ("skiplist", list),
}
_EXPANSION: dict[str, tuple[str, type]] = {
    "length": ("query_length", int),
    "attend": ("attend_to_mask_tokens", bool),
    "token": ("expansion_token", str),
}


def projection(folder: Path) -> Path | None:
    """Where the projection's weights are, where not beside the body's. Raises UserError: the projection is
    more than a matrix."""
    steps = modules(folder)
    folders = [step.folder for step in steps if step.kind == "Dense"]
    if not steps and (folder / "1_Dense").is_dir():
        folders = [folder / "1_Dense"]
    if len(folders) != 1 or any(step.kind == "Pooling" for step in steps):
        return None
    fields.read(folders[0] / "config.json", fields.PROJECTION)
    return folders[0]


def colbert_settings(folder: Path) -> dict[str, Any]:
    """The fields of a `ColbertConfig` that the folder's files state. Raises UserError: a file is malformed,
    or has a field that is not followed."""
    steps = modules(folder)
    check_order(steps, folder, *_ORDERS)
    file = folder / "artifact.metadata"
    artifact = fields.read(file, fields.ARTIFACT)
    stated = _stated(artifact, file)
    if artifact.get("mask_punctuation") is False:
        stated["skiplist"] = ()
    native = any(step.kind == "MultiVectorMask" for step in steps)
    return stated | (_sentence_transformers(folder, steps) if native else _pylate(folder))


def _pylate(folder: Path) -> dict[str, Any]:
    """PyLate inserts a marker behind [CLS], and puts a prompt, where there is one, before the text."""
    file, content = folder / MODEL, model(folder)
    stated = _stated(content, file)
    stated |= _expansion(content, file) if "query_expansion" in content else {}
    for role in get_args(Role):
        marker = stated.get(f"{role}_token") or ""
        if text := prompt(folder, role).removeprefix(marker):
            stated[f"{role}_prompt"] = text
    return stated


def _sentence_transformers(folder: Path, steps: Sequence[Module]) -> dict[str, Any]:
    """sentence-transformers writes markers as prompts: texts whose tokenizer has a token for them."""
    file, body = _transformer_file(folder), transformer(folder, fields.TOKENS_TRANSFORMER)
    stated: dict[str, Any] = dict(query_length=None, document_length=None, skiplist=())
    stated |= _stated(body, file) | _expansion(body, file)
    for step in steps:
        own = step.folder / "config.json"
        if step.kind == "MultiVectorMask":
            stated |= _stated(fields.read(own, fields.MASK), own)
        elif step.kind == "Normalize":
            fields.read(own, fields.NORMALIZE_TOKENS)
    for role in get_args(Role):
        stated |= {f"{role}_token": None, f"{role}_prompt": prompt(folder, role)}
    return stated


def _expansion(content: dict[str, Any], file: Path) -> dict[str, Any]:
    stated = content.get("query_expansion")
    if not stated:
        return {"expand_queries": False}
    names = {"strategy", *_EXPANSION}
    if not isinstance(stated, dict) or stated.get("strategy") != "fixed" or set(stated) - names:
        raise UserError(
            f"{file}: found query_expansion {stated!r:.120}; want null, or an object with strategy 'fixed' "
            f"and {', '.join(_EXPANSION)}"
        )
    return _stated(stated, file, _EXPANSION)


def _stated(
    content: dict[str, Any], file: Path, names: dict[str, tuple[str, type]] = _STATED
) -> dict[str, Any]:
    values = {}
    for theirs, (ours, kind) in names.items():
        value = content.get(theirs)
        if value is None:
            continue
        if type(value) is not kind or (kind is list and not all(isinstance(word, str) for word in value)):
            wanted = "a list of texts" if kind is list else kind.__name__
            raise UserError(f"{file}: {theirs} is {value!r:.80}; {wanted} is wanted")
        values[ours] = tuple(value) if kind is list else value
    return values
