"""Config files: found, run, checked, overridden by dotted names, and written as plain values.

The configs that come with the package are known by their names: `dense`, `ablations/cfrag_modules`."""

import contextlib
import dataclasses
import difflib
import hashlib
import importlib.util
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, cast

from pbr_jax.base import file_hashes
from pbr_jax.base.files import config_folder, packaged_configs
from pbr_jax.base.types import UserError
from pbr_jax.cache import sources
from pbr_jax.cache.code import code_of
from pbr_jax.config.schema import SLOTS, Config, members, name_of, removed, unknown
from pbr_jax.methods import METHODS
from pbr_jax.methods.retrieve import Fused
from pbr_jax.options import (
    Method,
    Options,
    Retrieve,
    checked,
    hints,
    members_in,
    names_of,
    options_in,
    swapped,
)

_OF_FILES: dict[str, set[str]] = {}
"""The modules that are config files, by name, each with those beside it that it imports, and itself."""


@contextlib.contextmanager
def blamed(path: Path) -> Iterator[None]:
    """Whatever a config file's Python raises as a UserError that says where: it is the user's to mend."""
    try:
        yield
    except Exception as error:
        frames = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
        line = frames[-1] if frames else getattr(error, "lineno", None)
        where = f"{path}, line {line}" if line else str(path)
        what = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        raise UserError(f"{where}: {what}{error}") from error


def execute(path: Path) -> ModuleType:
    """The module of a config file, run anew; its name tells its place, so that classes in it are found."""
    name = _name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None:
        raise UserError(f"{path} is no Python file; a config file ends in .py")
    file_hashes.watch(path)
    module, source = importlib.util.module_from_spec(spec), path.read_bytes()
    _OF_FILES[name] = {name, *_beside(path.resolve(), source)}
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))  # a config may import what lies beside it
    try:
        sources.run(module, source, path)
    finally:
        sys.path.pop(0)
    return module


def executed(path: Path) -> ModuleType | None:
    """The module of a config file, if this process has executed what the file holds now."""
    module, source = sys.modules.get(_name(path)), path.read_bytes()
    if module is None or sources.executed(vars(module)) != source:
        return None
    file_hashes.watch(path)
    _beside(path.resolve(), source)
    return module


def _name(path: Path) -> str:
    return f"pbr_jax_config_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]}"


def is_of_file(module: str) -> bool:
    """Whether a module is a config file, or lies beside one that imports it."""
    return any(module in of_file for of_file in _OF_FILES.values())


def _beside(path: Path, source: bytes) -> set[str]:
    """The modules beside a config that it imports, which are watched, without packages.

    Raises UserError where this process has another module of such a name: it would be run instead.
    """
    waiting, seen = [source], set()
    while waiting:
        for name in sources.imports(waiting.pop()) - seen:
            places = (path.parent / name / "__init__.py", path.parent / f"{name}.py")
            file = next((place for place in places if place.is_file()), None)
            if file is None:
                continue
            seen.add(name)
            where = Path(getattr(sys.modules.get(name), "__file__", None) or file).resolve()
            if where != file:
                raise UserError(
                    f"{path} imports {name} from beside it, and this process has another module {name} "
                    f"({where}); give it another name, or start another process"
                )
            file_hashes.watch(file)
            waiting.append(file.read_bytes())
    return {name for name in seen if (path.parent / f"{name}.py").is_file()}


def own_classes(slot: type[Method], name: Any, file: Path | None = None) -> set[type[Method]]:
    """A slot's classes of this name that a config file defines or imports; None: any file of this process."""
    files = _OF_FILES.values() if file is None else [_OF_FILES.get(_name(file), set())]
    modules = [sys.modules[one] for of_file in files for one in of_file if one in sys.modules]
    values = [value for module in modules for value in vars(module).values()]
    classes = [value for value in values if isinstance(value, type) and issubclass(value, slot)]
    return {cls for cls in classes if getattr(cls, "method", None) == name}


Overrides = Mapping[str, Any]
"""Dotted field names and their values, such as `{"retrieve.k": 4}`."""

_PACKAGE = __name__.partition(".")[0]


class ConfigFile(NamedTuple):
    """What a config file defines; `sweep` is None where it defines none.

    `sweep` may take an argument that has a default: the config that its overrides will change, with what the
    command line says.
    """

    path: Path
    config: Config
    sweep: Callable[..., Iterable[Overrides]] | None


# -- files -----------------------------------------------------------------------------------------


def found(name: str) -> Path:
    """The file of a config: a path that is there, or the name of a packaged one."""
    path = Path(name)
    if path.is_file() or name.endswith(".py"):
        packaged = config_folder().parent / path  # `configs/dense.py` where no such file is
        return (
            path if path.is_file() or not (name.startswith("configs/") and packaged.is_file()) else packaged
        )
    inside = config_folder() / f"{name}.py"
    if inside.is_file() and config_folder() in inside.resolve().parents:
        return inside
    near = difflib.get_close_matches(name, packaged_configs(), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "pbr-jax configs lists what there is"
    raise UserError(f"there is no config {name!r}, neither a file nor one of the package's; {hint}")


def load(path: Path) -> ConfigFile:
    """Runs a config file and checks what it defines."""
    if not path.is_file():
        raise UserError(
            f"config file not found: {path}; want a Python file, or a name that pbr-jax configs lists"
        )
    with blamed(path):
        module = execute(path)
        get, sweep = getattr(module, "get_config", None), getattr(module, "sweep", None)
        config = get() if get is not None else None
        if not any((sweep is None, callable(sweep))):
            raise UserError(f"sweep is {sweep!r:.60}, want a function that yields overrides")
    if type(config) is not Config:
        raise UserError(f"{path} must define get_config() that returns pbr_jax.config.Config")
    return ConfigFile(path, config, sweep)


# -- values ----------------------------------------------------------------------------------------


def override(config: Config, overrides: Overrides, file: Path | None = None) -> Config:
    """The config with dotted fields replaced; methods first, then their options. All is checked.

    Another method is told by `system`, the name in tables, unless that is overridden too. `file`: the config
    file whose classes methods may name; None: any that this process has loaded, if one alone has the name.
    """
    before = config
    methods = {name: value for name, value in overrides.items() if name in CHOSEN}
    config = choose(config, methods, file, overrides)
    tree: dict[str, Any] = {}
    for name, value in overrides.items():
        if name in CHOSEN:
            continue
        *parents, last = name.split(".")
        place = tree
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise unknown(name, config)
        place[last] = value
    changed = _replaced(config, tree, "", config)
    return changed if "system" in overrides else named(changed, before, overridden(before, changed))


def choose(config: Config, methods: Overrides, file: Path | None = None, given: Iterable[str] = ()) -> Config:
    """The config with other methods in some slots; options that old and new have keep their values, except
    for those that are `given` afterwards, by their dotted names.

    `retrieve.of` and `select.of` are names of methods or methods; those of the names before keep their
    options. `file`: as in `override`.
    """
    for name, value in sorted(methods.items(), key=lambda pair: not pair[0].endswith(".method")):
        slot, _, field = name.partition(".")
        old = getattr(config, slot)
        if field != "method":
            config = dataclasses.replace(config, **{slot: _composed(old, name, value, config, file)})
        elif value != old.method:
            apart = [last for parent, _, last in (one.partition(".") for one in given) if parent == slot]
            new = swapped(old, _class(slot, value, file=file), apart)
            config = dataclasses.replace(config, **{slot: new})
    return config


CHOSEN = (*(f"{slot}.method" for slot in SLOTS), "retrieve.of", "select.of")
"""The fields that take methods; all others are options of theirs or of the run."""


def _composed(old: Method, name: str, value: Any, config: Config, file: Path | None) -> Method:
    """A method made of others: of those that are named, or given."""
    slot, _, field = name.partition(".")
    hint = hints(type(old)).get(field)
    if members_in(hint) is None:
        raise unknown(name, config)
    there, seen, made = members(getattr(old, field)), Counter[str](), []
    for one in value if isinstance(value, list | tuple) else [value]:
        if isinstance(one, str):
            seen[one] += 1
            label = one if seen[one] == 1 else f"{one}_{seen[one]}"
            one = there.get(label) or cast(Any, _class(slot, one, name, file))()
        made.append(one)
    return dataclasses.replace(old, **{field: checked(name, made, hint)})


def _class(slot: str, name: Any, field: str = "", file: Path | None = None) -> type[Method]:
    """The method of a name: the package's, or one of the file's."""
    for cls in METHODS[slot]:
        if name_of(cls) == name:
            return cls
    own = own_classes(SLOTS[slot], name, file)
    if len(own) > 1:
        places = ", ".join(sorted(f"{cls.__name__} of {sys.modules[cls.__module__].__file__}" for cls in own))
        raise UserError(
            f"{field or f'{slot}.method'} is {name!r}, which several classes are called: {places}; give them "
            f"different names, or put the class itself into the config ({slot}=...)"
        )
    if own:
        return own.pop()
    known = [name_of(cls) for cls in METHODS[slot]]
    near = difflib.get_close_matches(str(name), known, n=1)
    raise UserError(
        f"{field or f'{slot}.method'} is {name!r}, want one of {', '.join(known)}, or a class of your own "
        f"that this config file defines or imports{f'; did you mean {near[0]}?' if near else ''}"
    )


def _replaced(options: Any, tree: Mapping[str, Any], prefix: str, config: Config) -> Any:
    """The options with the values of a nested table, all of which are checked. `config`: of the names that
    errors suggest."""
    types, changes = hints(type(options)), {}
    for name, value in tree.items():
        if name not in types:
            if (gone := removed(prefix + name)) and value == gone[0]:
                continue  # as runs of older versions say it
            raise unknown(prefix + name, config)
        old, hint, inner = getattr(options, name), types[name], f"{prefix}{name}."
        optional = value is None and not isinstance(hint, type)
        if isinstance(old, Options) and not isinstance(value, Mapping | Options) and not optional:
            raise unknown(prefix + name, config)
        there = members(old)
        if members_in(hint) and isinstance(value, list | tuple):
            value = tuple(_member(one, inner, config) for one in value)
        elif there and isinstance(value, Mapping):
            value = _members(there, value, inner, config)
        elif isinstance(value, Mapping):
            old = old if isinstance(old, Options) else (options_in(hint) or dict)()
            if isinstance(old, Options):
                value = _replaced(old, value, inner, config)
            elif value:
                raise unknown(f"{inner}{next(iter(value))}", config)
        changes[name] = checked(prefix + name, value, hint)
    return dataclasses.replace(options, **changes) if changes else options


def _members(
    there: Mapping[str, Method], tree: Mapping[str, Any], prefix: str, config: Config
) -> tuple[Method, ...]:
    for name, own in tree.items():
        if name not in there or not isinstance(own, Mapping):
            raise unknown(
                ".".join([prefix + name, *([*own][:1] if isinstance(own, Mapping) else [])]), config
            )
    return tuple(_replaced(one, tree.get(n, {}), f"{prefix}{n}.", config) for n, one in there.items())


def _member(value: Any, prefix: str, config: Config) -> Any:
    """A method in a list: itself, or made of its plain values."""
    if isinstance(value, Method):
        return value
    cls, tree = _read(prefix.partition(".")[0], _table(prefix, value))
    return _replaced(cls(), tree, prefix, config)


# -- names in tables ------------------------------------------------------------------------------

_SECTIONS = (*SLOTS, "generator")
_PLAIN = {"auto", "none", "ipa", "label"}
"""Of generate.method: an answer to one prompt, or none. That is how a system is measured, not another one."""


def overridden(before: Config, after: Config) -> dict[str, str]:
    """The methods of the second config that are not the first one's, by their fields."""
    methods = {}
    for section in _SECTIONS:
        old, new = getattr(before, section).method, getattr(after, section).method
        if old != new and not (section == "generate" and {old, new} <= _PLAIN):
            methods[f"{section}.method"] = new
    new = _parts(after.retrieve)
    if new and new != (_parts(before.retrieve) or " ".join(names_of(Fused().of))):
        methods["retrieve.of"] = new
    return methods


def _parts(retrieve: Retrieve) -> str:
    """The names of the retrievers that one is made of; "": it is made of none."""
    return " ".join(names_of(getattr(retrieve, "of", ())))


def named(config: Config, before: Config, methods: Mapping[str, str]) -> Config:
    """The config, called after these methods too: "dense, retrieve.method bm25".

    What the name says of methods that `before` had in their places is left out.
    """
    if not methods:
        return config
    system = config.system
    for field in methods:
        method = getattr(before, field.partition(".")[0])
        told = _parts(method) if field == "retrieve.of" else method.method
        system = system.replace(f", {field} {told}", "")
    settings = [f"{field} {method}" for field, method in methods.items()]
    return dataclasses.replace(config, system=", ".join([system, *settings]))


# -- as plain values -------------------------------------------------------------------------------


def to_dict(config: Config) -> dict[str, Any]:
    """Nested plain dicts, as saved in a run's config.json; a class of one's own with where it is found."""
    return _plain(config)


def _plain(value: Any) -> Any:
    """As JSON gives it back, which knows lists alone."""
    if not isinstance(value, Options):
        return [_plain(inner) for inner in value] if isinstance(value, tuple | list) else value
    values = {item.name: _plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Method) and type(value).__module__.partition(".")[0] != _PACKAGE:
        values["from"] = _place(type(value))
    return values


def _place(cls: type) -> dict[str, str]:
    """Where a class is found, `module:Class` or a file and its class, and the hash of its code."""
    module, code = sys.modules[cls.__module__], code_of(cls)
    if is_of_file(cls.__module__):
        file = str(Path(str(module.__file__)).resolve())
        return {"file": file, "class": cls.__qualname__, "code": code}
    return {"class": f"{cls.__module__}:{cls.__qualname__}", "code": code}


def from_dict(values: Mapping[str, Any]) -> Config:
    """The inverse of `to_dict`; every name and type is checked."""
    tree = dict(_table("", values))
    methods = {}
    for slot in SLOTS:
        if isinstance(tree.get(slot), Mapping):
            cls, tree[slot] = _read(slot, tree[slot])
            methods[slot] = cls()
    config = Config(**methods)
    return _replaced(config, tree, "", config)


def _read(slot: str, values: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The class of a method in plain values, and its options there."""
    options = dict(values)
    place, name = options.pop("from", None), options.pop("method", None)
    default = name_of(type(getattr(Config(), slot)))
    return _class(slot, name or default) if place is None else _found(slot, place), options


def _table(prefix: str, values: Any) -> Mapping[str, Any]:
    if not isinstance(values, Mapping):
        where = f"config field {prefix.rstrip('.')!r}" if prefix else "a config"
        raise UserError(f"{where} is {values!r:.60}, want a table of fields")
    return values


def _found(slot: str, place: Any) -> type[Method]:
    """A class of one's own, where `to_dict` said that it is."""
    texts = isinstance(place, Mapping) and all(isinstance(value, str) for value in place.values())
    if not texts or not {"class", "code"} <= place.keys():
        raise UserError(
            f"{slot}.from is {place!r:.80}, want the place of a class as a run writes it; run it anew"
        )
    if "file" in place:
        file = Path(place["file"])
        if not file.is_file():
            raise UserError(f"{slot}.method is a class in {file}, which is not there any more; bring it back")
        with blamed(file):
            module = executed(file) or execute(file)
        name = place["class"]
    else:
        where, _, name = place["class"].partition(":")
        try:
            module = import_module(where)
        except Exception as error:  # as in `blamed`
            raise UserError(
                f"{slot}.method is {place['class']}, which cannot be imported: {error}"
            ) from error
    cls = getattr(module, name, None)
    if not (isinstance(cls, type) and issubclass(cls, SLOTS[slot])):
        raise UserError(f"{slot}.method is {name} of {module.__name__}, which is no {SLOTS[slot].__name__}")
    if code_of(cls) != place.get("code"):
        where = place.get("file", module.__name__)
        raise UserError(
            f"{slot}.method is {name} in {where}, whose code has changed since, or that of a "
            "module it imports (of pbr_jax too); run it anew, into another folder or with --overwrite"
        )
    return cls
