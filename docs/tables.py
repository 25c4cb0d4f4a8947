"""Tables of measured results: read docs/results/*.json, check them, and write Markdown and plots.

    python docs/tables.py            # docs/_generated/NAME.inc for each table, with plots where it has some
    python docs/tables.py --readme   # the rows of README.md's table of results

The site's build calls `write` first. A page of docs/results includes the tables that name it as their page.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
RESULTS, GENERATED, README = DOCS / "results", DOCS / "_generated", DOCS.parent / "README.md"
BEGIN, END = "<!-- results: python docs/tables.py --readme -->\n", "<!-- end of results -->\n"

Table = dict[str, Any]
Row = dict[str, Any]

# What each table has. A row may say any of SHARED itself; a measure may say n, users and less.
SHARED = {"n": int, "users": int, "commit": str, "date": str, "command": list, "hardware": str}
NEEDED = {
    "title": str,
    "page": str,
    "meaning": list,
    "rows_are": str,
    "cost": str,
    "measures": dict,
    "rows": list,
}
FREE = {"setting": str, "recorded": str, "plot": list, "readme": list}
FREE |= {"seeds": (Decimal, str)}  # how many a learned row has, or a sentence: why fewer than three
FREE |= {"clusters": str}  # what takes the place of users in intervals, such as conversations
OF_A_ROW = {"row", "measure", "value", "interval", "sd", "p", "significant", "note", "less", *SHARED}
MATRIX = ("method", "benchmark", "measure", "paper", "where", "ours", "because")


def read(path: Path) -> Any:
    """A file's JSON; numbers keep their digits, so that 0.040 is printed as 0.040."""
    return json.loads(path.read_text(encoding="utf-8"), parse_float=Decimal, parse_int=Decimal)


def tables(folder: Path = RESULTS) -> dict[str, Table]:
    """Every table by its name, checked."""
    found = {path.stem: read(path) for path in sorted(folder.glob("*.json")) if path.stem != "matrix"}
    for name, table in found.items():
        check(name, table)
    return found


def check(name: str, table: Table) -> None:
    """Raise ValueError with one line where a table does not follow the schema."""

    def wrong(what: str) -> ValueError:
        return ValueError(f"docs/results/{name}.json: {what}")

    for field, kind in {**NEEDED, **SHARED}.items():
        if field not in table:
            raise wrong(f"{field} is missing")
        value = table[field]
        optional = field in SHARED and field != "command"
        if not (value is None and optional) and not isinstance(value, Decimal if kind is int else kind):
            raise wrong(f"{field} is {value!r}, not of type {kind.__name__}")
    if unknown := set(table) - {*NEEDED, *SHARED, *FREE}:
        raise wrong(f"unknown fields: {', '.join(sorted(unknown))}")
    if len(table["meaning"]) != 3 or not all(one.endswith(".") for one in table["meaning"]):
        raise wrong("meaning has to be three sentences")
    if not table["command"]:
        raise wrong("command is empty")
    seeds = table.get("seeds", Decimal(3))
    if not (seeds.endswith(".") if isinstance(seeds, str) else isinstance(seeds, Decimal) and seeds >= 3):
        raise wrong(f"seeds is {seeds!r}, want a number from 3 on, or a sentence: why there are fewer")
    if table["cost"] in ("", "not noted"):
        raise wrong(f"cost is {table['cost']!r}, which nobody can plan with")
    if table["date"] is None and table.get("recorded") is None:
        raise wrong("it has neither date nor recorded")
    for row in table["rows"]:
        _check_row(row, table, wrong)
    if table.get("recorded") is None and any(one["commit"] is None for one in rows(table)):
        raise wrong("a row has no commit, and the table does not say in which commit it was recorded")


def _check_row(row: Row, table: Table, wrong: Any) -> None:
    place = f"row {row.get('row')!r}, measure {row.get('measure')!r}: "
    if unknown := set(row) - OF_A_ROW:
        raise wrong(place + f"unknown fields: {', '.join(sorted(unknown))}")
    if row.get("measure") not in table["measures"]:
        raise wrong(place + "the measure is not among the table's measures")
    if not isinstance(row.get("value"), Decimal):
        raise wrong(place + f"value is {row.get('value')!r}, not a number")
    if interval := row.get("interval"):
        low, high = interval
        if not low <= row["value"] <= high:
            raise wrong(place + f"the value {row['value']} lies outside [{low}, {high}]")
    if (date := row.get("date", table["date"])) and not re.fullmatch(r"20\d\d-\d\d-\d\d", date):
        raise wrong(place + f"the date {date!r} is not YYYY-MM-DD")
    if (commit := row.get("commit", table["commit"])) and not re.fullmatch(r"[0-9a-f]{7,40}", commit):
        raise wrong(place + f"the commit {commit!r} is no hash")


def rows(table: Table) -> Iterator[Row]:
    """All rows, each with every field of SHARED and `less`, the row that it is a difference from."""
    for row in table["rows"]:
        measure = table["measures"][row["measure"]]
        shared = {field: measure.get(field, table[field]) for field in SHARED}
        less = row["row"] if table["rows_are"] == "difference" else measure.get("less")
        yield {"interval": None, "less": less, **shared, **row}


def number(value: Decimal, signed: bool = False) -> str:
    text = f"{abs(value):,}"
    return ("−" if value < 0 or value.is_signed() else "+" if signed and value else "") + text


def cell(row: Row) -> str:
    """A value as text: −0.181 [−0.239, −0.129]."""
    signed = row["less"] is not None
    text = number(row["value"], signed)
    if "sd" in row:
        text += f" ± {number(row['sd'])}"
    if row["interval"]:
        text += f" [{', '.join(number(end, signed) for end in row['interval'])}]"
    text += r"\*" if row.get("significant") else ""
    text += f", p {_equals(row['p'])}" if "p" in row else ""
    return text + (f", {row['note']}" if "note" in row else "")


def _equals(p: str) -> str:
    return p if p.startswith("<") else f"= {p}"


def grid(table: Table) -> list[list[str]]:
    """Header and body: a line for each row, a column for each measure."""
    measures = list(table["measures"])
    lines: dict[str, dict[str, str]] = {}
    for row in rows(table):
        lines.setdefault(row["row"], {})[row["measure"]] = cell(row)
    body = [[name, *(cells.get(one, "–") for one in measures)] for name, cells in lines.items()]
    return [[table["rows_are"], *(_headed(one, table["measures"][one]["unit"]) for one in measures)], *body]


def _headed(measure: str, unit: str) -> str:
    """A column's header; a rate says of what, since its name does not."""
    return f"{measure}, {unit}" if unit.endswith(" per second") else measure


def pipes(lines: list[list[str]]) -> str:
    header, *body = [[cell.replace("|", r"\|") for cell in line] for line in lines]
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "".join(f"| {' | '.join(line)} |\n" for line in [header, rule, *body])


def _counted(name: str, n: Any, users: Any, clusters: str) -> str:
    parts = [f"{number(n)} questions" if n else "", f"{number(users)} {clusters}" if users else ""]
    return (f"{name}: " if name else "") + " of ".join(part for part in parts if part)


def _counts(table: Table) -> str:
    found = {}
    for name, measure in table["measures"].items():
        if counts := (measure.get("n"), measure.get("users")) if "n" in measure else None:
            found.setdefault(counts, name.split(":")[0].split(",")[0])
    if not found and (table["n"] or table["users"]):
        found = {(table["n"], table["users"]): ""}
    clusters = table.get("clusters", "users")
    return "; ".join(_counted(name, *counts, clusters) for counts, name in found.items())


def provenance(table: Table) -> str:
    """One paragraph: what it was measured on, when, and what it cost."""
    commit = f", commit {table['commit']}" if table["commit"] else ""
    if table["commit"] is None and table.get("recorded"):
        commit = f" (written down in commit {table['recorded']}; that of the measurement was not noted)"
    seeds = table.get("seeds", "")
    facts = [_counts(table), f"{table['date']}{commit}", table["hardware"], f"Cost: {table['cost']}"]
    facts += [seeds.removesuffix(".") if isinstance(seeds, str) else f"{seeds} seeds"]
    return ". ".join(fact[0].upper() + fact[1:] for fact in facts if fact) + "."


def markdown(name: str, table: Table) -> str:
    """The section of a table: what it means, the command, the table and its plot."""
    parts = [f"(table-{name})=\n## {table['title']}", " ".join(table["meaning"])]
    parts += [table["setting"]] if table.get("setting") else []
    text = "\n".join(table["command"])
    parts += [
        f"```{{code-block}} text\n:class: command\n\n{text}\n```",
        provenance(table),
        _unbroken(pipes(grid(table))).rstrip(),
    ]
    if table.get("plot"):
        parts += [image(f"/_generated/{name}", f"{table['title']}: the intervals of the table above")]
    return "\n\n".join(parts) + "\n"


def _unbroken(text: str) -> str:
    """No line of a narrow cell ends inside an interval."""
    return re.sub(r", (?=[+−\d.,]+\])", ",\u00a0", text)


def image(path: str, alt: str) -> str:
    """A picture in two versions, of which the site shows the one that fits its theme."""
    one = "```{{image}} {path}-{theme}.svg\n:class: only-{theme}\n:alt: {alt}\n```"
    return "\n\n".join(one.format(path=path, theme=theme, alt=alt) for theme in ("light", "dark"))


def matrix(found: dict[str, Table]) -> str:
    """Method, benchmark, the paper's number, ours, and why they differ or cannot be compared."""
    lines = [
        ["method", "benchmark and measure", "the paper", "ours", "why they differ, or cannot be compared"]
    ]
    for row in read(RESULTS / "matrix.json"):
        if set(row) != set(MATRIX):
            raise ValueError(f"docs/results/matrix.json: a row has {sorted(row)}, not {sorted(MATRIX)}")
        ours = "–"
        if row["ours"]:
            table = found[row["ours"]["table"]]
            [value] = [
                one for one in rows(table) if all(one[k] == row["ours"][k] for k in ("row", "measure"))
            ]
            ours = f"[{cell(value)}](#table-{row['ours']['table']})"
        paper = f"{row['paper']} ({row['where']})"
        lines.append([row["method"], f"{row['benchmark']}, {row['measure']}", paper, ours, row["because"]])
    return pipes(lines).replace("---:", "---")


def write(folder: Path = GENERATED) -> None:
    """Write all sections, the matrix and the plots; files that would not change are left alone."""
    import plots  # matplotlib, which the checks of the tables do not need

    folder.mkdir(exist_ok=True)
    found = tables()
    files = {f"{name}.inc": markdown(name, table) for name, table in found.items()}
    files["matrix.inc"] = matrix(found)
    for name, table in found.items():
        if table.get("plot"):
            files |= {f"{name}-{theme}.svg": plots.draw(table, theme) for theme in plots.THEMES}
    for name, text in files.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def readme_rows() -> str:
    """README's table: what was shown, the value for tweets, and what it says."""
    table = tables()["baselines"]
    values = {row["row"]: cell(row) for row in rows(table) if "tweets" in row["measure"]}
    lines = [["shown to the model", "`target_nll`", "what it says"]]
    lines += [[one["shown"], values[one["row"]], one["says"]] for one in table["readme"]]
    return pipes(lines).replace("---:", "---")


def readme(text: str) -> str:
    """README's text with the table of results written anew."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + readme_rows() + END + rest.split(END)[1]


def setup(app: Any) -> dict[str, bool]:
    """Sphinx calls this: the sections are written before any page is read."""
    app.connect("builder-inited", lambda app: write())
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the tables of docs/results.")
    parser.add_argument("--readme", action="store_true", help="rewrite README's table instead")
    if parser.parse_args().readme:
        README.write_text(readme(README.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        sys.path.insert(0, str(DOCS))
        write()


if __name__ == "__main__":
    main()
