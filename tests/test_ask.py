"""Questions to a finished run: what is opened once in a process, and when it is opened anew."""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pbr_jax import ask, run
from pbr_jax.base.types import Example, UserError
from pbr_jax.config import Config, override
from pbr_jax.experiment import opening
from pbr_jax.experiment.plan import Plan

Opened = list[Plan]


@pytest.fixture
def config(tiny_models: dict[str, str], write_tweets: Any) -> Config:
    """Of two users, in an empty cache."""
    root = write_tweets({"a": ["i love tea", "i love cats"], "b": ["football"]})
    models = {"encoder.model": tiny_models["encoder.model"], "llm.model": tiny_models["llm.model"]}
    place = {"benchmark.name": "lamp_7", "benchmark.root": str(root), "benchmark.training": "none"}
    short = {"generate.method": "ipa", "generate.max_new_tokens": 2, "eval.resamples": 20}
    return override(Config(), {**place, **models, **short})


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Opened:
    """The plans that are made."""
    made: Opened = []
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "cache"))

    def counted(of: Config) -> Plan:
        made.append(Plan(of))
        return made[-1]

    monkeypatch.setattr(opening, "Plan", counted)
    return made


def test_a_second_question_opens_nothing(config: Config, tmp_path: Path, plans: Opened):
    """Nor does one of another user, or in another thread; another run or cache does."""
    out = tmp_path / "out"
    run(config, out)
    plans.clear()
    first = ask(out, "a", "what do i love")
    assert len(plans) == 1
    pipeline = opening.open(out).pipeline
    assert ask(out, "a", "what do i love") == first
    assert [c.document.user_id for c in ask(out, "b", "what do i love").documents] == ["b"]
    unknown = ask(out, "nobody", "what")
    assert (unknown.documents, unknown.note) == ([], "the user is not known, and no documents are shown")
    assert len(plans) == 1
    assert opening.open(out).pipeline == pipeline
    thread = threading.Thread(target=ask, args=(out, "a", "what do i love"))
    thread.start()
    thread.join()
    assert len(plans) == 1
    shutil.copytree(out, tmp_path / "other")
    plans.clear()
    ask(tmp_path / "other", "a", "what")
    assert len(plans) == 1


def test_what_has_changed_since_is_seen_by_the_next_question(config: Config, tmp_path: Path, plans: Opened):
    out, root = tmp_path / "out", Path(config.benchmark.root)
    run(config, out)
    ask(out, "a", "what")
    file = next(path for path in root.rglob("*questions*") if path.is_file())
    before = file.read_bytes()
    file.write_bytes(before.replace(b"tea", b"pie"))
    with pytest.raises(UserError, match="changed since"):
        ask(out, "a", "what")
    file.write_bytes(before)
    plans.clear()
    ask(out, "a", "what")
    ask(out, "a", "what")
    assert len(plans) == 1
    (out / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"config\.json: it is not what the run wrote"):
        ask(out, "a", "what")


@pytest.mark.parametrize(
    ("model", "name", "text"),
    [
        ("llm", "special_tokens_map.json", '{"eos_token": "A"}'),
        ("encoder", "sentence_bert_config.json", '{"max_seq_length": 4}'),
        ("encoder", "1_Pooling/config.json", '{"pooling_mode_cls_token": true}'),
    ],
)
def test_a_file_that_is_added_to_a_models_folder_is_seen(
    config: Config, tmp_path: Path, plans: Opened, model: str, name: str, text: str
):
    """None of those that were read has changed."""
    folder = Path(shutil.copytree(getattr(config, model).model, tmp_path / "model"))
    out = tmp_path / "out"
    run(override(config, {f"{model}.model": str(folder)}), out)
    ask(out, "a", "what")
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    with pytest.raises(UserError, match=rf"changed since \({model}"):
        ask(out, "a", "what")


def test_what_the_cache_holds_is_looked_at_by_every_question(config: Config, tmp_path: Path, plans: Opened):
    """A history that is no longer what was read is read anew, and so is one that is gone."""
    out = tmp_path / "out"
    run(config, out)
    ask(out, "a", "what")
    store = next((tmp_path / "cache").rglob("store.sqlite"))
    before = store.read_bytes()
    with store.open("r+b") as file:
        file.write(before.replace(b"football", b"violence"))
    assert [c.document.text for c in ask(out, "b", "what").documents] == ["football"]
    shutil.rmtree(tmp_path / "cache")
    assert [c.document.text for c in ask(out, "b", "what").documents] == ["football"]
    assert store.is_file()


def test_a_run_may_be_opened_from_any_working_directory(
    write_tweets: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    root = write_tweets({"u": ["i love tea", "cats about"]})
    monkeypatch.chdir(root.parent)
    place = {"benchmark.name": "lamp_7", "benchmark.root": root.name, "benchmark.training": "none"}
    slots = {"retrieve.method": "bm25", "generate.method": "none", "eval.likelihood": "off"}
    run(override(Config(), {**place, **slots}), tmp_path / "out")
    monkeypatch.chdir("/")
    system = opening.open(tmp_path / "out")
    assert system.rank([Example("", "u", "tea", "tea", None)])
