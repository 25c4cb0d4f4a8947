"""Pages of the reference, written from the code at each build: API, options, command line, configs."""

import argparse
import ast
import contextlib
import dataclasses
import inspect
import io
import itertools
import os
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pbr_jax import config, options
from pbr_jax.base.files import packaged_configs
from pbr_jax.cli import main as cli
from pbr_jax.methods import METHODS

OUT = Path(__file__).parents[1] / "reference" / "generated"
PAGE = r"\bdocs/([\w/]+)\.md\b"  # a page of the site, as code and configs name it
TITLE = "<!-- written by docs/_ext/reference_pages.py when the site is built -->\n\n"

FROM_PAPERS = {
    "pbr_jax.data.views": "view",
    "pbr_jax.train.user_encoder": "train",
    "pbr_jax.index.density": "hdbscan, silhouette",
    "pbr_jax.text.prompts": "write",
    "pbr_jax.text.token_encoder": "max_sims",
    "pbr_jax.train.generator": "train",
    "pbr_jax.methods.expand.llm_expand.History": "look",
    "pbr_jax.methods.expand.pbr": "UTTERANCES, REASONING, fuse",
    "pbr_jax.index.page_rank": "neighbour_graph, page_rank, anchor",
    "pbr_jax.train.luf": "losses, overlap_batches",
    "pbr_jax.stages.simulated": "remarks",
    "pbr_jax.remarks.judge.Agent": "summarise, judge",
}
"""Modules and classes that the pages of papers name, and no other page of the reference: these members."""

USED = {
    "pbr_jax.methods.retrieve.scored": "scored, scored_together",
    "pbr_jax.stages.search": "search, candidates",
    "pbr_jax.stages.vectors": "encoder, documents, searched, shared",
    "pbr_jax.corpus.store.Store": "visible, documents, history, texts, examples, users, rows, times, owners, "
    "has_shared, copy_to, append",
    "pbr_jax.graph": "constant, Value, Stage, Slot",
    "pbr_jax.methods.select.by_score": "ByScore, Batch, by_score",
    "pbr_jax.methods.select.behind": "Behind, ages",
    "pbr_jax.stages.scores": "standardised",
    "pbr_jax.stages.users": "users, mean",
    "pbr_jax.stages.language_model": "frozen",
    "pbr_jax.stages.rankings": "rankings, Questions, Rankings",
    "pbr_jax.stages.feedback": "feedback, Feedbacks, by_answers, by_likelihood, questions, least_range",
    "pbr_jax.stages.trained": "check_training, save_fitted, load_saved",
    "pbr_jax.train.distillation": "Scorer, distill, teacher_logits",
    "pbr_jax.sweeps.sweep": "grid, zipped, product, seeds",
}
"""Modules and a class that a method of one's own computes with: these members alone."""

CHOSEN = USED | FROM_PAPERS

API = {
    "python": (
        "Python",
        "What `import pbr_jax` offers. Names are imported when they are first used.",
        ["pbr_jax"],
    ),
    "protocols": (
        "Methods and data of your own",
        "A method is a class of one of the slots' bases: [how to write one](../../tutorials/new_method.md).",
        [
            "pbr_jax.options.base",
            "pbr_jax.pipeline",
            "pbr_jax.base.types",
            "pbr_jax.stages.run",
            "pbr_jax.stream.stage",
        ],
    ),
    "parts": (
        "What a method uses",
        "The functions and classes that [a method of your own](../../tutorials/new_method.md) computes with.",
        [name for name in USED if name != "pbr_jax.sweeps.sweep"],
    ),
    "sweeps": (
        "Sweeps",
        "Functions that build the dicts of a config file's `sweep()` "
        "([how to run one](../../howto/sweeps.md)).",
        ["pbr_jax.sweeps.sweep"],
    ),
    "methods": (
        "Methods",
        "The classes that fill the slots. Their fields are in [Options](options.md).",
        [f"pbr_jax.methods.{slot}" for slot in METHODS],
    ),
    "models": (
        "Models",
        "A model is a pair of pure functions, `init` and `apply`, over nested dicts of arrays.",
        [
            f"pbr_jax.models.{name}"
            for name in (
                "bert",
                "causal_lm",
                "t5",
                "colbert",
                "cross_encoder",
                "dual_encoder",
                "user_transformer",
                "set_policy",
                "lora",
                "adapter_file",
                "params_file",
                "sharding",
                "pretrained",
            )
        ],
    ),
    "losses": ("Losses", "", ["pbr_jax.losses"]),
    "training": (
        "Training",
        "The loop that trains every part, and what it is made of ([an example]"
        "(../../howto/training.md#a-training-of-your-own)).",
        ["pbr_jax.train"],
    ),
    "index": ("Indices", "Search among vectors.", ["pbr_jax.index"]),
    "papers": (
        "From the papers",
        "What the pages under Papers name beside [models](models.md), [losses](losses.md) and "
        "[methods](methods.md).",
        [*FROM_PAPERS],
    ),
    "eval": (
        "Metrics",
        "Metrics of rankings and answers, and what their differences are worth.",
        ["pbr_jax.eval.ranking", "pbr_jax.eval.metrics", "pbr_jax.eval.significance"],
    ),
}


def setup(app: Any) -> dict[str, Any]:
    app.connect("builder-inited", lambda _: write())
    app.connect("autodoc-process-signature", _signature)
    app.connect("autodoc-process-bases", _bases)
    app.connect("autodoc-skip-member", _skipped)
    app.connect("autodoc-process-docstring", _attribute, priority=400)  # before napoleon reads it
    return {"parallel_read_safe": True}


def write(out: Path = OUT) -> None:
    """Writes all pages; a page that has not changed is left as it is, so that Sphinx reads it once."""
    out.mkdir(parents=True, exist_ok=True)
    pages = {name: _api(*parts) for name, parts in API.items()}
    pages |= {"options": _options(), "command_line": _command_line(), "configs": _configs()}
    for name, text in pages.items():
        path, text = out / f"{name}.md", TITLE + text
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def _api(title: str, lead: str, modules: list[str]) -> str:
    several = len(modules) > 1
    parts = [(f"## {module}\n\n" if several else "") + _module(module) for module in modules]
    return f"# {title}\n\n" + (f"{lead}\n\n" if lead else "") + "\n".join(parts)


def _module(name: str) -> str:
    """A module with its members, or those of `CHOSEN`; of methods the classes, with links to options."""
    if name in CHOSEN:
        return _rst(f".. {_directive(name)}:: {name}\n   :members: {CHOSEN[name]}")
    slot = name.removeprefix("pbr_jax.methods.")
    if slot not in METHODS:
        return _rst(f".. automodule:: {name}\n   :members:\n   :show-inheritance:")
    text = _rst(f".. automodule:: {name}\n   :no-members:")
    for kind in METHODS[slot]:
        link = f"{slot}.method {config.name_of(kind)}"
        text += (
            "\n" + _rst(f".. autoclass:: {name}.{kind.__name__}") + f"\nOptions: [{link}](#{_label(link)})\n"
        )
    return text


def _directive(name: str) -> str:
    return "autoclass" if name.rpartition(".")[2][0].isupper() else "automodule"


def _rst(text: str) -> str:
    return f"```{{eval-rst}}\n{text}\n```\n"


def _label(title: str) -> str:
    return "options-" + re.sub(r"\W+", "-", title)


def _signature(
    app: Any, what: str, name: str, found: Any, flags: Any, signature: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Arrays by their short name; a class of options has its fields in the page of options instead."""
    if what == "class" and issubclass(found, options.Options):
        return "", None
    short = [text and re.sub(r"jaxlib\._?jax\.Array", "Array", text) for text in (signature, returned)]
    return short[0], short[1]


def _attribute(app: Any, what: str, name: str, found: Any, flags: Any, lines: list[str]) -> None:
    """Ends the line at its first colon, since napoleon takes what stands before one for a type."""
    if what in ("attribute", "property", "data") and lines and ": " in lines[0]:
        first, _, rest = lines[0].partition(": ")
        lines[:1] = [f"{first}:", rest]


def _skipped(app: Any, what: str, name: str, found: Any, skip: bool, flags: Any) -> bool | None:
    """Fields of a named tuple are left out: the signature has them, and their text says a number alone."""
    return True if (getattr(found, "__doc__", "") or "").startswith("Alias for field number") else None


def _bases(app: Any, name: str, found: Any, flags: Any, bases: list[type]) -> None:
    """Only bases that a reader can look up are named."""
    known = [base for base in bases if base is not object and not base.__name__.startswith("_")]
    bases[:] = known or [object]


# -- options -----------------------------------------------------------------------------------------------


def _options() -> str:
    """Sections of the config, then methods slot by slot, then the options that several have in common."""
    shared: dict[type[options.Options], None] = {}
    sections: list[type[options.Options]] = [config.Config]
    for name, hint in options.hints(config.Config).items():
        kind = options.options_in(hint)
        if kind and name not in METHODS:
            sections.append(kind)
    text = (
        "# Options\n\nEvery field of a config. On the command line `--retrieve.k 8` sets one; in Python "
        "`Dense(k=8)` does. `pbr-jax run CONFIG --help-all` shows the same for one config, with its values. "
        "A field with † is in no key: it never changes a result.\n"
    )
    for kind in sections:
        text += f"\n## {kind.section or 'config'}\n\n{_table(kind, shared)}"
    for slot, classes in METHODS.items():
        text += f"\n## {slot}\n"
        for kind in classes:
            title = f"{slot}.method {config.name_of(kind)}"
            text += f"\n({_label(title)})=\n### {title}\n\n{_table(kind, shared)}"
    text += "\n## Shared by several\n"
    done: set[type[options.Options]] = set()
    while left := [kind for kind in shared if kind not in done]:
        text += f"\n### {left[0].__name__}\n\n{_table(left[0], shared)}"
        done.add(left[0])
    return text


def _table(kind: type[options.Options], shared: dict[type[options.Options], None]) -> str:
    section = f"{kind.section}." if kind.section else ""
    rows = "".join(
        f"| `{section}{item.name}`{'†' * ('idle' in item.metadata)} | {_type(hint, shared)} | "
        f"{_default(item)} | {_cell(_comment(kind, item.name))} |\n"
        for item, hint in _fields(kind)
    )
    head = "| option | values | default | meaning |\n|---|---|---|---|\n"
    return f"{_summary(kind)}\n\n" + (head + rows if rows else "It has no options.\n")


def _comment(kind: type, name: str) -> str:
    """The comment of a field, which `--help-all` prints: behind it, or in the lines before it."""
    for owner in kind.__mro__[:-1]:
        lines = inspect.getsource(owner).splitlines()
        place = next((i for i, line in enumerate(lines) if re.match(rf"    {name}: ", line)), None)
        if place is None:
            continue
        behind = lines[place].partition("  # ")[2]
        if behind:
            return behind
        before = itertools.takewhile(lambda line: line.startswith("    # "), reversed(lines[:place]))
        return " ".join(line.strip("# ") for line in reversed([*before]))
    return ""


def _fields(kind: type[options.Options]) -> Iterator[tuple[dataclasses.Field[Any], Any]]:
    hints = options.hints(kind)
    for item in dataclasses.fields(kind):
        nested = options.options_in(hints[item.name])
        if item.name != "method" and not (kind is config.Config and nested):
            yield item, hints[item.name]


def _summary(kind: type) -> str:
    return _prose((kind.__doc__ or "").partition("\n\n")[0])


def _type(hint: Any, shared: dict[type[options.Options], None]) -> str:
    if nested := options.options_in(hint) or options.members_in(hint):
        if issubclass(nested, options.Method):
            return f"methods of {nested.section}"
        shared.setdefault(nested)
        return f"[{nested.__name__}](#{nested.__name__.lower()})"
    if typing.get_origin(hint) is Literal:
        return ", ".join(f"`{value}`" for value in typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        return "list of " + _type(typing.get_args(hint)[0], shared)
    parts = typing.get_args(hint) or (hint,)
    words = {bool: "on, off", int: "integer", float: "number", str: "text", type(None): "none"}
    return " or ".join(words[part] if part in words else _type(part, shared) for part in parts)


def _default(item: dataclasses.Field[Any]) -> str:
    value = options.default_of(item)
    if value is dataclasses.MISSING:
        return "needed"
    if isinstance(value, options.Options):
        fields = ((f, getattr(value, f.name)) for f in dataclasses.fields(value))
        return ", ".join(f"`{f.name}={now!r}`" for f, now in fields if now != options.default_of(f))
    if isinstance(value, tuple):
        words = options.names_of(value) if value and isinstance(value[0], options.Method) else value
        return " ".join(f"`{word}`" for word in words)
    shown = {"None": "none", "True": "on", "False": "off"}.get(str(value), str(value))
    return f"`{shown}`" if shown else ""


def _cell(text: str) -> str:
    return _prose(text).replace("|", "\\|")


def _prose(text: str) -> str:
    """Comments as Markdown: one line, nothing in it taken for markup, and links to the pages it names."""
    escaped = " ".join(text.split()).replace("*", "\\*").replace("<", "&lt;").replace("[", "\\[")
    return re.sub(PAGE, r"[](../../\1.md)", escaped.replace("$", "\\$"))


# -- the command line --------------------------------------------------------------------------------------


def _command_line() -> str:
    os.environ["COLUMNS"] = "100"
    text = "# Command line\n\nWhat `--help` prints. An error is one line on stderr, and the exit code is 2.\n"
    text += f"\n```text\n{cli.parser().format_help()}```\n"
    for name in _actions(cli.parser()):
        text += f"\n## pbr-jax {name}\n\n```text\n{_help(name)}```\n"
    return text


def _actions(parser: argparse.ArgumentParser, before: str = "") -> Iterator[str]:
    """The commands, those with actions of their own by their actions."""
    subs = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for sub in subs:
        for name, inner in sub.choices.items():
            if inner.get_default("function") == "asking.store_removed":  # it only says what replaces it
                continue
            deeper = list(_actions(inner, f"{before}{name} "))
            yield from deeper or [before + name]


def _help(command: str) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        cli.main([*command.split(), "--help"])
    return "\n".join(line.rstrip() for line in printed.getvalue().strip().splitlines()) + "\n"


# -- configs -----------------------------------------------------------------------------------------------


def _configs() -> str:
    text = (
        "# Configs\n\n`pbr-jax run NAME` and `pbr-jax sweep NAME` take these names. Listed are the fields "
        "that a config sets, and the runs of a sweep.\n"
    )
    for name in packaged_configs():
        file = config.load(config.found(name))
        source = ast.parse(file.path.read_text(encoding="utf-8"))
        lead, _, rest = (ast.get_docstring(source) or "").partition("\n")
        settings = list(_settings(file.config, config.Config()))
        text += f"\n## {name}\n\n{_prose(lead)}\n"
        text += "".join(f"\n{part}\n" for part in _parts(rest))
        text += "\n" + (", ".join(settings) or "All fields have their defaults.") + "\n"
        if file.sweep is not None:
            text += f"\n{_runs(file)}\n\n:::{{dropdown}} The file\n```python\n{_code(file.path)}```\n:::\n"
    return text


def _parts(docstring: str) -> Iterator[str]:
    """Its paragraphs and items of lists as prose, its commands as code."""
    for part in re.split(r"\n\s*\n|\n(?=- )", docstring.strip()):
        if re.match(r"pbr-jax |python ", part):
            yield f"```text\n{part}\n```"
        elif part:
            yield _prose(part)


def _settings(found: options.Options, base: Any, prefix: str = "") -> Iterator[str]:
    """The fields that differ from a base's; of another class than the base's, from its own defaults."""
    same = type(found) is type(base)
    for item in dataclasses.fields(found):
        now, name = getattr(found, item.name), prefix + item.name
        was = getattr(base, item.name) if same else options.default_of(item)
        if isinstance(now, options.Options):
            yield from _settings(now, was, f"{name}.")
        elif isinstance(now, tuple) and now and isinstance(now[0], options.Method):
            yield f"`{name} {' '.join(options.names_of(now))}`"
        elif now != was or (item.name == "method" and not same):
            yield f"`{name} {'none' if now is None else now}`"


def _code(path: Path) -> str:
    """A config's code, without its docstring."""
    text = path.read_text(encoding="utf-8")
    begin = ast.parse(text).body[0].end_lineno or 0
    return "".join(text.splitlines(keepends=True)[begin:]).lstrip()


def _runs(file: config.ConfigFile) -> str:
    assert file.sweep is not None
    rows = list(file.sweep(file.config) if inspect.signature(file.sweep).parameters else file.sweep())
    changed = list(dict.fromkeys(name for row in rows for name in row))
    return f"A sweep of {len(rows)} runs over " + ", ".join(f"`{name}`" for name in changed) + "."
