"""Results as data: the schema, the tables written from it, README's rows, the pages and the plots."""

import copy
import json
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from inspect import signature
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from doc_blocks import read_command

from pbr_jax import data
from pbr_jax.cli import flags
from pbr_jax.config import Config, override
from pbr_jax.options import Learner

REPO = Path(__file__).parents[2]
sys.path.insert(0, str(REPO / "docs"))

import prose  # noqa: E402  # pyright: ignore[reportMissingImports]
import tables  # noqa: E402  # pyright: ignore[reportMissingImports]

NAMES = sorted(path.stem for path in tables.RESULTS.glob("*.json") if path.stem != "matrix")
SMALL = {
    "title": "Small",
    "page": "speed",
    "meaning": ["One.", "Two.", "Three."],
    "rows_are": "shown",
    "command": ["pbr-jax run dense"],
    "cost": "a minute",
    "date": "2026-11-27",
    "commit": "32dd926",
    "hardware": None,
    "n": 1802,
    "users": 10,
    "measures": {
        "nll": {"unit": "nats", "better": "lower", "less": "nothing"},
        "recall": {"unit": "share", "better": "higher", "n": 5},
    },
    "plot": ["nll"],
    "rows": [
        {"row": "nothing", "measure": "nll", "value": 3.5, "interval": [3.25, 4.0], "less": None},
        {"row": "own", "measure": "nll", "value": -0.040, "interval": [-0.06, 0.018], "p": "< 0.001"},
        {"row": "own", "measure": "recall", "value": 0.5, "significant": True},
        {"row": "others", "measure": "nll", "value": 0.25, "interval": [0.125, 0.5], "n": 7},
    ],
}


def small() -> tables.Table:
    text = json.dumps(SMALL).replace("-0.04,", "-0.040,")
    return json.loads(text, parse_float=Decimal, parse_int=Decimal)


@pytest.mark.parametrize("name", NAMES)
def test_every_table_follows_the_schema(name: str) -> None:
    table = tables.read(tables.RESULTS / f"{name}.json")
    tables.check(name, table)
    assert table["rows"]
    for row in tables.rows(table):
        assert {"row", "measure", "value", "interval", *tables.SHARED} <= set(row)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("cost"), "cost is missing"),
        (lambda t: t.update(command="pbr-jax run dense"), "command is 'pbr-jax run dense', not of type list"),
        (lambda t: t.update(command=[]), "command is empty"),
        (lambda t: t.update(cost="not noted"), "cost is 'not noted', which nobody can plan with"),
        (lambda t: t.update(cost=""), "cost is '', which nobody can plan with"),
        (lambda t: t.update(seeds=Decimal(2)), "seeds is .*2.*, want a number from 3 on, or a sentence"),
        (lambda t: t.update(seeds=""), "seeds is '', want a number from 3 on, or a sentence"),
        (lambda t: t.update(meaning=["One.", "Two."]), "meaning has to be three sentences"),
        (lambda t: t.update(date=None), "it has neither date nor recorded"),
        (lambda t: t.update(commit=None), "a row has no commit, and the table does not say in which"),
        (lambda t: t.update(colour="red"), "unknown fields: colour"),
        (lambda t: t["rows"][1].update(value="-0.04"), "value is '-0.04', not a number"),
        (lambda t: t["rows"][1].update(value=Decimal("0.1")), r"the value 0.1 lies outside \[-0.06, 0.018\]"),
        (lambda t: t["rows"][1].update(measure="f1"), "the measure is not among the table's measures"),
        (lambda t: t["rows"][1].update(date="27.11.2026"), "the date '27.11.2026' is not YYYY-MM-DD"),
        (lambda t: t["rows"][1].update(commit="head"), "the commit 'head' is no hash"),
        (lambda t: t["rows"][1].update(note_="x"), "unknown fields: note_"),
    ],
)
def test_a_table_that_breaks_the_schema_is_refused_in_one_line(change, message: str) -> None:
    tables.check("small", small())
    broken = copy.deepcopy(small())
    change(broken)
    with pytest.raises(ValueError, match=message) as found:
        tables.check("small", broken)
    assert "\n" not in str(found.value)


def test_a_row_has_what_its_measure_and_its_table_say() -> None:
    first, _, recall, others = tables.rows(small())
    assert (first["n"], recall["n"], others["n"]) == (1802, 5, 7)
    assert (first["less"], recall["less"], others["less"]) == (None, None, "nothing")
    assert all(row["commit"] == "32dd926" for row in (first, recall, others))


def test_markdown_of_a_small_table() -> None:
    text = tables.markdown("small", small())
    assert text.startswith(
        "(table-small)=\n## Small\n\nOne. Two. Three.\n\n"
        "```{code-block} text\n:class: command\n\npbr-jax run dense\n```\n"
    )
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows == [
        "| shown | nll | recall |",
        "| --- | ---: | ---: |",
        "| nothing | 3.5 [3.25,\u00a04.0] | – |",
        "| own | −0.040 [−0.06,\u00a0+0.018], p < 0.001 | 0.5\\* |",
        "| others | +0.25 [+0.125,\u00a0+0.5] | – |",
    ]
    assert "2026-11-27, commit 32dd926. Cost: a minute." in text
    assert text.count("_generated/small-") == 2


def test_readme_has_the_rows_of_the_data() -> None:
    text = tables.README.read_text(encoding="utf-8")
    assert tables.readme(text) == text, "run: python docs/tables.py --readme"
    [line] = [line for line in text.splitlines() if line.startswith("| own tweets, at random |")]
    data = json.loads((tables.RESULTS / "baselines.json").read_text(encoding="utf-8"))
    [row] = [one for one in data["rows"] if one["row"] == "own, random" and "tweets" in one["measure"]]
    found = [float(value.replace("−", "-")) for value in re.findall(r"−?\d\.\d{3}", line)]
    assert found == [row["value"], *row["interval"]]


def test_a_changed_number_changes_readme() -> None:
    text = tables.README.read_text(encoding="utf-8")
    assert tables.readme(text.replace("−0.181", "−0.182")) == text


def test_each_table_stands_once_on_its_page() -> None:
    shown = {}
    for page in tables.RESULTS.glob("*.md"):
        for name in re.findall(r"\{include\} \.\./_generated/(\w+)\.inc", page.read_text(encoding="utf-8")):
            assert name not in shown, f"{name} stands on {shown[name]} and {page.stem}"
            shown[name] = page.stem
    assert shown.pop("matrix") == "index"
    assert shown == {name: table["page"] for name, table in tables.tables().items()}


@pytest.mark.parametrize("name", NAMES)
def test_the_sentences_of_a_table_are_plain(name: str) -> None:
    table = tables.read(tables.RESULTS / f"{name}.json")
    seeds = str(table.get("seeds", ""))
    for text in (table["title"], *table["meaning"], *table.get("setting", "").split("  "), seeds):
        assert [fault for fault in prose.faults(text) if "characters" not in fault] == []


def test_the_matrix_finds_our_numbers() -> None:
    text = tables.matrix(tables.tables())
    [line] = [line for line in text.splitlines() if line.startswith("| query alone |")]
    assert line.split(" | ")[1:4] == [
        "PersonaBench, noise 0.0, recall@5",
        "0.3783 (PBR, Table 1)",
        "[0.3783](#table-pbr_paper)",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_commands_name_configs_and_scripts_that_exist(name: str) -> None:
    for command in tables.read(tables.RESULTS / f"{name}.json")["command"]:
        for config in re.findall(r"pbr-jax (?:sweep|run) ([\w/]+)", command):
            assert (REPO / "configs" / f"{config}.py").exists(), command
        for script in re.findall(r"python (benchmarks/\w+\.py)|pytest (\S+)", command):
            assert (REPO / "".join(script)).exists(), command


FILLED = {"NAME": "lamp_7", "S": "0", "B": "2", "E": "2"}  # what stands in a command for a value


@pytest.mark.parametrize("name", NAMES)
def test_the_program_reads_each_command(name: str) -> None:
    for command in tables.read(tables.RESULTS / f"{name}.json")["command"]:
        if command.startswith("pbr-jax "):
            read_command([FILLED.get(word, word) for word in shlex.split(command)[1:]])


LEARNED = re.compile(r"\b(ROPG|CFRAG|PURPLE|LUF|LoRA|tuned|trained|learned)\b")


def trains(config: Config) -> bool:
    """Whether a run fits parameters."""
    fits = (isinstance(one, Learner) or one.learns() in ("needed", "apart") for one in config.methods)
    return any(fits) or config.generator.method != "frozen" or config.neighbours.method == "contrastive"


def learns(table: tables.Table) -> bool:
    """Whether a row is learned, by the words of the table or by what its commands run; not of speeds."""
    words = [table["title"], *(row["row"] for row in table["rows"])]
    runs = (config for command in table["command"] for config in configs_of(command))
    return table["page"] != "speed" and (any(map(LEARNED.search, words)) or any(map(trains, runs)))


@pytest.mark.parametrize("name", NAMES)
def test_learned_rows_have_seeds_or_a_reason(name: str) -> None:
    table = tables.read(tables.RESULTS / f"{name}.json")
    assert not learns(table) or "seeds" in table, "say in `seeds` how many there are, or why there are fewer"


def test_what_is_learned_is_known_by_its_words_and_by_its_commands() -> None:
    own = {**small(), "page": "luf", "command": ["python docs/tables.py"]}
    assert not learns(own)
    assert not learns({**own, "rows": [{"row": "untuned"}]})
    assert learns({**own, "rows": [{"row": "dense, tuned"}]})
    place = "--benchmark.name lamp_7 --benchmark.root FOLDER --out DIR"
    for run in ("run cfrag", "run dense --generator.method lora", "sweep ablations/tuned", "run purple"):
        assert learns({**own, "command": [f"pbr-jax {run} {place}"]}), run
    assert not learns({**own, "command": [f"pbr-jax sweep ablations/llm_baselines {place}"]})


FOLDERS = {
    "lamp_7": "LaMP_7", "lamp_4": "LaMP_4_huffpost", "lamp_3": "LaMP_3_amazon_mi",
    "longmemeval": "longmemeval_like_locomo",
}  # fmt: skip


def read_config(command: str, words: dict[str, str]) -> tuple[list[Config], Any]:
    """The config of a command, if it runs any, with words in the places of others; and its file's sweep."""
    if not command.startswith(("pbr-jax run ", "pbr-jax sweep ")):
        return [], None
    rest = shlex.split(command)[1:]
    kept = [FILLED.get(word, word) for word in rest[1 : rest.index("--out")]]
    file, config = flags.config([words.get(word, word) for word in kept], flags.RUN)
    return [config], file.sweep if rest[0] == "sweep" else None


def configs(words: dict[str, str]) -> Iterator[Config]:
    """The config of each command of all tables, with words in the places of others."""
    for table in tables.tables().values():
        for command in table["command"]:
            yield from read_config(command, words)[0]


def configs_of(command: str) -> Iterator[Config]:
    """The configs of all runs of a command."""
    for config in (found := read_config(command, {}))[0]:
        rows = [{}] if found[1] is None else found[1](*[config] * bool(signature(found[1]).parameters))
        yield from (override(config, row) for row in rows)


@pytest.mark.long
@pytest.mark.data
def test_commands_have_options_and_splits_that_exist(real_data: Path) -> None:
    places = {name: str(real_data / name.lower()) for name in ("LOCOMO", "REALTALK")}
    benchmarks = {repr(one.benchmark): one.benchmark for one in configs(places)}
    assert len(benchmarks) > 10
    for benchmark in benchmarks.values():
        name = benchmark.name
        root = str(real_data / FOLDERS.get(name, name)) if benchmark.root == "FOLDER" else benchmark.root
        if root:  # ablations/expansions_small has its own
            assert next(data.read(replace(benchmark, root=root)))


def drawn(theme: str) -> str:
    plots = pytest.importorskip("plots", reason="matplotlib is not installed")
    return plots.draw(small(), theme)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_plot_is_the_same_bytes_each_time_and_has_labels_and_a_line_at_zero(theme: str) -> None:
    text = drawn(theme)
    assert text == drawn(theme)
    root = ElementTree.fromstring(text)
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"own", "others"} <= set(texts)
    assert "nothing" not in texts  # an absolute value is no difference
    assert text.count("stroke-dasharray") == 1


def test_markers_of_a_plot_lie_as_their_values_do() -> None:
    text = drawn("light")
    own, others = (float(x) for x in re.findall(r'<use [^>]*x="([\d.]+)"[^>]*fill: #0072b2', text))
    bar = r'<path d="M ([\d.]+) [\d.]+ \nL ([\d.]+) [\d.]+ \n"[^>]*stroke: #0072b2'
    (low, high), (second_low, second_high) = ((float(a), float(b)) for a, b in re.findall(bar, text))
    assert low < own < high
    assert second_low < others < second_high
    scale = (high - low) / 0.078  # the first interval is [−0.06, 0.018]
    assert own - low == pytest.approx(0.02 * scale, abs=1e-3)
    assert others - own == pytest.approx(0.29 * scale, abs=1e-3)


def test_curves_over_history_length_have_every_column() -> None:
    plots = pytest.importorskip("plots", reason="matplotlib is not installed")
    table = tables.tables()["history_tweets"]
    text = plots.draw(table, "dark")
    texts = [one.text for one in ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}text")]
    assert {"0", "1", "2", "4", "8", "all", plots.OWN, *plots.CURVES} <= set(texts)
    assert text == plots.draw(table, "dark")
