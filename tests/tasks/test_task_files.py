"""Files of tasks: what is wrong with one is said in one line, what it leaves out is the benchmark's."""

from dataclasses import replace
from pathlib import Path

import pytest

from pbr_jax import data
from pbr_jax.base.types import UserError
from pbr_jax.config import Benchmark
from pbr_jax.eval.metrics import text_metric
from pbr_jax.eval.ranking import is_ranking_metric, parse
from pbr_jax.tasks import METRICS, RANKING_METRICS, load, released

WHOLE = """\
kind = "classification"
metrics = ["accuracy"]
labels = ["no", "yes"]
fields = ["text", "verdict"]
document_target = "verdict"

[spellings]
maybe = "no"

[prompt.own]
history = "What {who} said:"
document = ["claim: {text}", "verdict: {verdict}"]
instruction = "Judge one more."
"""


def write(folder: Path, text: str = WHOLE, *changes: tuple[str, str]) -> Path:
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    path = folder / "verdicts.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_is_a_task(tmp_path: Path) -> None:
    task = load(write(tmp_path))
    assert (task.name, task.kind, task.labels, task.spellings) == (
        "verdicts", "classification", ("no", "yes"), (("maybe", "no"),)
    )  # fmt: skip
    assert [field for _, field, _ in task.wording("own").pieces] == ["text", "verdict"]
    assert task.max_new_tokens == 64


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("metrics", "metrix", "found the unknown key 'metrix'; did you mean metrics?"),
        ("history", "histroy", "prompt.own: found the unknown key 'histroy'; did you mean history?"),
        ("[prompt.own]", "[prompt.other]", "prompt: found the unknown key 'other'; wanted one of own, lamp"),
        ('["accuracy"]', '"accuracy"', "metrics is 'accuracy', want a list"),
        ('["accuracy"]', '["accuracy", 3]', "metrics is 3 (int), want str"),
        ('["accuracy"]', "[]", "metrics: found none"),
        ('["accuracy"]', '["acuracy"]', "metric of kind classification 'acuracy'; did you mean accuracy?"),
        ('["accuracy"]', '["mae"]', "metrics: found the unknown metric of kind classification 'mae'"),
        ('"classification"', '"rating"', "labels: found 'no'; kind rating has numbers from 0 on"),
        ('"classification"', '"generation"', "labels: found ['no', 'yes']; kind generation has none"),
        ('"classification"', '"sorting"', "kind is 'sorting', want one of classification, rating,"),
        ('labels = ["no", "yes"]', "", "labels: found []; kind classification has two or more"),
        ('["no", "yes"]', '["no", "no"]', "labels: found ['no', 'no']; kind classification has two or more"),
        ('maybe = "no"', 'maybe = "nay"', "spellings.maybe: found the unknown label 'nay'"),
        ("{verdict}", "{verdit}", "prompt.own.document: found the unknown field 'verdit'; did you"),
        ("claim: {text}", "claim", "prompt.own.document: found 'claim', wanted one {field} in each piece"),
        ("claim: {text}", "{text} {text}", "wanted one {field} in each piece"),
        ("{who}", "{whom}", "prompt.own.history: found the unknown field 'whom'; did you mean who?"),
        ('instruction = "Judge one more."', "", "found no prompt.own.instruction"),
        ("[prompt.own]", "[prompt]\nown = 3\n[x]", "prompt.own is 3, wanted a table [prompt.own]"),
        ('target = "verdict"', 'target = "text2"', "document_target: found the unknown field 'text2'"),
        ('fields = ["text", "verdict"]', "max_new_tokens = 0", "found no fields"),
        ("labels =", "max_new_tokens = 0\nlabels =", "max_new_tokens is 0, want at least 1"),
        ("kind =", "kind", "cannot be read (Expected '=' after a key"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_file_and_key(
    tmp_path: Path, before: str, after: str, message: str
) -> None:
    path = write(tmp_path, WHOLE, (before, after))
    with pytest.raises(UserError) as error:
        load(path)
    assert str(error.value).startswith(f"{path}: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_ranking_metrics_have_a_depth(tmp_path: Path) -> None:
    for name in ("recall", "recall@0", "recall@x", "recall@"):
        path = write(tmp_path, f'metrics = ["{name}"]\n')
        with pytest.raises(UserError, match=f"metrics: found '{name}', wanted a depth, such as recall@5"):
            load(path, released("longmemeval"))


@pytest.mark.parametrize("content", [b"\xff", b"a = " + b"[" * 5000, b"#" * (1 << 21)])
def test_a_file_that_is_no_toml_ends_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "task.toml"
    path.write_bytes(content)
    with pytest.raises(UserError, match="cannot be read"):
        load(path)
    with pytest.raises(UserError, match=r"nothing\.toml: cannot be read"):
        load(tmp_path / "nothing.toml")


def test_what_a_file_leaves_out_is_as_in_its_base(tmp_path: Path) -> None:
    base = released("lamp_4")
    path = write(tmp_path, 'max_new_tokens = 7\n[prompt.own]\ninstruction = "Now."\n')
    task = load(path, base)
    own = replace(base.prompt.own, instruction="Now.")
    assert task == replace(base, max_new_tokens=7, prompt=replace(base.prompt, own=own))


def test_metrics_that_a_task_may_name_are_those_there_are() -> None:
    for kind, names in METRICS.items():
        for name in names:
            if kind == "retrieval":
                assert is_ranking_metric(f"{name}@3")
            else:
                assert text_metric(name, ("1", "2")).name == name
    with pytest.raises(UserError, match=f"there are {', '.join(RANKING_METRICS)}, each"):
        parse("none@3")


def test_an_option_overrides_the_folder_which_overrides_the_benchmark(tmp_path: Path) -> None:
    (tmp_path / data.TASK_FILE).write_text('max_new_tokens = 7\nmetrics = ["meteor"]\n')
    other = tmp_path / "other.toml"
    other.write_text('metrics = ["rouge1"]\n')

    def task(**options: str) -> tuple[int, tuple[str, ...]]:
        found = data.task(Benchmark(name="lamp_4", **options))  # pyright: ignore
        return found.max_new_tokens, found.metrics

    assert task() == (64, ("rouge1", "rougeL", "meteor"))
    assert task(root=str(tmp_path)) == (7, ("meteor",))
    assert task(task=str(other)) == (64, ("rouge1",))
    assert task(root=str(tmp_path), task=str(other)) == (7, ("rouge1",))
