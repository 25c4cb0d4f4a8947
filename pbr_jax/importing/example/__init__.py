"""A folder to begin with: made-up support tickets, a commented task, and the commands that use them.

Customers of a telephone company have one router, phone and plan each, and are served by one agent, who
greets and signs off alike. The same troubles come back to the same customers. So a reply resembles earlier
ones to the same customer, in what it names and in how it is worded.
"""

import csv
import io
import tomllib
from datetime import datetime, timedelta
from pathlib import Path

from pbr_jax.base.files import write_text
from pbr_jax.base.types import UserError

TABLE, COPIED = "tickets.csv", ("task.toml", "commands.sh")
"""The files written from `words.toml`, and those copied from this folder."""

_HEADER = ("ticket", "customer", "created", "topic", "question", "reply")
_OF_CUSTOMER = ("name", "router", "phone", "plan", "hello", "bye")
_START, _BETWEEN, _APART = datetime(2024, 1, 8, 9, 0), timedelta(days=27, hours=1), timedelta(days=3, hours=1)
_TROUBLES = 4  # of a customer, each of which comes back in three wordings
_ENDS = ("Please write again if it does not help.", "Is there anything else?", "Thank you for writing to us.")


def tickets() -> list[tuple[str, ...]]:
    """The rows in the order of their dates: 8 customers with 12 tickets each."""
    words = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
    troubles, made = list(words["troubles"].items()), []
    for place, (customer, texts) in enumerate(words["customers"].items()):
        of = dict(zip(_OF_CUSTOMER, texts))
        for turn in range(3 * _TROUBLES):
            topic, (*questions, reply) = troubles[(place + turn % _TROUBLES * 3) % len(troubles)]
            wording, created = turn // _TROUBLES, _START + turn * _BETWEEN + place * _APART
            reply = f"{of['hello']} {of['name']}, {reply.format_map(of)} {_ENDS[wording]} {of['bye']}"
            name, date = f"t{100 + 12 * place + turn}", created.isoformat(" ", "minutes")
            made.append((name, customer, date, topic, questions[wording], reply))
    return sorted(made, key=lambda row: row[2])


def write(folder: Path) -> None:
    """Writes the tickets, the task and the commands. Raises UserError for a folder that holds something."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: found something there, wanted a new or an empty folder; name another")
    folder.mkdir(parents=True, exist_ok=True)
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows([_HEADER, *tickets()])
    write_text(folder / TABLE, table.getvalue())
    for name in COPIED:
        write_text(folder / name, Path(__file__).with_name(name).read_text(encoding="utf-8"))
