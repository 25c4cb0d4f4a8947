"""One bad answer does not end a run: it is named, counted by its reason, not kept, and not scored."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from servers import Server, fake_answer

from pbr_jax import compare, run
from pbr_jax import config as schema
from pbr_jax.base.types import UserError
from pbr_jax.config import Config, override
from pbr_jax.llm import naming, usage
from pbr_jax.llm.answers_file import Answers
from pbr_jax.llm.cache import Cached
from pbr_jax.llm.http.backend import HTTPLLM
from pbr_jax.llm.protocol import BadAnswer, Sampling, Unanswered


def say(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def load(server: Server, **fields: Any) -> HTTPLLM:
    given = {"backend": "http", "model": "m", "url": server.url, "retries": 0, "concurrency": 2, **fields}
    return HTTPLLM(schema.LLM(**given), pause=lambda stop, seconds: None)


def chat(content: Any, reason: Any = "stop", **beside: Any) -> Any:
    return {"choices": [{"message": {"content": content, **beside}, "finish_reason": reason}]}


# -- Every reply ends in one of two ways ---------------------------------------------------------

TEXTS = st.text(max_size=12) | st.sampled_from(["", " \n", "Half \ud83d", "<think>no", "yes"])
PARTS = st.lists(
    st.one_of(
        TEXTS,
        st.none(),
        st.integers(),
        st.fixed_dictionaries({"type": st.sampled_from(["text", "thinking", "refusal"]), "text": TEXTS}),
        st.fixed_dictionaries({"type": st.just("refusal"), "refusal": TEXTS}),
    ),
    max_size=3,
)
CONTENTS = st.one_of(TEXTS, PARTS, st.none(), st.integers(), st.booleans())
REASONS = st.one_of(
    st.sampled_from(["stop", "length", "content_filter", "SAFETY", "tool_calls", "", None]),
    st.text(max_size=4),
)
COUNTS = st.one_of(st.integers(-2, 400), st.none(), st.floats(allow_nan=False, allow_infinity=False))
USAGE = st.fixed_dictionaries(
    {},
    optional={
        "prompt_tokens": COUNTS,
        "completion_tokens": COUNTS,
        "prompt_tokens_details": st.none() | st.fixed_dictionaries({"cached_tokens": COUNTS}),
    },
)
CHOICES = st.fixed_dictionaries(
    {
        "message": st.fixed_dictionaries(
            {"content": CONTENTS}, optional={"refusal": TEXTS, "reasoning": TEXTS}
        )
    },
    optional={"finish_reason": REASONS, "error": st.just({"code": 502})},
)
ERRORS = st.fixed_dictionaries(
    {"message": TEXTS, "code": st.sampled_from(["content_filter", "x", 400, None])}
)
REPLIES = st.one_of(
    st.tuples(
        st.just(200),
        st.fixed_dictionaries(
            {"choices": st.one_of(st.lists(CHOICES, max_size=2), st.none())}, optional={"usage": USAGE}
        ),
    ),
    st.tuples(st.sampled_from([400, 413, 422]), st.fixed_dictionaries({"error": ERRORS})),
)


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(st.lists(REPLIES, min_size=1, max_size=6))
def test_each_question_ends_in_an_answer_that_is_kept_or_is_counted_by_its_reason(
    tmp_path_factory: pytest.TempPathFactory, replies: list[Any]
):
    file = tmp_path_factory.mktemp("kept") / "llm.sqlite"
    prompts = [say(f"question {n}") for n in range(len(replies))]

    def answer(path: str, request: Any) -> tuple[int, Any]:
        return replies[int(request["messages"][-1]["content"].split()[1])]

    with Server(answer) as server, usage.metered() as counts:
        found = Cached(load(server, max_failed=1.0), file).generate(prompts, Sampling(8))
    missing = [n for n, text in enumerate(found) if isinstance(text, Unanswered)]
    assert counts["server_unusable"] == len(missing)
    assert all(text == "" and text.reason for text in found if isinstance(text, Unanswered))
    assert [text.encode().decode() for text in found] == found
    with Server(fake_answer) as server:  # the kept ones are not asked again, the others are
        again = Cached(load(server), file).generate(prompts, Sampling(8))
        asked = {request.body["messages"][-1]["content"] for request in server.requests}
    assert asked == {f"question {n}" for n in missing}
    assert [again[n] for n in range(len(again)) if n not in missing] == [
        text for text in found if not isinstance(text, Unanswered)
    ]


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ((200, chat("", "content_filter")), "filter"),
        ((400, {"error": {"message": "filtered", "code": "content_filter", "status": 400}}), "filter"),
        ((403, {"error": {"message": "Your input was flagged", "code": 403}}), "filter"),
        ((200, {"error": {"message": "content management policy", "code": 400}}), "filter"),
        ((200, chat(None, refusal="I cannot.")), "refusal"),
        ((200, chat(None)), "no_text"),
        ((200, chat("a", "length")), "cut_off"),
        ((200, chat("x" * 4000)), "no_limit"),
        ((400, {"error": {"message": "maximum context length is 4 tokens"}}), "too_long"),
        ((400, {"error": {"message": "no such thing"}}), "refused"),
        ((200, {"choices": []}), "no_choices"),
    ],
)
def test_the_reason_is_the_servers(reply: Any, reason: str):
    def answer(path: str, request: Any) -> tuple[int, Any]:
        return reply if request["messages"][-1]["content"] == "bad" else (200, chat("fine"))

    with Server(answer) as server:
        fine, bad = load(server, max_failed=0.5).generate([say("good"), say("bad")], Sampling(8))
    assert fine == "fine"
    assert isinstance(bad, Unanswered)
    assert bad.reason == reason


@pytest.mark.parametrize(("content", "text"), [("Half \ud83d", "Half ?"), ("\udc00a\ud83d\ude00", "?a😀")])
def test_half_a_character_is_a_question_mark(file: Path, content: str, text: str):
    with Server(lambda path, request: (200, chat(content, "length"))) as server:
        assert Cached(load(server), file).generate([say("a")], Sampling(4)) == [text]
    assert "?" in text


# -- The limit -----------------------------------------------------------------------------------


def test_over_the_limit_all_others_are_answered_and_the_questions_are_named(file: Path):
    def answer(path: str, request: Any) -> tuple[int, Any]:
        text = request["messages"][-1]["content"]
        return 200, chat("", "content_filter") if text in ("q3", "q7") else chat("fine")

    prompts, ids = [say(f"q{n}") for n in range(20)], [f"id{n}" for n in range(20)]
    with Server(answer) as server:
        llm = Cached(load(server, max_failed=0.05), file)
        with (
            pytest.raises(
                UserError, match=r"2 of 20 .* over llm.max_failed 0.05; .* 'id3', 'id7'$"
            ) as caught,
            naming(ids),
        ):
            llm.generate(prompts, Sampling(4))
        assert "withheld by a filter" in str(caught.value)
        assert len(server.requests) == 20
        found = Cached(load(server, max_failed=0.1), file).generate(prompts, Sampling(4))
        assert len(server.requests) == 22
    assert [n for n, text in enumerate(found) if isinstance(text, Unanswered)] == [3, 7]


def test_where_every_answer_is_bad_only_some_are_asked_for():
    with Server(lambda path, request: (400, {"error": {"message": "wrong model"}})) as server:
        with pytest.raises(BadAnswer, match="wrong model"):
            load(server, max_failed=1.0).generate([say(f"{n}") for n in range(200)], Sampling(4))
        assert len(server.requests) < 40


# -- A run ---------------------------------------------------------------------------------------


@pytest.fixture
def config(write_tweets: Callable[..., Path], fresh_cache: None) -> Callable[..., Config]:
    root = write_tweets({f"u{n:02}": [f"i love tea day {n}", "cats"] for n in range(24)})

    def made(server: Server, model: str, **fields: Any) -> Config:
        base = {"benchmark.name": "lamp_7", "benchmark.root": str(root), "retrieve.method": "recency"}
        served = {"llm.backend": "http", "llm.model": model, "llm.url": server.url, "llm.retries": 0}
        return override(Config(), {**base, **served, "eval.resamples": 20, "system": model, **fields})

    return made


@pytest.mark.long
def test_a_run_goes_on_without_one_question_which_comparisons_leave_out(config, tmp_path: Path):
    seen: list[str] = []

    def answer(path: str, request: Any) -> tuple[int, Any]:
        text = str(request["messages"])
        seen.append(text)
        withheld = request["model"] == "shy" and text == seen[0]
        return (400, {"error": {"code": "content_filter"}}) if withheld else (200, chat("i love tea"))

    with Server(answer) as server:
        shy = run(config(server, "shy", **{"llm.concurrency": 1}), tmp_path / "shy")
        bold = run(config(server, "bold"), tmp_path / "bold")
    (lost,) = (line for line in shy.records() if "unanswered" in line)
    assert (lost["unanswered"], lost["metrics"], lost["prediction"]) == ("filter", {}, "")
    assert shy.values["counts"]["unanswered"] == shy.values["counts"]["server_unusable"] == 1
    assert (shy.values["n"], bold.values["n"]) == (23, 24)
    [note] = [note for note in shy.values["notes"] if "no answer that can be used (filter 1)" in note]
    assert f": {lost['id']}; --llm.ask_again" in note
    found = compare(shy, bold)
    assert found.questions == 23
    assert {one.value for one in found.differences.values()} == {0.0}


def test_asking_again_makes_new_answers_and_keeps_the_old_ones(config, tmp_path: Path):
    said = ["old"]
    with Server(lambda path, request: (200, chat(said[0]))) as server:

        def predictions(again: int, out: str) -> set[str]:
            results = run(config(server, "m", **{"llm.ask_again": again}), tmp_path / out)
            return {line["prediction"] for line in results.records()}

        assert predictions(0, "a") == {"old"}
        said[0] = "new"
        assert predictions(0, "b") == {"old"}
        assert predictions(1, "c") == {"new"}
        asked = len(server.requests)
        assert (predictions(0, "d"), predictions(1, "e")) == ({"old"}, {"new"})
        assert len(server.requests) == asked == 48


def test_the_answers_of_one_model_are_erased_by_its_name(file: Path):
    with Server(lambda path, request: (200, chat(request["model"]))) as server:

        def asked(name: str) -> int:
            before = len(server.requests)
            Cached(load(server, model=name), file, name=name).generate([say("a"), say("b")], Sampling(4))
            return len(server.requests) - before

        assert [asked("one"), asked("two"), asked("one")] == [2, 2, 0]
        with pytest.raises(UserError, match=r"no answers that are known to be of 'three'; .* one, two$"):
            Answers(file).erase_model("three")
        assert Answers(file).erase_model("one") == 2
        assert [asked("two"), asked("one"), asked("one")] == [0, 2, 0]
