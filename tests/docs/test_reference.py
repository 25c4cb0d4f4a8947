"""The reference is written from the code: each option, command and config stands in it."""

import inspect
import pydoc
import re
import sys
from pathlib import Path

import pytest

import pbr_jax
from pbr_jax import config, options
from pbr_jax.base.files import packaged_configs
from pbr_jax.methods import METHODS

DOCS = Path(__file__).parents[2] / "docs"
PAPERS = ("cfrag", "clusterrag", "luf", "pbr", "purple")
ROLES = {"func": callable, "class": inspect.isclass, "data": lambda found: isinstance(found, str)}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    sys.path.insert(0, str(DOCS / "_ext"))
    try:
        from reference_pages import write  # pyright: ignore[reportMissingImports]
    finally:
        sys.path.pop(0)
    folder = tmp_path_factory.mktemp("generated")
    write(folder)
    return {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.md")}


def rows(text: str) -> dict[str, list[str]]:
    """The cells of the tables' rows, by the first one."""
    lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("| `")]
    return {cells[0].strip("† ").strip("`"): [cell.strip() for cell in cells[1:]] for cells in lines}


@pytest.mark.long
def test_every_field_of_a_config_has_a_row(pages: dict[str, str]) -> None:
    known = rows(pages["options"])
    fields = {name for name in config.values(config.Config()) if not name.endswith("method")}
    nested = {name for name in fields if name.count(".") > 1}  # of classes that several have in common
    assert fields - nested <= set(known)
    assert {name.rpartition(".")[2] for name in nested} <= set(known)
    assert known["retrieve.k"] == ["integer", "`4`", "number of documents retrieved from each user"]
    assert known["keep_texts"][:2] == ["on, off", "`on`"]
    assert {len(cells) for cells in known.values()} == {3}


def test_every_method_has_a_section_with_its_own_fields(pages: dict[str, str]) -> None:
    for slot, classes in METHODS.items():
        for cls in classes:
            title = f"### {slot}.method {config.name_of(cls)}\n"
            assert pages["options"].count(title) == 1, title
            section = pages["options"].partition(title)[2].partition("\n### ")[0]
            assert {f"{slot}.{name}" for name in options.hints(cls)} - {f"{slot}.method"} == set(
                rows(section)
            )


def test_classes_that_rows_link_to_have_a_section(pages: dict[str, str]) -> None:
    links = set(re.findall(r"\]\(#(\w+)\)", pages["options"]))
    assert links == {title.lower() for title in re.findall(r"^### (\w+)$", pages["options"], re.M)} != set()


def test_methods_link_to_their_options(pages: dict[str, str]) -> None:
    links = re.findall(r"^Options: \[(\S+ \S+|\S+ \S+ \S+)\]\(#(\S+)\)$", pages["methods"], re.M)
    wanted = [f"{slot}.method {config.name_of(cls)}" for slot, classes in METHODS.items() for cls in classes]
    assert [title for title, _ in links] == wanted
    for title, label in links:
        assert f"\n({label})=\n### {title}\n" in pages["options"]


def test_every_command_shows_its_help(pages: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    from pbr_jax.cli.main import main

    with pytest.raises(SystemExit):
        main(["--help"])
    commands = re.findall(r"^    (\w+)(?:  |$)", capsys.readouterr().out, re.M)
    titles = re.findall(r"^## pbr-jax (.*)", pages["command_line"], re.M)
    assert {title.split()[0] for title in titles} == set(commands) >= {"run", "sweep", "data", "store"}
    assert "data import" in titles
    assert "--overwrite" in pages["command_line"].partition("## pbr-jax run\n")[2].partition("\n## ")[0]
    helps = re.findall(r"^## pbr-jax ([^\n]*)\n\n```text\n(.*?)```", pages["command_line"], re.M | re.S)
    assert [title for title, _ in helps] == titles
    for title, text in helps:
        assert text.startswith("usage: pbr-jax"), title


def test_every_config_has_a_section_with_what_it_sets(pages: dict[str, str]) -> None:
    assert re.findall(r"^## (.*)", pages["configs"], re.M) == list(packaged_configs())
    small = pages["configs"].partition("## purple_small\n")[2].partition("\n## ")[0]
    assert "`select.method purple`" in small
    assert "`select.num_layers 2`" in small
    assert "`select.training.epochs 2`" in small
    assert "`limit_training 240`" in small
    assert "seed" not in small


def test_the_names_that_a_page_chooses_are_there_and_documented(pages: dict[str, str]) -> None:
    chosen = re.findall(r"auto(?:module|class):: (\S+)\n   :members: (.+)", "".join(pages.values()))
    assert len(chosen) > 9
    for place, names in chosen:
        for name in names.split(", "):
            assert (pydoc.locate(f"{place}.{name}").__doc__ or "").strip(), f"{place}.{name}"


def test_the_modules_of_the_api_are_there(pages: dict[str, str]) -> None:
    modules = re.findall(r"automodule:: (\S+)", "".join(pages.values()))
    assert len(modules) == len(set(modules)) > 20
    for module in modules:
        assert __import__(module, fromlist=["x"]).__doc__, module
    assert {*vars(pbr_jax)["__all__"]} <= {*dir(pbr_jax)}


def documented(pages: dict[str, str]) -> set[str]:
    """The names that have a place in the reference, by what its pages tell Sphinx to write."""
    text = "".join(pages.values())
    found = set(re.findall(r"autoclass:: (\S+)", text))
    for place, chosen in re.findall(r"auto(?:module|class):: (\S+)\n   :members:(.*)", text):
        owner = pydoc.locate(place)
        own = [name for name, one in vars(owner).items() if getattr(one, "__module__", "") == place]
        names = chosen.split(", ") if chosen.strip() else getattr(owner, "__all__", own)
        found |= {f"{place}.{name.strip()}" for name in names}
    return found


@pytest.mark.parametrize("paper", PAPERS)
def test_the_functions_that_a_paper_becomes_are_links(pages: dict[str, str], paper: str) -> None:
    text = (DOCS / "papers" / f"{paper}.md").read_text(encoding="utf-8")
    table = text.partition("## From equation to function\n")[2].partition("\n## ")[0]
    linked = re.findall(r"\{py:(\w+)\}`(?:~|[^`<]*<)(pbr_jax\.[\w.]+)>?`", table)
    assert len(linked) == table.count("pbr_jax.") >= 8  # no bare name
    assert {name for _, name in linked} <= documented(pages)
    for role, name in linked:
        assert ROLES[role](pydoc.locate(name)), name


def test_configs_are_prose_with_links_and_sweeps_show_their_code(pages: dict[str, str]) -> None:
    section = pages["configs"].partition("\n## cfrag_small\n")[2].partition("\n## ")[0]
    assert "What came of it: [](../../results/cfrag.md)." in section
    assert not re.findall(r"[^(]docs/\S+\.md", pages["configs"] + pages["options"])
    quickstart = pages["configs"].partition("\n## quickstart\n")[2].partition("\n## ")[0]
    assert 'yield {"system": "recency", "retrieve.method": "recency"}' in quickstart


def test_a_colon_in_the_docstring_of_an_attribute_is_no_type() -> None:
    sys.path.insert(0, str(DOCS / "_ext"))
    try:
        import reference_pages  # pyright: ignore[reportMissingImports]
    finally:
        sys.path.pop(0)
    napoleon = pytest.importorskip("sphinx.ext.napoleon.docstring")
    lines = ["Path of a parameter -> axes: heads are divided.", "Norms are copied."]
    reference_pages._attribute(None, "attribute", "", None, None, lines)
    text = str(napoleon.GoogleDocstring(lines, what="attribute"))
    assert ":type:" not in text
    assert " ".join(text.split()) == "Path of a parameter -> axes: heads are divided. Norms are copied."
