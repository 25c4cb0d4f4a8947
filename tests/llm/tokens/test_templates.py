"""Chat templates against transformers' own; what takes too much is stopped."""

import threading

import pytest

from pbr_jax.base.types import UserError
from pbr_jax.llm.tokens import templates

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}\n"
    "  {% if m.role not in ['user', 'assistant'] %}{{ raise_exception('no role ' + m.role) }}{% endif %}\n"
    "{% if m.content == 'skip' %}{% continue %}{% endif %}\n"
    "[{{ m.role }}] {{ m.content | trim }}{{ {'a': '<é>'} | tojson }}\n"
    "{% generation %}g{% endgeneration %}\n"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
CHATS = [
    [{"role": "user", "content": "  Hello \n"}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "skip"}],
    [{"role": "user", "content": "a < b & 'c'"}, {"role": "assistant", "content": "{{ 1 }}"}],
]


@pytest.mark.parametrize("messages", CHATS)
def test_templates_render_as_in_transformers(messages):
    from transformers.utils.chat_template_utils import render_jinja_template

    [expected], _ = render_jinja_template(
        [messages], chat_template=TEMPLATE, add_generation_prompt=True, bos_token="<s>"
    )
    assert templates.render(TEMPLATE, messages, {"bos_token": "<s>"}) == expected


def test_half_a_character_that_a_template_writes_is_one_clear_line():
    template = "{{ messages[0].content }}{{ '\\ud83d' }}"
    with pytest.raises(UserError, match=r"^here: what the chat template writes holds half of .*U\+D83D"):
        templates.render(template, [{"role": "user", "content": "x"}], {}, source="here")


def test_a_template_that_refuses_is_a_user_error():
    with pytest.raises(UserError, match="no role system"):
        templates.render(TEMPLATE, [{"role": "system", "content": "x"}], {"bos_token": ""})
    with pytest.raises(UserError, match="chat template cannot write"):
        templates.render("{% for %}", [{"role": "user", "content": "x"}], {})


GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n{{ m['content'] | trim }}"
    "<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


def test_a_system_message_that_the_template_refuses_opens_the_users_turn():
    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}
    answer = {"role": "assistant", "content": "4"}
    text = templates.render(GEMMA, [system, user, answer, user], {"bos_token": "<bos>"})
    assert text == (
        "<bos><start_of_turn>user\nBe brief.\n\n2 + 2?<end_of_turn>\n<start_of_turn>model\n4<end_of_turn>\n"
        "<start_of_turn>user\n2 + 2?<end_of_turn>\n<start_of_turn>model\n"
    )


@pytest.mark.parametrize(
    ("roles", "reason"),
    [
        (["system"], "System role not supported"),
        (["system", "assistant"], "System role not supported"),
        (["system", "user", "user"], "System role not supported"),
        (["user", "user"], "Roles must alternate"),
    ],
)
def test_other_refusals_name_the_roles_as_given(roles, reason):
    messages = [{"role": role, "content": "x"} for role in roles]
    with pytest.raises(UserError, match=reason) as error:
        templates.render(GEMMA, messages, {"bos_token": ""})
    assert str(roles) in str(error.value)


def test_a_system_message_that_the_template_takes_stays_a_turn():
    template = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
    messages = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
    assert templates.render(template, messages, {}) == "system:a;user:b;"


def test_models_that_think_are_asked_not_to():
    template = "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    assert templates.render(template, [{"role": "user", "content": "x"}], {}) == "<think></think>"


@pytest.mark.parametrize(
    "attack",
    ["''.__class__.__mro__", "messages.append(1)", "cycler.__init__.__globals__", "namespace(__class__=1)"],
)
def test_templates_run_in_a_sandbox(attack):
    with pytest.raises(UserError, match="chat template cannot write"):
        templates.render("{{ " + attack + " }}", [{"role": "user", "content": "x"}], {})


HELLO = [{"role": "user", "content": "hello"}]
ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
DOUBLED = "{% set n = namespace(x='abc') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}"
PLAIN = "{{ messages[0].content }}"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (ENDLESS, "more than a second"),
        ("{% for i in range(10 ** 6) %}x{% endfor %}", "Range too big"),
        ("{% for i in range(99999) %}{{ 'x' * 200 }}{% endfor %}", "more than 10000000 characters"),
        ("{{ 'x' * 10 ** 11 }}", "more than 10000000 characters"),
        (DOUBLED, "more than 10000000 characters"),
        (DOUBLED.replace("~", "+"), "more than 10000000 characters"),
        ("{{ 'x' | center(10 ** 10) }}", "more than 10000000 characters"),
        ("{{ 'x'.ljust(10 ** 10) }}", "more than 10000000 characters"),
        ("{{ '%*d' % (10 ** 10, 1) }}", "more than 10000000 characters"),
        ("{{ 7 ** (10 ** 8) }}", "a number of more than 10000 bits"),
        (
            "{% macro f(n) %}{{ f(n + 1) if n < 60 }}{{ f(n + 1) if n < 60 }}{% endmacro %}{{ f(0) }}",
            "a second",
        ),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
    ],
)
def test_a_template_that_takes_too_much_is_one_clear_line(template, reason):
    for messages in (HELLO, [{"role": "system", "content": "be brief"}, *HELLO]):
        with pytest.raises(UserError, match=reason) as error:
            templates.render(template, messages, {}, source="m.gguf")
        assert str(error.value).startswith("m.gguf: the chat template ")
        assert "\n" not in str(error.value)
    assert templates.render(PLAIN, HELLO, {}) == "hello"  # the next one is read as ever


def test_a_template_is_stopped_in_any_thread():
    found = []

    def work():
        try:
            templates.render(ENDLESS, HELLO, {})
        except UserError as error:
            found.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert "more than a second" in found[0]


def test_today_is_a_day_that_is_given():
    """Else a prompt would be another tomorrow, and its answer not found."""
    template = "{{ strftime_now('%d %b %Y') }}"
    assert templates.render(template, [], {}) == "26 Jul 2024"
    assert templates.render(template, [], {}, date="2031-02-03") == "03 Feb 2031"
