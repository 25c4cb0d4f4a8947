"""Selections that ask a language model: right scores, orders that lose nothing, and what they count."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pbr_jax.base.types import Candidate, Document, Example, UserError
from pbr_jax.config import Config, override
from pbr_jax.experiment.plan import Plan
from pbr_jax.llm.engine.jax_backend import JaxLLM
from pbr_jax.methods import select
from pbr_jax.methods.select.judging import _windows, calibrated, permutation
from pbr_jax.pipeline import Query, Ranking, Tally
from pbr_jax.tasks import released
from pbr_jax.text.judging import NO, YES, Writer

torch: Any = pytest.importorskip("torch")
WORDING = released("lamp_4").prompt.own
TEXTS = ["tea is good", "football today", "cats and tea", "violins", "a day about cats"]


def ranking(texts: list[str], user: str = "me") -> Ranking:
    return [
        Candidate(Document(str(i), user, text, {"text": text, "title": f"title {i}"}), -float(i), i)
        for i, text in enumerate(texts)
    ]


def asked(n: int) -> tuple[list[Example], list[Query]]:
    examples = [Example(f"q{i}", "me", f"query {i}", "in", "t") for i in range(n)]
    return examples, [Query((example.query,)) for example in examples]


def chosen(
    method: Any, llm: Any, rankings: list[Ranking], tally: Tally | None = None
) -> list[list[Candidate]]:
    slot = method.slot(tally or Tally(), llm=llm, wording=WORDING)
    return slot(*asked(len(rankings)), rankings)


@pytest.fixture(scope="module")
def llm(tiny_models) -> JaxLLM:
    return JaxLLM(Path(tiny_models["llm.model"]), batch_size=4)


class Says:
    """A language model of which only the answers matter."""

    fingerprint = "says"

    def __init__(self, answer: Any) -> None:
        self.answer, self.seen = answer, []

    def generate(self, prompts: Any, *_: Any) -> list[str]:
        self.seen += prompts
        return [str(self.answer(prompt) if callable(self.answer) else self.answer) for prompt in prompts]

    def score(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("nothing is scored")

    def render(self, prompt: Any) -> str:
        return str(prompt)

    def count(self, text: str) -> int:
        return len(text.split())

    def truncate(self, text: str, tokens: int) -> str:
        return " ".join(text.split()[:tokens])

    def num_tokens(self, prompt: Any) -> int:
        return sum(self.count(message["content"]) for message in prompt)


# --- orders that a model writes --------------------------------------------------------------------


@given(st.text(max_size=60) | st.from_regex(r"(\[\d{1,2}\]( > )?){0,9}", fullmatch=True), st.integers(1, 25))
@example("[2] > [2] > [9] > [0]", 3)
@example("I would put 3 first, then 1.", 3)
@example("１２ > ٣", 3)
@settings(max_examples=300, deadline=None)
def test_every_answer_is_an_order_that_loses_no_document(text: str, count: int):
    order, faults = permutation(text, count)
    assert sorted(order) == list(range(count))
    assert set(faults) <= {"unreadable", "missing", "repeated", "out_of_range"}
    if "unreadable" in faults:
        assert order == list(range(count))


@pytest.mark.parametrize(
    ("text", "order", "faults"),
    [
        ("[2] > [3] > [1]", [1, 2, 0], []),
        ("2 > 3 > 1", [1, 2, 0], []),
        ("Of the 3 records: [3] > [1] > [2]", [2, 0, 1], []),
        ("[3] > [1", [2, 0, 1], ["missing"]),
        ("[2, 3] then [1]", [1, 2, 0], []),
        ("<think>[1] or [2]?</think>[3] > [1] > [2]", [2, 0, 1], []),
        ("[1] or [2]?</think>[3] > [1] > [2]", [2, 0, 1], []),
        ("◁think▷[1]?◁/think▷[3] > [1] > [2]", [2, 0, 1], []),
        ("<think>[3] > [2] > [1]", [0, 1, 2], ["unreadable"]),
        ("[2] > [2] > [1] > [3]", [1, 0, 2], ["repeated"]),
        ("[7] > [2] > [1] > [3]", [1, 0, 2], ["out_of_range"]),
        ("the last one seems best", [0, 1, 2], ["unreadable"]),
        ("", [0, 1, 2], ["unreadable"]),
        ("[0] > [99]", [0, 1, 2], ["unreadable", "out_of_range"]),
    ],
)
def test_orders_are_read_and_their_faults_named(text: str, order: list[int], faults: list[str]):
    assert permutation(text, 3) == (order, faults)


@given(st.integers(0, 70), st.integers(2, 20), st.data())
@settings(max_examples=200, deadline=None)
def test_windows_cover_every_candidate_from_the_end(count: int, window: int, data: Any):
    step = data.draw(st.integers(1, window))
    spans = _windows(count, window, step)
    if count < 2:
        assert spans == []
        return
    assert set(itertools.chain.from_iterable(range(a, b) for a, b in spans)) == set(range(count))
    assert spans[0][1] == count
    assert spans[-1][0] == 0
    assert all(0 < b - a <= window for a, b in spans)
    assert all(after[1] == max(2, before[1] - step) for before, after in itertools.pairwise(spans))
    assert all(b - a > 1 for a, b in spans)


def best_in(words: list[str]) -> Any:
    """A model that orders records as the words do that they hold."""

    def answer(prompt: Any) -> str:
        records = [m["content"] for m in prompt if m["role"] == "user" and m["content"].startswith("[")]
        keys = [next(i for i, word in enumerate(words) if word in text.split()) for text in records]
        return " > ".join(f"[{i + 1}]" for i in np.argsort(keys, kind="stable"))

    return answer


def test_what_is_good_rises_through_the_windows_to_the_front():
    words = [f"w{i}" for i in range(45)]
    texts = words[::-1]  # the best one last
    llm, tally = Says(best_in(words)), Tally()
    (found,) = chosen(select.RankGPT(k=5), llm, [ranking(texts)], tally)
    # As many as windows have in common come up from the end.
    assert [c.document.text for c in found[:10]] == words[:10]
    assert len(found) == 45
    assert tally.counts["select_calls"] == 4
    assert tally.counts["select_orders"] == 4
    assert tally.counts["select_prompt_tokens"] > 45 * 3
    (found,) = chosen(select.RankGPT(k=5, window=20, step=20), Says(best_in(words)), [ranking(texts)])
    assert [c.document.text for c in found[:3]] != words[:3]


def test_unreadable_orders_keep_the_ranking_and_are_counted():
    tally = Tally()
    found = chosen(select.RankGPT(), Says("sorry"), [ranking(TEXTS), ranking([]), ranking(["one"])], tally)
    assert [[c.row for c in each] for each in found] == [[0, 1, 2, 3, 4], [], [0]]
    assert dict(tally.counts) == {
        "select_calls": 1,
        "select_prompt_tokens": tally.counts["select_prompt_tokens"],
        "select_answer_tokens": 1,
        "select_orders": 1,
        "select_orders_unreadable": 1,
    }


def test_a_long_record_is_cut_to_its_words_and_all_to_the_tokens():
    write = Writer(WORDING, 7, 60, Says("").count, Says("").truncate)
    documents = [c.document for c in ranking(["word " * 50, "short"])]
    query, texts = write.fitted("query " * 100, documents)
    assert len(query.split()) <= 30
    assert len(texts[0].split()) <= 7
    assert "short" in texts[1]
    write = Writer(WORDING, 300, 40, Says("").count, Says("").truncate)
    _, texts = write.fitted("q", documents)
    assert sum(len(text.split()) for text in texts) <= 40


def test_what_documents_are_called_in_prompts():
    write = Writer(WORDING, 300, 2048, Says("").count, Says("").truncate)
    owned = [c.document for c in ranking(TEXTS[:2])]
    shared = [replace(document, user_id="", shared=True) for document in owned]
    (first,) = write.fitted("q", owned[:1])[1]
    assert write.is_relevant("q", owned[0])[0]["content"] == (
        f"A record of a user's history:\n{first}\n\nA new request of the same user:\nq\n\n"
        "Does the record help to answer the request the way this user would? Answer yes or no."
    )
    assert write.asks_for("q", owned[0])[0][0]["content"] == (
        f"A record of a user's history:\n{first}\n\nWrite a request of this user that the record helps with."
    )
    prompt = write.ranks("q", owned)
    assert [m["content"] for m in prompt[1:3]] == ["Show me the records.", f"[1] {first}"]
    assert prompt[3]["content"] == "I have read record [1]."
    assert prompt[0]["content"] == (
        "You are to rank 2 records of a user's history, each under a number in brackets, by how much they "
        "help with this request of the user: q"
    )
    assert prompt[-1]["content"] == (
        "The request: q\nRank the 2 records above, the most helpful first. Write their numbers in this form: "
        "[2] > [1] > ... Write nothing else."
    )
    (looked,), spans, asked = write.looked_at("q", owned)
    assert looked["content"].startswith("Here are records of a user's history:\n\n[1] ")
    assert looked["content"].endswith(
        "\n\nFind what helps with the following request in the records above.\n\nRequest: q"
    )
    assert looked["content"][slice(*spans[0])] == first
    assert looked["content"][slice(*asked)] == "q"
    (which,) = write.which("q", owned)
    assert which["content"] == (
        f"Here are 2 records of a user's history, each under its number.\n\n[1] {first}\n\n"
        f"[2] {write.fitted('q', owned)[1][1]}\n\nRequest:\nq\n\n"
        "Which of the records help to answer the request? Write their numbers, as in 2, 3. "
        "Write none if there are none."
    )
    written = [
        write.which("q", shared),
        write.is_relevant("q", shared[0]),
        write.asks_for("q", shared[0])[0],
        write.ranks("q", shared),
        write.looked_at("q", shared)[0],
    ]
    for prompt in written:
        text = " ".join(message["content"] for message in prompt)
        assert "passage" in text
        assert not [word for word in ("record", "user", "request") if word in text.lower()]
    assert "records" in write.ranks("q", [owned[0], shared[1]])[0]["content"]  # some are a user's


# --- scores ----------------------------------------------------------------------------------------


def test_query_likelihood_is_the_mean_log_probability_of_the_query(llm):
    tally = Tally()
    found = chosen(select.QueryLikelihood(), llm, [ranking(TEXTS), ranking([])], tally)
    write = Writer(WORDING, 300, 2048, llm.count, llm.truncate)
    wanted = {}
    for candidate in ranking(TEXTS):
        prompt, query = write.asks_for("query 0", candidate.document)
        assert query == "query 0"
        (score,) = llm.score([prompt], [query])
        wanted[candidate.row] = score.total / score.tokens
    assert {c.row: c.score for c in found[0]} == pytest.approx(wanted, abs=1e-5)
    assert [c.row for c in found[0]] == sorted(wanted, key=lambda row: -wanted[row])
    assert found[1] == []
    assert tally.counts["select_calls"] == len(TEXTS)
    assert tally.counts["select_answer_tokens"] == len(TEXTS) * llm.count("query 0")


@pytest.mark.long
def test_pointwise_is_the_log_odds_of_yes(llm):
    (found,) = chosen(select.Pointwise(), llm, [ranking(TEXTS)])
    write = Writer(WORDING, 300, 2048, llm.count, llm.truncate)
    for candidate in found:
        prompt = write.is_relevant("query 0", candidate.document)
        yes, no = llm.score([prompt, prompt], [YES, NO])
        assert candidate.score == pytest.approx(yes.total - no.total, abs=1e-4)
    assert len({c.score for c in found}) == len(TEXTS)


def torch_icr(folder: str, llm: JaxLLM, ranked: Ranking, **options: Any) -> np.ndarray:
    """The scores, written out over the attention maps that torch's model returns."""
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    write = Writer(WORDING, 300, 2048, llm.count, llm.truncate)
    documents = [c.document for c in (ranked[::-1] if options.get("best", "last") == "last" else ranked)]
    rows = []
    for blank in (False, True):
        messages, spans, where = write.looked_at("query 0", documents, blank)
        text = llm.render(messages)
        shift = text.index(messages[0]["content"])
        encoding = llm._codec._literal.encode(text)

        def within(span: tuple[int, int], encoding: Any = encoding, shift: int = shift) -> list[int]:
            low, high = span[0] + shift, span[1] + shift
            return [i for i, (a, b) in enumerate(encoding.offsets) if a < high and b > low]

        who = within(where)
        if options.get("asking") == "rest":
            who = list(range(within((spans[-1][1], spans[-1][1] + 1))[0], len(encoding.ids)))
        with torch.no_grad():
            maps = reference(torch.tensor([encoding.ids]), output_attentions=True).attentions
        mass = np.sum([one[0].sum(0)[who].mean(0).numpy() for one in maps], axis=0)
        rows.append([mass[within(span)] for span in spans])
    scores = []
    for with_query, without in zip(*rows, strict=True):
        left = with_query - without if options.get("calibrated", True) else with_query
        kept = left >= left.mean() - 2 * left.std(ddof=1) if options.get("calibrated", True) else left == left
        scores.append(left[kept].sum())
    return np.array(scores[::-1] if options.get("best", "last") == "last" else scores)


@pytest.mark.parametrize(
    "options", [{}, {"asking": "rest"}, {"best": "first"}, {"calibrated": False}], ids=str
)
def test_icr_equals_sums_over_torchs_attention_maps(tiny_models, llm, options: dict[str, Any]):
    ranked = ranking(TEXTS)
    (found,) = chosen(select.ICR(**options), llm, [ranked])
    wanted = torch_icr(tiny_models["llm.model"], llm, ranked, **options)
    np.testing.assert_allclose([c.score for c in found], wanted[[c.row for c in found]], atol=1e-4)
    assert [c.row for c in found] == np.argsort(-wanted, kind="stable").tolist()


def test_icr_asks_nothing_of_one_candidate_or_none(llm):
    tally = Tally()
    found = chosen(select.ICR(), llm, [ranking([]), ranking(["one"]), ranking(["", "two"])], tally)
    assert [[c.row for c in each] for each in found][:2] == [[], [0]]
    assert tally.counts["select_calls"] == 2
    assert sorted(c.row for c in found[2]) == [0, 1]


def test_icr_keeps_the_order_where_nothing_is_asked(llm):
    slot = select.ICR().slot(Tally(), llm=llm, wording=WORDING)
    example = Example("q", "me", "", "in", "t")
    assert [c.row for c in slot([example], [Query((" ",))], [ranking(TEXTS)])[0]] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("method", [select.QueryLikelihood, select.Pointwise, select.ICR])
def test_a_prompt_too_long_is_told_of_by_its_question(tiny_models, method: Any):
    small = JaxLLM(Path(tiny_models["llm.model"]), context=420)
    long = ranking(["x" * 500, "y"])
    with pytest.raises(UserError, match="question 'q1'"):
        chosen(method(), small, [ranking(["a", "b"]), long])


def test_tokens_far_below_the_others_do_not_count():
    asked = [[1.0] * 30 + [-9.0], [2.0]]
    assert calibrated(asked, [[0.0] * 31, [0.5]]).tolist() == [30.0, 1.5]
    assert calibrated(asked).tolist() == [21.0, 2.0]
    assert calibrated([[]], [[]]).tolist() == [0.0]


# --- what cannot be done is said before any work ---------------------------------------------------

SERVER = {"llm.backend": "http", "llm.url": "http://127.0.0.1:9/v1", "llm.model": "m"}


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"select.method": "icr"}, "select.method icr leads the model token by token.*take llm.backend jax"),
        ({"select.method": "query_likelihood"}, "query_likelihood .*needs llm.log_probs"),
        ({"select.method": "pointwise"}, "pointwise .*needs llm.log_probs"),
        ({"generate.method": "replug"}, "generate.method replug leads .*take llm.backend jax"),
        ({"generate.method": "ic_ralm"}, "generate.method ic_ralm leads .*take llm.backend jax"),
    ],
)
def test_a_server_that_cannot_is_refused_when_the_run_is_planned(write_tweets, fields: Any, told: str):
    root = write_tweets({"ann": ["i love tea"], "bob": ["football"]})
    place = {"benchmark.name": "lamp_7", "benchmark.root": str(root), "retrieve.method": "recency"}
    with pytest.raises(UserError, match=told):
        Plan(override(Config(), {**place, **SERVER, **fields}))


def test_rankgpt_needs_no_more_than_answers(write_tweets):
    root = write_tweets({"ann": ["i love tea"], "bob": ["football"]})
    place = {"benchmark.name": "lamp_7", "benchmark.root": str(root), "retrieve.method": "recency"}
    assert Plan(override(Config(), {**place, **SERVER, "select.method": "rankgpt"})).ranked


def test_steps_beyond_the_window_are_refused():
    with pytest.raises(UserError, match=r"select\.step is 30 and select\.window 20"):
        select.RankGPT(step=30)
