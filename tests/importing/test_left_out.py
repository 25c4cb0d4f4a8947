"""Every message of a mailbox or a chat is in a row, or is counted as left out."""

import json
import mailbox
import re
from collections.abc import Callable
from email.message import EmailMessage
from email.utils import parseaddr
from pathlib import Path
from typing import Any, NamedTuple

import pandas
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbr_jax.cli.main import main
from pbr_jax.importing.left_out import LeftOut
from pbr_jax.importing.tables import rows
from pbr_jax.importing.writing import import_table


class Mail(NamedTuple):
    """What a generated message has."""

    sender: str
    date: str
    subject: str
    text: str
    quote: str
    kind: str
    draft: bool


_MAILS = st.builds(
    Mail,
    sender=st.sampled_from(
        ["", '"Müller, Anna" <a@x.example>', "=?utf-8?q?M=C3=BCller=2C_Bernd?= <b@x.example>", "c@x.example"]
    ),
    date=st.sampled_from(
        ["", "yesterday", "Sat, 3 Feb 2024 14:05:00 +0100", "Sun, 4 Feb 2024 10:00:00 -0000"]
    ),
    subject=st.sampled_from(["", "Re: Figures"]),
    text=st.sampled_from(["", "I attach them.", "Hello,\n\nFrom here on all is well.", "Ja — gern."]),
    quote=st.sampled_from(["", "On Mon, Jan 1, 2024 at 10:00 AM Ann <ann@x.example>\nwrote:\n\n> Well?\n"]),
    kind=st.sampled_from(["plain", "html", "alternative", "calendar"]),
    draft=st.booleans(),
)


def letter(mail: Mail) -> EmailMessage:
    """The message, made by the library that owns the format."""
    made = EmailMessage()
    for name, value in (("Date", mail.date), ("Subject", mail.subject)):
        if value:
            made[name] = value
    if mail.sender:
        made["From"] = mail.sender
    text = f"{mail.text}\n\n{mail.quote}"
    html = f"<div>{mail.text.replace(chr(10), '<br>')}</div>"
    if mail.quote:
        html += "<div class='gmail_quote'><div class='gmail_attr'>On Monday Ann wrote:</div>"
        html += "<blockquote>Well?</blockquote></div>"
    if mail.kind in ("plain", "alternative"):
        made.set_content(text)
    if mail.kind == "alternative":
        made.add_alternative(html, subtype="html")
    if mail.kind == "html":
        made.set_content(html, subtype="html")
    if mail.kind == "calendar":
        made.set_content("BEGIN:VCALENDAR", subtype="calendar")
    if mail.draft:
        made["X-Gmail-Labels"] = "Opened,Drafts"
    return made


@settings(max_examples=30, deadline=None)
@given(mails=st.lists(_MAILS, min_size=1, max_size=8))
def test_every_message_of_a_mailbox_is_a_row_or_is_counted(
    mails: list[Mail], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("mail") / "t.mbox"
    box = mailbox.mbox(path)
    for mail in mails:
        box.add(letter(mail))
    box.close()
    left_out = LeftOut()
    found = list(rows(path, left_out))
    assert len(found) + left_out.count == len(mails)
    complete = [
        mail
        for mail in mails
        if mail.sender and "2024" in mail.date and mail.subject and mail.text and not mail.draft
        and mail.kind != "calendar"
    ]  # fmt: skip
    assert [(row.values["user"], row.values["output"]) for row in found] == [
        (parseaddr(mail.sender)[1], mail.text) for mail in complete
    ]
    places = [line.rpartition("the first is ")[2] for line in left_out.lines()]
    assert not {row.place for row in found}.intersection(places)


class Said(NamedTuple):
    """A message of a chat."""

    who: str
    text: str
    calls: bool
    pictures: int = 0


def _numbered(said: list[tuple[str, bool, bool, int]]) -> list[Said]:
    """Messages whose texts, where they have one, are their own."""
    return [
        Said(who, f"said {number}" if speaks else "", calls and who == "assistant", pictures)
        for number, (who, speaks, calls, pictures) in enumerate(said)
    ]


_WHO = st.sampled_from(["user", "user", "assistant", "assistant", "system", "tool", "stranger"])
_CHATS = st.lists(
    st.lists(
        st.tuples(_WHO, st.sampled_from([True, True, False]), st.booleans(), st.integers(0, 2)), max_size=8
    ).map(_numbered),
    min_size=1,
    max_size=3,
)


def parts(one: Said, kind: str) -> list[dict[str, Any]]:
    """The content of a message: its pictures stand before and behind its text."""
    pictures = [{"type": "image", "source": "data"}] * one.pictures
    return [*pictures[:1], *([{"type": kind, "text": one.text}] if one.text else []), *pictures[1:]]


def openai(said: list[Said]) -> dict[str, Any]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    return {
        "messages": [
            {
                "role": one.who,
                "content": parts(one, "text") if one.pictures else one.text or None,
                "tool_calls": [call] if one.calls else None,
            }
            for one in said
        ]
    }


def anthropic(said: list[Said]) -> dict[str, Any]:
    def content(one: Said) -> list[dict[str, Any]]:
        text = parts(one, "text")
        return [*text, {"type": "tool_use", "id": "t", "name": "f"}] if one.calls else text

    return {"messages": [{"role": one.who, "content": content(one)} for one in said]}


def responses(said: list[Said]) -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    for one in said:
        kind = "output_text" if one.who == "assistant" else "input_text"
        items.append({"type": "message", "role": one.who, "content": parts(one, kind)})
        items += [{"type": "function_call", "name": "f", "arguments": "{}"}] if one.calls else []
    return {"input": items, "output": [{"type": "reasoning", "summary": []}]}


def sharegpt(said: list[Said]) -> dict[str, Any]:
    names = {"user": "human", "assistant": "gpt", "tool": "observation"}
    return {"conversations": [{"from": names.get(one.who, one.who), "value": one.text} for one in said]}


def turns(said: list[Said], *, calls: bool) -> list[tuple[str, str]]:
    """The questions and answers, found as a pattern: what precedes a call is no answer."""
    letters = {"user": "U", "assistant": "A", "tool": "T"}
    written = "".join(
        f"{'T' if calls and one.calls else letters[one.who]}{number} "
        for number, one in enumerate(said)
        if one.who in letters and (one.text or one.who == "tool" or (calls and one.calls))
    )
    written = re.sub(r"A\d+ (?=(?:A\d+ )*T)", "", written)
    pairs = re.findall(r"((?:U\d+ )+)((?:A\d+ )+)", re.sub(r"T\d+ ", "", written))
    return [
        (
            "\n".join(f"said {name[1:]}" for name in asked.split()),
            "\n".join(f"said {n[1:]}" for n in told.split()),
        )
        for asked, told in pairs
    ]


def jsonl(records: list[dict[str, Any]], path: Path) -> Any:
    (path / "t.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return path / "t.jsonl"


def listed(records: list[dict[str, Any]], path: Path) -> Any:
    (path / "t.json").write_text(json.dumps(records))
    return path / "t.json"


def parquet(records: list[dict[str, Any]], path: Path) -> Any:
    """A column has one type, so contents are texts alone, or parts alone."""
    messages = [one for record in records for one in record.get("messages", ())]
    if any(isinstance(one["content"], list) for one in messages):
        for one in messages:
            if isinstance(one["content"], str):
                one["content"] = [{"type": "text", "text": one["content"]}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), path / "t.parquet")
    return path / "t.parquet"


def frame(records: list[dict[str, Any]], path: Path) -> Any:
    return pandas.read_parquet(parquet(records, path))


def separated(records: list[dict[str, Any]], path: Path) -> Any:
    pandas.DataFrame(records).to_csv(path / "t.csv", index=False)
    return path / "t.csv"


@pytest.mark.parametrize("form", [openai, anthropic, responses, sharegpt])
@settings(max_examples=25, deadline=None)
@given(chats=_CHATS, write=st.sampled_from([jsonl, listed, parquet, frame]))
def test_every_message_of_a_chat_is_in_a_row_or_is_counted(
    form: Callable[[list[Said]], dict[str, Any]],
    chats: list[list[Said]],
    write: Callable[[list[dict[str, Any]], Path], Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    records = [form(said) for said in chats]
    left_out = LeftOut()
    found = [row.values for row in rows(write(records, tmp_path_factory.mktemp("chat")), left_out)]
    wanted = [turn for said in chats for turn in turns(said, calls=form is not sharegpt)]
    assert [(row["input"], row["output"]) for row in found] == wanted
    used = sum(text.count("said") for turn in wanted for text in turn)
    pictures = sum(
        one.pictures
        for said, own in zip(chats, [turns(said, calls=form is not sharegpt) for said in chats])
        for one in said
        if form is not sharegpt
        and any(one.text and one.text in text.split("\n") for turn in own for text in turn)
    )
    assert [line for line in left_out.lines() if line.startswith(f"{pictures} parts of messages")] == [
        line for line in left_out.lines() if "such as pictures" in line
    ]
    messages = [len(messages) for record in records for messages in record.values()]
    assert used + left_out.count == sum(messages) + pictures + messages.count(0) * (form is not responses)


@settings(max_examples=25, deadline=None)
@given(chats=_CHATS, write=st.sampled_from([jsonl, parquet, frame, separated]))
def test_every_message_in_a_row_is_in_a_turn_or_is_counted(
    chats: list[list[Said]],
    write: Callable[[list[dict[str, Any]], Path], Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Conversations are mixed, as in a table that is sorted by time."""
    records = [
        {
            "conversation": f"c{chat}",
            "role": one.who.title(),
            "text": one.text,
            "time": f"2024-01-{number + 1:02}",
        }
        for number in range(9)
        for chat, said in enumerate(chats)
        for one in [Said("user", "", False), *said][number : number + 1]
    ]
    left_out = LeftOut()
    found = [row.values for row in rows(write(records, tmp_path_factory.mktemp("chat")), left_out)]
    wanted = [(f"c{chat}", *turn) for chat, said in enumerate(chats) for turn in turns(said, calls=False)]
    assert sorted((row["user"], row["input"], row["output"]) for row in found) == sorted(wanted)
    used = sum(text.count("said") for turn in wanted for text in turn)
    assert used + left_out.count == len(records)
    for row in found:
        asked = int(row["input"].rpartition(" ")[2])
        assert row["time"] == f"2024-01-{asked + 2:02}"


def test_what_is_left_out_is_told_at_import_and_by_validate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first of each reason is named, and a folder from which nothing was left out says nothing."""
    said = [
        Said("user", "said 0", False),
        Said("stranger", "Well", False),
        Said("assistant", "said 2", False),
    ]
    chats = [sharegpt(said) | {"user": "ann"}, sharegpt([*said, said[0]]) | {"user": "ann"}]
    path, out = jsonl(chats, tmp_path), tmp_path / "out"
    line = f"; the first is {path}: row 1, conversations[1], role 'stranger'"
    assert main(["data", "import", str(path), "--user-is", "recipient", "--out", str(out)]) == 0
    told = capsys.readouterr().out
    assert f"left out  2 messages of a role that is neither a user's nor an assistant's{line}" in told
    assert "left out  1 messages of the user that have no answer" in told
    validate = ["data", "validate", "--benchmark.name", "own", "--benchmark.root"]
    assert main([*validate, str(out)]) == 0
    told = capsys.readouterr().out
    assert f"left out: 2 messages of a role that is neither a user's nor an assistant's{line}" in told
    import_table([sharegpt([said[0], said[2]]) | {"user": "ann"}], tmp_path / "all")
    assert main([*validate, str(tmp_path / "all")]) == 0
    assert "left out" not in capsys.readouterr().out
