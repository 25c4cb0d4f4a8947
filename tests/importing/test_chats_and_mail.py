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
from pbr_jax.importing.columns import Columns
from pbr_jax.importing.left_out import LeftOut
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
    left_out = LeftOut()
    assert list(rows([{"messages": [message]}], left_out)) == []
    with pytest.raises(UserError) as error:
        left_out.refuse()
    assert told in str(error.value)


_ASKED, _ANSWER = {"type": "text", "text": "Where?"}, {"type": "text", "text": "In hall 3."}
_SERVER = [{"type": "text", "text": "Hm."}, {"type": "server_tool_use", "name": "web_search"}, _ANSWER]
_FORMS: dict[str, dict[str, Any]] = {
    "OpenAI, a response to a text": {
        "input": "Where?",
        "output": [
            {"type": "function_call_output", "call_id": "c", "output": "3"},
            {"type": "message", "role": "assistant", "content": [{**_ANSWER, "type": "output_text"}]},
        ],
        "text": {"format": {"type": "text"}},
    },
    "Anthropic, a tool of the server": {
        "messages": [{"role": "user", "content": [_ASKED]}, {"role": "assistant", "content": _SERVER}]
    },
    "Gemini": {
        "contents": [
            {"role": "user", "parts": [{"text": "Where?"}]},
            {"role": "model", "parts": [{"functionCall": {"name": "f"}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "f"}}]},
            {"role": "model", "parts": [{"text": "In hall 3."}]},
        ]
    },
    "Claude's export": {
        "chat_messages": [
            {"sender": "human", "text": "Where?", "content": [_ASKED]},
            {"sender": "assistant", "text": "In hall 3.", "content": []},
        ]
    },
}


@pytest.mark.parametrize(("form", "others"), [*zip(_FORMS, (1, 0, 2, 0))])
def test_the_answer_of_every_form_is_what_follows_the_last_call(form: str, others: int) -> None:
    """Other forms: `test_left_out`."""
    left_out = LeftOut()
    (row,) = rows([_FORMS[form] | {"metadata": {"user_id": "ann"}}], left_out)
    assert (row.text("user"), row.text("input"), row.text("output")) == ("ann", "Where?", "In hall 3.")
    assert left_out.count == others


def test_fields_of_a_record_are_columns_of_its_turns(tmp_path: Path) -> None:
    accounts = [
        {"account": {"id": f"a{i % 2}"}, "topic": "tea", "created": 1_700_000_000 + i} for i in range(4)
    ]
    chats = [said("Hi", "Hello", choices=["A", "B"], **account) for account in accounts]
    made = import_table(chats, tmp_path / "out", Columns(user="account.id"))
    assert (made.users, made.columns.category) == (2, "topic")


def test_messages_of_a_table_are_in_the_order_of_time() -> None:
    def message(role: str, day: int, **keys: str) -> dict[str, Any]:
        return {"conversation": "c", "role": role, "text": role, "time": f"2024-01-0{day}", **keys}

    left_out = LeftOut()
    assert list(rows([message("user", 2), message("assistant", 1)], left_out)) == []
    with pytest.raises(
        UserError, match=r"row 2: found '2024-01-01', wanted no earlier time .* sort the table"
    ):
        left_out.refuse()
    left_out = LeftOut()
    table = [
        message("user", 1),
        message("assistant", 2, conversation=""),
        message("boss", 3),
        message("ai", 4),
    ]
    assert [row.values["output"] for row in rows(table, left_out)] == ["ai"]
    assert left_out.lines() == (
        "1 messages without a conversation; the first is row 2",
        "1 messages of a role that is neither a user's nor an assistant's; the first is row 3, role 'boss'",
    )


def test_a_question_is_of_the_user_who_asked_it() -> None:
    """Users may share a conversation, and a record may name other people than its user."""
    said = [("ann", "a"), ("bob", "b"), ("", "more"), ("bot", ""), ("ann", ""), ("bot", "so")]
    table = [
        {"conversation": "c", "role": "assistant" if who == "bot" else "user", "user": who, "text": text}
        for who, text in said
    ]
    left_out = LeftOut()
    assert [(row.text("user"), row.text("input")) for row in rows(table, left_out)] == [("bob", "b\nmore")]
    assert left_out.count == 3
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    (row,) = rows([{"agent": {"username": "desk"}, "id": "c7", "messages": messages}], left_out)
    assert row.text("user") == "c7"
    joined = {"user": {"id": "ann", "created_at": "2019-01-01"}, "created": "2024-01-01"}
    (row,) = rows([{**joined, "messages": messages}], left_out)
    assert (row.text("user"), row.text("time")) == ("ann", "2024-01-01")


def test_nameless_conversations_of_two_files_are_two_histories(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(said("Hi", "Hello")))
    assert [row.text("user") for row in rows(tmp_path, LeftOut())] == ["a.jsonl: row 1", "b.jsonl: row 1"]


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
    found = [row.values for row in rows(box(tmp_path / "t.mbox", [*letters, html]), LeftOut())]
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


def test_odd_mail(tmp_path: Path) -> None:
    (tmp_path / "t.mbox").write_text("Dear all")
    with pytest.raises(UserError, match="wanted an mbox file"):
        list(rows(tmp_path / "t.mbox", LeftOut()))
    (tmp_path / "u.mbox").write_bytes(b"From a\nFrom: a@b.c\nSubject: s\nDate: yesterday\n\nx\n")
    with pytest.raises(UserError, match=r"found no row, .* 1 messages without a date that can be read"):
        import_table(tmp_path / "u.mbox", tmp_path / "out")
    odd = b"From a\nFrom: a@b.c\nDate: Sat, 3 Feb 2024 14:05:00 +0000\nSubject: s\n"
    odd += b"Content-Type: text/plain; charset=klingon\n\ncaf\xc3\xa9 \xff\n"
    (tmp_path / "v.mbox").write_bytes(odd)
    (row,) = rows(tmp_path / "v.mbox", LeftOut())
    assert row.values["output"] == "café �"


@pytest.mark.parametrize(
    "header",
    [
        b"In-Reply-To: <\xff>",
        b"Message-ID: <\xff>",
        b"Status: \xff",
        b"X-Status: \xff",
        b"Content-Type: text/plain; charset=idna",
        b'Content-Type: text/plain; charset="a\x00b"',
    ],
)
def test_headers_that_are_no_text_stop_nothing(tmp_path: Path, header: bytes) -> None:
    odd = b"From a\nFrom: a@b.c\nDate: Sat, 3 Feb 2024 14:05:00 +0000\nSubject: s\n" + header
    (tmp_path / "t.mbox").write_bytes(odd + b"\n\ncaf\xc3\xa9\n\n" + odd + b"\n\nmore\n")
    inputs, outputs = zip(
        *((row.values["input"], row.values["output"]) for row in rows(tmp_path / "t.mbox", LeftOut()))
    )
    assert (inputs, outputs) == (("s", "s"), ("café", "more"))


def test_mailboxes_of_a_folder_are_read_together(tmp_path: Path) -> None:
    """An answer finds its question in another box, and a copy of a message counts once."""
    (tmp_path / "mail").mkdir()
    asked = letter("ann@x.org", "Is it on?", subject="Party", message_id="<1@x>")
    draft = letter("bob@y.org", "It is.", subject="Re: Party", message_id="<2@x>", x_gmail_labels="Entwürfe")
    answer = letter("bob@y.org", "It is.", subject="Re: Party", message_id="<2@x>", references="<0@x> <1@x>")
    box(tmp_path / "mail" / "All.mbox", [draft, answer])
    box(tmp_path / "mail" / "Inbox.mbox", [asked])
    box(tmp_path / "mail" / "Sent.mbox", [answer])
    left_out = LeftOut()
    found = [(row.values["user"], row.values["input"]) for row in rows(tmp_path / "mail", left_out)]
    assert found == [("bob@y.org", "Is it on?"), ("ann@x.org", "Party")]
    assert [line.partition(";")[0] for line in left_out.lines()] == [
        "1 drafts",
        "1 copies of a message with the same id",
    ]


def test_a_copy_is_left_out_only_where_the_other_is_a_row(tmp_path: Path) -> None:
    """The first of three has no date, the others repeat its text."""
    letters = [letter("ann@x.org", "Yes.", subject="s", message_id="<1@x>") for _ in range(3)]
    del letters[0]["Date"]
    left_out = LeftOut()
    assert len(list(rows(box(tmp_path / "t.mbox", letters), left_out))) == 1
    assert [line[:12] for line in left_out.lines()] == ["1 messages w", "1 copies of "]


@pytest.mark.parametrize(
    ("header", "address"),
    [
        ('"Müller, Anna" <Anna@x.org>', "anna@x.org"),
        ("=?utf-8?q?M=C3=BCller=2C_Anna?= <anna@x.org>", "anna@x.org"),
        ("=?utf-8?q?M=C3=BCller=2C_Anna_=3Canna=40x=2Eorg=3E?=", "anna@x.org"),
        ("Müller, Anna <anna@x.org>", "anna@x.org"),
        ('"bob@y.org" <anna@x.org>', "anna@x.org"),
        ("anna@x.org (Anna, Müller)", "anna@x.org"),
        ("anna@x.org, bob@y.org", "anna@x.org"),
        ("Müller, Anna", None),
    ],
)
def test_a_sender_is_an_address(tmp_path: Path, header: str, address: str | None) -> None:
    (tmp_path / "t.mbox").write_text(
        f"From a\nFrom: {header}\nDate: Sat, 3 Feb 2024 14:05:00 +0000\nSubject: s\n\nHello\n",
        encoding="utf-8",
    )
    assert [row.values["user"] for row in rows(tmp_path / "t.mbox", LeftOut())] == (
        [address] if address else []
    )
