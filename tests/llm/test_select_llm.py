"""A model that chooses documents beside the one that answers: its results, keys, costs and errors."""

import dataclasses
import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from servers import Server, write_tiny

from pbr_jax import Config, llm, run
from pbr_jax import config as c
from pbr_jax.base.types import UserError
from pbr_jax.cli import flags
from pbr_jax.config import override
from pbr_jax.experiment.plan import Plan
from pbr_jax.methods import select
from pbr_jax.options import SelectLLM
from pbr_jax.stages import language_model
from pbr_jax.sweeps.sweep import command, trials

HISTORIES = {f"u{n}": [f"i love tea day {n}", "cats", "about football"] for n in range(4)}
SCORING = ("query_likelihood", "pointwise", "icr")

pytestmark = pytest.mark.usefixtures("fresh_cache")


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A model that is not the run's."""
    (tmp_path / "other").mkdir()
    write_tiny(tmp_path / "other", context=4096)
    return tmp_path / "other"


@pytest.fixture
def made(write_tweets: Callable[..., Path], tiny_models: dict[str, str]) -> Callable[..., Config]:
    place = {"benchmark.name": "lamp_7", "benchmark.root": str(write_tweets(HISTORIES)), **tiny_models}
    small = {"retrieve.method": "recency", "generate.max_new_tokens": 4, "eval.resamples": 20}
    small |= {"eval.likelihood": "off", "prompt.max_tokens": 700}
    return lambda method, **fields: override(Config(), {**place, **small, "select.method": method, **fields})


def scores(plan: Plan) -> list[list[tuple[int, float]]]:
    store = plan.data.value
    ranked = plan.ranked.value.read(store, store.examples())
    return [[(c.row, c.score) for c in ranking] for ranking in ranked]


@pytest.mark.long
def test_one_model_chooses_and_another_answers(made, other: Path, tiny_models):
    apart = Plan(made("query_likelihood", **{"select.llm.model": str(other)}))
    alone = Plan(made("query_likelihood"))
    both = Plan(made("query_likelihood", **{"llm.model": str(other)}))
    assert scores(apart) == scores(both) != scores(alone)
    answers = [plan.answered for plan in (apart, alone, both)]
    answering = [stage.needs["generate"].needs["llm"].key for stage in answers if stage is not None]
    assert answering[0] == answering[1] != answering[2]
    assert {"llm", "select.llm"} <= set(apart.parts)


@pytest.mark.parametrize("method", [*SCORING, "rankgpt"])
def test_what_the_other_model_holds_is_in_the_key_of_what_it_chose(made, other: Path, tmp_path, method):
    def key(place: Path, **fields: Any) -> str:
        return Plan(made(method, **{"select.llm.model": str(place), **fields})).ranked.key

    first = key(other)
    moved = Path(shutil.copytree(other, tmp_path / "elsewhere"))
    assert key(moved) == first
    assert key(other, **{"select.llm.concurrency": 3}) == first
    assert key(other, **{"select.llm.dtype": "bfloat16"}) != first
    write_tiny(moved, seed=9, context=4096)
    assert key(moved) != first != Plan(made(method)).ranked.key


def test_one_model_that_does_both_is_loaded_once(made, tiny_models):
    same = SelectLLM(model=tiny_models["llm.model"])
    plan = Plan(made("icr"))
    chosen = language_model.frozen(plan.run, same)
    assert chosen.value._llm is language_model.frozen(plan.run).value._llm


def says(path: str, request: Any) -> tuple[int, Any]:
    """Writes the order 3, 1, 2, for 100 tokens and 3."""
    choice = {"message": {"content": "[3] > [1] > [2]"}, "finish_reason": "stop"}
    return 200, {"choices": [choice], "usage": {"prompt_tokens": 100, "completion_tokens": 3}}


@pytest.mark.long
def test_a_server_chooses_and_its_price_is_its_own(made, tmp_path: Path):
    """Four orders; where a server answers too, its four answers at the prices of llm."""
    with Server(says) as server:
        there = {"select.llm.backend": "http", "select.llm.url": server.url, "select.llm.model": "big"}
        priced = {"select.llm.price_prompt": 2.0, "select.llm.price_completion": 10.0}
        found = run(made("rankgpt", **there, **priced), tmp_path / "apart")
        plain = scores(Plan(made("top_k")))
        order = [[row for row, _ in ranking] for ranking in scores(Plan(made("rankgpt", **there)))]
        assert order == [[ranking[i][0] for i in (2, 0, 1)] for ranking in plain]
        assert {seen.body["model"] for seen in server.requests} == {"big"}
        counts = found.values["counts"]
        assert counts["select_server_calls"] == counts["server_calls"] == len(server.requests) == 4
        assert counts["server_cost"] == pytest.approx(4 * (100 * 2 + 3 * 10) / 1e6)

        serving = {"llm.backend": "http", "llm.url": server.url, "llm.model": "small"}
        serving |= {"llm.check_prompts": False}  # its counts are made up
        unpriced = run(made("rankgpt", **there, **priced, **serving), tmp_path / "both")
        assert unpriced.values["counts"]["server_calls"] == 8
        assert "server_cost" not in unpriced.values["counts"]
        serving |= {"llm.price_prompt": 1.0, "llm.price_completion": 0.0}
        counts = run(made("rankgpt", **there, **priced, **serving), tmp_path / "both").values["counts"]
        assert counts["server_cost"] == pytest.approx(4 * (100 * 2 + 3 * 10 + 100) / 1e6)
        assert len(server.requests) == 8


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("pointwise", r"needs select\.llm\.log_probs .* and select\.llm\.tokenizer"),
        ("query_likelihood", r"needs select\.llm\.log_probs .* and select\.llm\.tokenizer"),
        ("icr", r"select\.method icr leads the model .* take select\.llm\.backend jax"),
    ],
)
def test_what_the_other_model_cannot_do_is_one_line_before_any_work(made, method: str, message: str):
    served = {"select.llm.backend": "http", "select.llm.url": "http://127.0.0.1:9/v1"}
    with pytest.raises(UserError, match=message):
        Plan(made(method, **served))


def test_errors_of_the_other_model_say_so(made, tmp_path: Path):
    with pytest.raises(UserError, match=r"^select\.llm: "):
        Plan(made("icr", **{"select.llm.model": str(tmp_path / "gone")})).check()
    broken: dict[str, object] = {"select.llm.date": "today"}
    with pytest.raises(UserError, match=r"select\.llm\.date is 'today', want a day"):
        made("icr", **broken)
    with Server(lambda *_: (401, {})) as server:
        there = {"select.llm.backend": "http", "select.llm.url": server.url, "select.llm.retries": 0}
        with pytest.raises(UserError, match=r"^select\.llm: .*401"):
            scores(Plan(made("rankgpt", **there)))


def test_its_fields_are_set_on_the_command_line_and_survive_json(other: Path):
    """Also where another method of the slot had it; and they are taken back with none."""
    words = ["rankgpt", "--select.llm.model", str(other), "--select.llm.batch-size=4"]
    _, config = flags.config(words, flags.RUN)
    llm = SelectLLM(model=str(other), batch_size=4)
    assert config.select == select.RankGPT(k=4, llm=llm)
    assert c.from_dict(json.loads(json.dumps(c.to_dict(config)))) == config
    moved = override(config, {"select.method": "icr"})
    assert moved.select == select.ICR(k=4, llm=llm)
    assert override(moved, {"select.llm": None}).select == select.ICR(k=4)
    larger = override(config, {"select.llm.batch_size": 8})
    assert larger.select == select.RankGPT(k=4, llm=dataclasses.replace(llm, batch_size=8))


@pytest.mark.parametrize(
    "row", [{"select.llm.model": "y"}, {"select.llm.dtype": "bfloat16"}, {"select.llm": None}]
)
@pytest.mark.parametrize("there", [False, True])
def test_a_printed_run_of_a_sweep_has_the_same_model(row: dict[str, Any], there: bool, tmp_path: Path):
    """Whether or not the config has one."""
    path = tmp_path / "own.py"
    llm = "SelectLLM(model='x', batch_size=3)" if there else None
    path.write_text(
        "from pbr_jax.config import Config\nfrom pbr_jax.methods.select import ICR, TopK\n"
        "from pbr_jax.options import SelectLLM\n"
        f"def get_config(): return Config(select={f'ICR(llm={llm})' if there else 'TopK()'})\n"
    )
    file = c.load(path)
    (trial,) = trials(file._replace(sweep=lambda: [{"select.method": "icr", **row}]), file.config)
    named = dataclasses.replace(trial)
    vars(named)["name"] = "folder"  # which asks for data and models
    words = shlex.split(command(file, named, tmp_path))[2:-2]
    assert flags.config(words, flags.RUN)[1] == trial.config


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["dense", "--select.llm.model", "x"], r"select\.llm\.model belongs to .*rankgpt and icr"),
        (["icr", "--select.llm.modl", "x"], r"did you mean select\.llm\.model"),
        (["icr", "--select.llm", "x"], r"select\.llm is 'x'"),
    ],
)
def test_a_wrong_field_of_it_is_one_clear_line(words: list[str], message: str):
    with pytest.raises(UserError, match=message):
        flags.config(words, flags.RUN)


def test_help_lists_its_fields(capsys: pytest.CaptureFixture[str]):
    for name, there in (("icr", True), ("dense", False)):
        with pytest.raises(SystemExit):
            flags.config([name, "--help-all"], flags.RUN)
        told = " ".join(capsys.readouterr().out.split())
        assert ("--select.llm.model" in told) is there
        assert ("the one that answers" in told) is there


@pytest.mark.long
def test_how_each_models_template_is_used_is_a_note_of_the_results(made, other: Path, tmp_path: Path) -> None:
    """One leaves out the system's message, the other opens thinking."""
    shutil.copytree(other, tmp_path / "thinks")
    user = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    every = "{% for m in messages %}{{ m.content }}{% endfor %}<think>\n"
    for folder, template in ((other, user), (tmp_path / "thinks", every)):
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    models = {"llm.model": str(other), "select.llm.model": str(tmp_path / "thinks")}
    notes = run(made("pointwise", **models), tmp_path / "out").values["notes"]
    assert [note for note in notes if "chat template" in note] == [
        "other: the chat template writes no system message, so its text stands in front of the user's",
        "thinks: the chat template opens thinking: </think> closes it before the answer",
    ]
    rendered = llm.chat.load(other).render(
        [{"role": "system", "content": "Write like a pirate."}, {"role": "user", "content": "hello"}]
    )
    assert rendered == "Write like a pirate.\n\nhello"
