"""Conversations and mail as tables."""

import json
import mailbox
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from pbr_jax import data
from pbr_jax.base.types import Example, UserError
from pbr_jax.config import Benchmark
from pbr_jax.importing.tables import rows
from pbr_jax.importing.writing import import_table


def examples(folder: Path) -> list[Example]:
    return list(data.read(Benchmark(name="own", root=str(folder))))


def said(*turns: str, **keys: Any) -> dict[str, Any]:
    messages = [{"role": ("user", "assistant")[i % 2], "content": turn} for i, turn in enumerate(turns)]
    return {"messages": [{"role": "system", "content": "be brief"}, *messages], **keys}


def test_every_answered_message_of_a_chat_is_a_row(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "What of"}, {"type": "image_url"}, {"type": "text", "text": "tea?"}]
    chats = [said("Hi", "Hello", "And?", "So", user="ann"), said("Hey", "Ho", "Unanswered", user="ann")]
    chats.append({"messages": [{"role": "user", "content": parts}, {"role": "user", "content": "Well?"},
                               {"role": "assistant", "content": None, "tool_calls": []},
                               {"role": "assistant", "content": "Yes"}], "user": "bob"})  # fmt: skip
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    made = import_table(tmp_path / "t.jsonl", tmp_path / "out")
    assert (made.questions, made.users) == (4, 2)
    found = [(e.user_id, e.input, e.target, len(e.profile)) for e in examples(tmp_path / "out")]
    assert found == [
        ("ann", "Hi", "Hello", 0),
        ("ann", "And?", "So", 1),
        ("ann", "Hey", "Ho", 2),
        ("bob", "What of\ntea?\nWell?", "Yes", 0),
    ]


def test_turns_of_one_moment_do_not_see_each_other(tmp_path: Path) -> None:
    chats = [said("a", "b", "c", "d", user="u", created=1_700_000_000 + 9 * i) for i in range(2)]
    import_table(chats, tmp_path / "out")
    assert [len(example.profile) for example in examples(tmp_path / "out")] == [0, 0, 2, 2]


def test_a_conversation_that_is_a_history_by_itself_has_no_date(tmp_path: Path) -> None:
    chats = [said("a", "b", "c", "d", id=f"c{i}", created=1_700_000_000 + i) for i in range(2)]
    import_table(chats, tmp_path / "out")
    found = [(e.user_id, len(e.profile)) for e in examples(tmp_path / "out")]
    assert found == [("c0", 0), ("c0", 1), ("c1", 0), ("c1", 1)]


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("hi", "row 1, messages[0]: found a string without a role"),
        ({"role": 3}, "row 1, messages[0]: found an object without a role"),
        ({"role": "user", "content": 3}, "row 1, messages[0]: found a number as content"),
    ],
)
def test_what_is_no_message_is_named(message: Any, told: str) -> None:
    with pytest.raises(UserError) as error:
        list(rows([{"messages": [message]}]))
    assert told in str(error.value)


def letter(sender: str, text: str, **headers: str) -> EmailMessage:
    made = EmailMessage()
    made["From"], made["Date"] = sender, headers.pop("date", "Sat, 3 Feb 2024 14:05:00 +0100")
    for name, value in headers.items():
        made[name.replace("_", "-").title()] = value
    made.set_content(text)
    return made


def box(path: Path, letters: list[EmailMessage]) -> Path:
    made = mailbox.mbox(path)
    for one in letters:
        made.add(one)
    made.close()
    return path


def test_a_reply_answers_the_text_that_it_replies_to(tmp_path: Path) -> None:
    letters = [
        letter("Ann Ö <Ann@x.org>", "Is it on?\nAnn", subject="Party", message_id="<1@x>"),
        letter("bob@y.org", "It is.\n\nOn Saturday Ann wrote:\n> Is it on?\n", subject="Re: AW: Party",
               message_id="<2@x>", in_reply_to="<1@x>", date="Sun, 4 Feb 2024 10:00:00 +0000"),
        letter("ann@x.org", "Gone", subject="=?utf-8?q?Re=3A_Gr=C3=BC=C3=9Fe?=", in_reply_to="<no@x>",
               date="Mon, 5 Feb 2024 10:00:00 +0000"),
    ]  # fmt: skip
    html = letter("bob@y.org", "", subject="News", date="Tue, 6 Feb 2024 10:00:00 +0000")
    html.set_content(
        "<style>p {}</style><p>Big <b>news</b></p><div>Now</div><blockquote>old</blockquote>", subtype="html"
    )
    found = [row.values for row in rows(box(tmp_path / "t.mbox", [*letters, html]))]
    assert [(row["user"], row["input"], row["output"]) for row in found] == [
        ("ann@x.org", "Party", "Is it on?\nAnn"),
        ("bob@y.org", "Is it on?\nAnn", "It is."),
        ("ann@x.org", "Grüße", "Gone"),
        ("bob@y.org", "News", "Big news\nNow"),
    ]
    assert found[0]["time"] == "2024-02-03T14:05:00+01:00"
    made = import_table(tmp_path / "t.mbox", tmp_path / "out")
    assert (made.questions, made.users, made.columns.time) == (4, 2, "time")
    assert [len(e.profile) for e in examples(tmp_path / "out")] == [0, 1, 0, 1]


def test_a_line_that_begins_with_from_is_no_quote(tmp_path: Path) -> None:
    """mbox writes it as ">From ", and what began so with one mark more."""
    box = mailbox.mbox(tmp_path / "t.mbox")
    mail = EmailMessage()
    mail["From"], mail["Date"], mail["Subject"] = "a@b.c", "Sat, 3 Feb 2024 14:05:00 +0000", "s"
    mail.set_content("Hello,\nFrom here on all is well.\n\nBye\n> quoted\n")
    box.add(mail)
    box.close()
    assert ">From here" in (tmp_path / "t.mbox").read_text()
    (row,) = rows(tmp_path / "t.mbox")
    assert row.values["output"] == "Hello,\nFrom here on all is well.\n\nBye"


def test_odd_mail(tmp_path: Path) -> None:
    (tmp_path / "t.mbox").write_text("Dear all")
    with pytest.raises(UserError, match="wanted an mbox file"):
        list(rows(tmp_path / "t.mbox"))
    (tmp_path / "u.mbox").write_bytes(b"From a\nFrom: a@b.c\nSubject: s\nDate: yesterday\n\nx\n")
    with pytest.raises(UserError, match=r"found no row, .* 1 messages without a date that can be read"):
        import_table(tmp_path / "u.mbox", tmp_path / "out")
    odd = b"From a\nFrom: a@b.c\nDate: Sat, 3 Feb 2024 14:05:00 +0000\nSubject: s\n"
    odd += b"Content-Type: text/plain; charset=klingon\n\ncaf\xc3\xa9 \xff\n"
    (tmp_path / "v.mbox").write_bytes(odd)
    (row,) = rows(tmp_path / "v.mbox")
    assert row.values["output"] == "café �"


@pytest.mark.parametrize(
    "header",
    [b"In-Reply-To: <\xff>", b"Message-ID: <\xff>", b"Content-Type: text/plain; charset=idna",
     b'Content-Type: text/plain; charset="a\x00b"'],
)  # fmt: skip
def test_headers_that_are_no_text_stop_nothing(tmp_path: Path, header: bytes) -> None:
    odd = b"From a\nFrom: a@b.c\nDate: Sat, 3 Feb 2024 14:05:00 +0000\nSubject: s\n" + header
    (tmp_path / "t.mbox").write_bytes(odd + b"\n\ncaf\xc3\xa9\n\n" + odd + b"\n\nmore\n")
    inputs, outputs = zip(*((row.values["input"], row.values["output"]) for row in rows(tmp_path / "t.mbox")))
    assert (inputs, outputs) == (("s", "s"), ("café", "more"))
