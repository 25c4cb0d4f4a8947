"""What mail programs quote, in their own words, above, below and around an answer."""

import mailbox
from email.message import EmailMessage
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbr_jax.importing.left_out import LeftOut
from pbr_jax.importing.quotes import of_html, own_text
from pbr_jax.importing.tables import rows

_ANNOUNCEMENTS = {
    "Gmail, English": "On Mon, Jan 1, 2024 at 10:00 AM Ann Lee <ann@x.example> wrote:",
    "Apple Mail": "On Jan 1, 2024, at 10:00, Ann Lee <ann@x.example> wrote:",
    "Thunderbird": "On 01/01/2024 10:00, Ann Lee wrote:",
    "Mutt": "On Mon, Jan 01, 2024 at 10:00:00AM +0100, Ann Lee wrote:",
    "Gnus": "Ann Lee <ann@x.example> writes:",
    "Zoho": "---- On Mon, 01 Jan 2024 10:00:00 +0000 Ann Lee <ann@x.example> wrote ---",
    "Gmail, German": "Am Mo., 1. Jan. 2024 um 10:00 Uhr schrieb Ann Lee <ann@x.example>:",
    "Thunderbird, German": "Am 01.01.24 um 10:00 schrieb Ann Lee:",
    "Gmail, French": "Le lun. 1 janv. 2024 à 10:00, Ann Lee <ann@x.example> a écrit :",
    "Gmail, Spanish": "El lun, 1 ene 2024 a las 10:00, Ann Lee (<ann@x.example>) escribió:",
    "Gmail, Italian": "Il giorno lun 1 gen 2024 alle ore 10:00 Ann Lee <ann@x.example> ha scritto:",
    "Gmail, Portuguese": "Em seg., 1 de jan. de 2024 às 10:00, Ann Lee <ann@x.example> escreveu:",
    "Gmail, Dutch": "Op ma 1 jan 2024 om 10:00 schreef Ann Lee <ann@x.example>:",
    "Gmail, Norwegian": "man. 1. jan. 2024 kl. 10:00 skrev Ann Lee <ann@x.example>:",
    "Gmail, Finnish": "ma 1. tammik. 2024 klo 10.00 Ann Lee (ann@x.example) kirjoitti:",
    "Thunderbird, Polish": "W dniu 01.01.2024 o 10:00, Ann Lee pisze:",
    "Gmail, Czech": "po 1. 1. 2024 v 10:00 odesílatel Ann Lee <ann@x.example> napsal:",
    "Gmail, Russian": "пн, 1 янв. 2024 г. в 10:00, Ann Lee <ann@x.example>:",
    "Gmail, Turkish": "Ann Lee <ann@x.example>, 1 Oca 2024 Pzt, 10:00 tarihinde şunu yazdı:",
    "Gmail, Japanese": "2024年1月1日(月) 10:00 Ann Lee <ann@x.example>:",
    "Gmail, Chinese": "Ann Lee <ann@x.example> 于2024年1月1日周一 10:00写道：",
    "Gmail, Korean": "2024년 1월 1일 (월) 오전 10:00, Ann Lee <ann@x.example>님이 작성:",
    "Gmail, Greek": "Στις Δευ 1 Ιαν 2024 στις 10:00 π.μ., ο χρήστης Ann Lee <ann@x.example> έγραψε:",
    "a language that no list has": "Á mán., 1. jan. 2024 kl. 10:00 ritaði Ann Lee <ann@x.example>:",
}
_QUOTE = "> Could you send me the March figures?\n>\n>> At last?\n> Ann"


@pytest.mark.parametrize("announcement", _ANNOUNCEMENTS.values(), ids=_ANNOUNCEMENTS)
def test_an_answer_is_what_stands_around_a_quote(announcement: str) -> None:
    begin, space, end = announcement.partition(" <" if " <" in announcement else " Ann")
    wrapped = f"{begin}\n{(space + end).strip()}"
    assert own_text(f"I attach them.\n\nBob\n\n{announcement}\n\n{_QUOTE}\n") == "I attach them.\n\nBob"
    assert own_text(f"I attach them.\n\n{wrapped}\n{_QUOTE}\n") == "I attach them."
    assert own_text(f"{announcement}\n{_QUOTE}\n\nThey are in the folder.\n") == "They are in the folder."
    inside = own_text(
        f"Hello,\n\n{announcement}\n{_QUOTE}\n\nYes, see below.\n\n> And April?\n\nOn Friday.\n"
    )
    assert inside == "Hello,\n\nYes, see below.\n\nOn Friday."


@pytest.mark.parametrize(
    ("sender", "sent", "to", "subject"),
    [
        ("From", "Sent", "To", "Subject"),
        ("Von", "Gesendet", "An", "Betreff"),
        ("De ", "Envoyé ", "À ", "Objet "),
        ("Van", "Verzonden", "Aan", "Onderwerp"),
        ("От", "Отправлено", "Кому", "Тема"),
        ("差出人", "送信日時", "宛先", "件名"),
    ],
)
@pytest.mark.parametrize("above", ["", "________________________________\n", "-----Original Message-----\n"])
def test_headers_begin_a_quote_without_marks(
    above: str, sender: str, sent: str, to: str, subject: str
) -> None:
    day = "Monday, January 1, 2024 10:00 AM"
    names = (f"{sender}: Ann Lee <ann@x.example>", f"{sent}: {day}", f"{to}: Bob", f"{subject}: Figures")
    headers = "\n".join(names)
    assert own_text(f"April is done.\n\n{above}{headers}\n\nCould you send it?\n\nAnn\n") == "April is done."
    bold = headers.replace(f"{sender}:", f"*{sender}:*")
    assert own_text(f"April is done.\n\n{above}{bold}\n\nCould you send it?\n") == "April is done."


@pytest.mark.parametrize(
    "text",
    [
        "From: Berlin\nTo: Paris\nDate: 3 May 2024\n\nIs that the right train?",
        "On Monday I wrote:\n\nnothing at all.",
        "Meet at 10:00:\n\n* hall 3\n* hall 4",
        "Please write to ann@x.example or to:\n\nbob@x.example",
        "Part one.\n\n--------------------------------\n\nPart two.",
        "Thanks,\nI will look at it on Monday at 10:00.\n\nBest regards\nBob",
        "Am Montag schrieb mir Ann:\n\nSie kommt nicht.",
    ],
)
def test_what_only_looks_like_a_quote_stays(text: str) -> None:
    assert own_text(text) == text


def test_signatures_are_no_text() -> None:
    assert own_text("Yes.\n\n-- \nBob Ray\nTel. 123\n") == "Yes."
    assert own_text("Yes.\n\nSent from my iPhone\n\n> Well?\n") == "Yes."
    assert (
        own_text("Yes.\n\n-- \nBob Ray\n\nOn 01/01/2024 10:00, Ann wrote:\n> Well?\n\nNo.\n") == "Yes.\n\nNo."
    )


@pytest.mark.parametrize(
    ("html", "text"),
    [
        (
            '<div dir="ltr">Sent again.</div><br><div class="gmail_quote"><div class="gmail_attr">Á mánudag '
            'ritaði Ann:<br></div><blockquote class="gmail_quote">Well?</blockquote>And <b>now</b>?</div>',
            "Sent again.\n\nAnd now?",
        ),
        (
            '<p class="MsoNormal">Done.</p><p class="MsoNormal">Bob</p><div id="appendonsend"></div><hr>'
            '<div id="divRplyFwdMsg"><b>Frá:</b> Ann<br></div><div>Well?</div>',
            "Done.\nBob",
        ),
        (
            '<div>Yes.<div class="moz-cite-prefix">On 1/1/24 10:00, Ann wrote:<br></div>'
            '<blockquote type="cite"><pre>Well?\nAnn</pre></blockquote><p>No.</p>'
            '<div class="moz-signature">--<br>Bob</div></div>',
            "Yes.\n\nNo.",
        ),
        (
            'One\n  line.<blockquote style="margin:0 0 0 40px;border:none">Moved in.</blockquote>',
            "One line.\nMoved in.",
        ),
        ("<html><head><meta charset=utf-8><body>A head may be open.</html>", "A head may be open."),
        ("<head><title>t</title><style>p {}</style></head><pre>a\n  b</pre><script>x</script>", "a\n  b"),
    ],
)
def test_html_loses_what_it_quotes(html: str, text: str) -> None:
    assert own_text(of_html(html)) == text


_MARKS = ["<![if x]>", "<![endif]-->", "<![", "<!--", "-->", "<!", "<", ">"]
_TAGS = ["<p>", "</div>", "<blockquote>", "<pre>"]


@settings(max_examples=200, deadline=None)
@given(parts=st.lists(st.sampled_from(_MARKS + _TAGS) | st.text(max_size=5), max_size=12))
def test_html_of_any_kind_has_a_text(parts: list[str]) -> None:
    assert "Kept." in own_text(of_html(f"<div>Kept.</div>{''.join(parts)}"))


def test_only_prose_is_a_text_and_every_sender_is_one_person(tmp_path: Path) -> None:
    """An invitation, a mail within a mail, a text in two parts, and what a mailing list makes of senders."""
    box = mailbox.mbox(tmp_path / "t.mbox")
    date = "Sat, 3 Feb 2024 14:05:00 +0000"
    listed = [("Ann", "Reply-To"), ("Bob", "X-Original-From")]
    for name, header in listed:
        mail = EmailMessage()
        mail["From"] = f'"{name} via list" <list@x.example>'
        mail[header], mail["List-Post"] = f"{name} <{name}@x.example>", "<mailto:list@x.example>"
        mail["Subject"], mail["Date"] = "News", date
        mail.set_content(f"{name} is here.")
        mail.add_attachment("BEGIN:VCALENDAR", subtype="calendar", disposition="inline")
        mail.add_attachment("Me too.", disposition="inline")
        mail.add_attachment(f"{'_' * 47}\nlist mailing list", disposition="inline")
        mail.add_attachment("A file.", filename="a.txt")
        inner = EmailMessage()
        inner.set_content("Not mine.")
        mail.add_attachment(inner)
        box.add(mail)
    box.close()
    found = [(row.values["user"], row.values["output"]) for row in rows(tmp_path / "t.mbox", LeftOut())]
    assert found == [(f"{name.lower()}@x.example", f"{name} is here.\n\nMe too.") for name, _ in listed]
