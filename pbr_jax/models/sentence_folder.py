"""What sentence-transformers (2 to 6) and PyLate write beside a text encoder's weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pbr_jax.base.types import UserError
from pbr_jax.models import known_fields, tokenizer_file
from pbr_jax.models.pretrained import read_json
from pbr_jax.models.sizes import check_object

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
            known_fields.check(module, known_fields.MODULES, str(file))
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


def transformer(folder: Path) -> dict[str, Any]:
    """The fields of `sentence_bert_config.json` (or `sentence_roberta_config.json`, ...)."""
    return known_fields.read(_transformer_file(folder), known_fields.TRANSFORMER)


def lower_case(folder: Path) -> bool:
    """Whether texts are read in lower case; UserError where that is neither true nor false."""
    file = _transformer_file(folder)
    content = read_json(file) if file.is_file() else {}
    check_object(content, str(file))
    stated = content.get("do_lower_case", False)
    if type(stated) is not bool:
        raise UserError(f"{file}: do_lower_case is {stated!r:.80}; true or false is wanted")
    return stated


def check_reranker(folder: Path) -> None:
    """UserError where a CrossEncoder's folder says what is not followed. Its activation is none of that:
    it changes no order."""
    file = folder / MODEL
    content = read_json(file) if file.is_file() else {}
    check_object(content, str(file))
    if content.get("model_type") == "CrossEncoder":
        known_fields.check(content, known_fields.RERANKER, str(file))
        known_fields.read(_transformer_file(folder), known_fields.RERANKER_TRANSFORMER)
        check_order(modules(folder), folder, ("Transformer",))


def max_length(folder: Path) -> int | None:
    """Tokens of a text, special ones included, as the folder says; None where it does not. Raises
    UserError: no positive whole number."""
    length = transformer(folder).get("max_seq_length")
    if length is None:
        settings = tokenizer_file.settings(folder)
        length = settings.get("model_max_length", settings.get("max_len"))
        return int(length) if isinstance(length, int | float) else None
    if not isinstance(length, int) or length < 1:
        raise UserError(f"{folder}: max_seq_length is {length!r:.80}; a positive whole number is wanted")
    return length


def model(folder: Path) -> dict[str, Any]:
    """The fields of `config_sentence_transformers.json`."""
    return known_fields.read(folder / MODEL, known_fields.MODEL)


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
    if default is not None and default not in prompts:
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
