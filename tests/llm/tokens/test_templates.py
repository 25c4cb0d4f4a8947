"""Chat templates against transformers' own; what takes too much is stopped."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbr_jax.base.types import UserError
from pbr_jax.llm.tokens import templates
from pbr_jax.models.thinking import after_thinking

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
    template = "{{ messages[0].content }}{% if not enable_thinking %}<think></think>{% endif %}"
    assert templates.render(template, [{"role": "user", "content": "x"}], {}) == "x<think></think>"


PARTS = st.sampled_from(["kept", "trimmed", "dropped", "refused"])
OPENED = [
    "",
    "<|a|>",
    "<|a|>\n<think>\n",
    "[THINK]",
    "<|START_THINKING|>",
    "\n<seed:think>",
    "<think></think>",
]


def made(parts, opened):
    """A template that treats each role in its own way, and what it opens the answer with."""
    ways = {
        "kept": "<{{ m.role }}>{{ m.content }};", "trimmed": "<{{ m.role }}>{{ m.content | trim }};",
        "dropped": "", "refused": "{{ raise_exception('not ' + m.role) }}",
    }  # fmt: skip
    body = "".join(f"{{% if m.role == '{role}' %}}{ways[way]}{{% endif %}}" for role, way in parts.items())
    end = f"{{% if add_generation_prompt %}}{opened}{{% endif %}}"
    return f"{{% for m in messages %}}{body}{{% endfor %}}{end}"


@given(
    st.fixed_dictionaries(dict.fromkeys(("system", "user", "assistant"), PARTS)),
    st.sampled_from(OPENED),
    st.lists(st.sampled_from(["system", "user", "assistant"]), min_size=1, max_size=4),
)
def test_every_message_is_written_or_the_template_refused(parts, opened, roles):
    """And no answer begins inside of thinking."""
    messages = [{"role": role, "content": f" says {n}, "} for n, role in enumerate(roles)]
    merges = roles[:2] == ["system", "user"]
    held = [role for n, role in enumerate(roles) if not (merges and n == 0)]
    template = made(parts, opened)
    if not all(parts[role] in ("kept", "trimmed") for role in held):
        with pytest.raises(UserError, match=r"with roles .*(not|it leaves out what the) (system|user|assis)"):
            templates.render(template, messages, {})
        return
    text = templates.render(template, messages, {})
    places = [text.index(message["content"].strip()) for message in messages]
    assert places == sorted(places)
    assert after_thinking(text.rpartition(";")[2] + "\nanswer") is not None
    if merges and parts["system"] in ("dropped", "refused"):
        assert text.startswith(("<user> says 0, \n\n says 1,", "<user>says 0, \n\n says 1,"))
    if "think" not in opened.lower() or "</" in opened:
        assert text.endswith(opened)


def test_thinking_that_no_mark_is_known_to_end_is_refused():
    template = made(dict.fromkeys(("system", "user", "assistant"), "kept"), "<|channel|>analysis<|message|>")
    with pytest.raises(UserError, match="opens thinking before the answer, and no mark is known"):
        templates.render(template, HELLO, {})
    assert templates.render(template, HELLO, {}, opened=False) == "<user>hello;"


def test_a_closed_thought_stands_as_qwen3_writes_it():
    template = made({"user": "kept"}, "<|a|>\n<think>\n")
    assert templates.render(template, HELLO, {}) == "<user>hello;<|a|>\n<think>\n\n</think>\n\n"


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
