"""The command line: what it prints, and one clear line for every kind of bad input."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from full_disk import full_disk

from pbr_jax.base.files import cache_folder
from pbr_jax.base.types import UserError
from pbr_jax.cli.flags import parsed
from pbr_jax.cli.main import main, parser
from pbr_jax.config import Config, override
from pbr_jax.exporting.export import Format
from pbr_jax.importing.task_file import UserIs
from pbr_jax.llm.answers_file import Answers
from pbr_jax.sweeps.slurm import Cluster

ROOT = Path(__file__).parents[1]
DENSE, BM25, ZERO = (str(ROOT / "configs" / f"{name}.py") for name in ("dense", "bm25", "zero_shot"))

pytestmark = pytest.mark.usefixtures("fresh_cache")


class Case:
    """A small valid benchmark that a test breaks, and the command that then must fail well."""

    def __init__(self, tmp_path: Path, root: Path) -> None:
        self.tmp, self.root, self.out = tmp_path, root, tmp_path / "out"
        self.config, self.name, self.split = BM25, "lamp_7", "dev"
        self.flags: list[str] = []

    @property
    def questions(self) -> Path:
        return self.root / "dev_questions.json"

    def edit(self, change: Callable[[list], object]) -> None:
        records = json.loads(self.questions.read_text())
        changed = change(records)
        self.questions.write_text(json.dumps(records if changed is None else changed))

    def run(self) -> int:
        place = ["--benchmark.name", self.name, "--benchmark.root", str(self.root)]
        return main(
            ["run", self.config, *place, "--benchmark.split", self.split, "--out", str(self.out), *self.flags]
        )


@pytest.fixture
def case(tmp_path: Path, write_tweets) -> Case:
    return Case(tmp_path, write_tweets({"ann": ["one", "two"], "bob": ["three"]}))


def encoder_folder(case: Case, **config: object) -> Path:
    """A folder that looks like an encoder; its weights are for the test to write."""
    folder = case.tmp / "encoder"
    folder.mkdir()
    values = {"model_type": "bert", "vocab_size": 8, "hidden_size": 4, "num_hidden_layers": 1,
              "num_attention_heads": 2, "intermediate_size": 8, "max_position_embeddings": 16,
              "type_vocab_size": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-12, **config}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(values))
    vocabulary = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "one": 4, "two": 5, "three": 6, "[MASK]": 7}
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # type: ignore[assignment]
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))  # type: ignore[assignment]
    tokenizer.save(str(folder / "tokenizer.json"))
    case.config, case.flags = DENSE, ["--encoder.model", str(folder), "--generate.method", "none"]
    return folder


def with_flags(*words: str) -> Callable[[Case], None]:
    return lambda case: case.flags.extend(words)


def with_value(name: str, value: Any) -> Callable[[Case], None]:
    return lambda case: setattr(case, name, value)


def with_records(change: Callable[[list], object]) -> Callable[[Case], None]:
    return lambda case: case.edit(change)


def unknown_model(case: Case) -> None:
    case.config, case.flags = DENSE, ["--encoder.model", str(case.tmp / "no-model")]


def misshapen_weights(case: Case) -> None:
    from safetensors.numpy import save_file

    folder = encoder_folder(case)
    save_file(
        {"embeddings.word_embeddings.weight": np.zeros((8, 5), np.float32)}, folder / "model.safetensors"
    )


def with_weights(name: str, content: bytes) -> Callable[[Case], object]:
    return lambda case: (encoder_folder(case) / name).write_bytes(content)


def truncated_gguf(case: Case) -> None:
    (case.tmp / "model.gguf").write_bytes(b"GGUF\x03\0\0\0")
    case.flags = ["--llm.model", str(case.tmp / "model.gguf")]


def foreign_cache(case: Case) -> None:
    (case.tmp / "cache").mkdir()
    (case.tmp / "cache" / "llm.sqlite").write_text("the answers of another program, kept for later")


def out_inside_a_file(case: Case) -> None:
    (case.tmp / "file").write_text("")
    case.out = case.tmp / "file" / "out"


def broken_config(case: Case) -> None:
    path = case.tmp / "broken.py"
    path.write_text("def get_config():\n    return 1 / 0\n")
    case.config = str(path)


BAD: dict[str, tuple[Callable[[Case], object], list[str]]] = {
    "missing folder": (lambda case: setattr(case, "root", case.tmp / "nowhere"), ["nowhere"]),
    "missing file": (lambda case: case.questions.unlink(), ["dev"]),
    "truncated JSON": (
        lambda case: case.questions.write_text(case.questions.read_text()[:-40]),
        ["dev_questions.json"],
    ),
    "not a list": (with_records(lambda records: {"data": records}), ["dev_questions.json", "list"]),
    "missing key": (
        with_records(lambda records: records[1].pop("input") and None),
        ["dev_questions.json", "bob", "input"],
    ),
    "profile of the wrong type": (
        with_records(lambda records: records[1].update(profile="three")),
        ["dev_questions.json", "bob", "profile"],
    ),
    "document without text": (
        with_records(lambda records: records[0]["profile"][1].pop("text") and None),
        ["dev_questions.json", "ann", "text"],
    ),
    "duplicate question ids": (
        with_records(lambda records: records[1].update(id="ann")),
        ["dev_questions.json", "ann"],
    ),
    "duplicate document ids": (
        with_records(lambda records: records[0]["profile"][1].update(id="ann-0")),
        ["dev_questions.json", "ann-0"],
    ),
    "other output ids": (with_records(lambda records: records[1].update(id="zoe")), ["zoe"]),
    "wrong task": (with_value("name", "lamp_3"), ["LaMP_7", "LaMP_3"]),
    "unknown benchmark": (with_value("name", "lamp_77"), ["lamp_77", "lamp_7"]),
    "unknown split": (with_value("split", "validation"), ["validation", "dev"]),
    "unknown field": (with_flags("--retrieve.kay", "3"), ["retrieve.kay", "retrieve.k"]),
    "negative k": (with_flags("--retrieve.k", "-3"), ["retrieve.k", "-3", "at least 1"]),
    "not a number": (with_flags("--retrieve.k", "many"), ["retrieve.k", "many"]),
    "unknown method": (with_flags("--retrieve.method", "sparse"), ["retrieve.method", "sparse", "bm25"]),
    "not UTF-8": (
        lambda case: case.questions.write_bytes(case.questions.read_bytes().replace(b"three", b"thr\xe9e")),
        ["dev_questions.json", "UTF-8"],
    ),
    "out is a file": (lambda case: case.out.write_text(""), ["out", "choose another --out"]),
    "out inside a file": (out_inside_a_file, ["out", "choose another --out"]),
    "unknown model": (unknown_model, ["no-model"]),
    "truncated weights": (
        with_weights("model.safetensors", b'\x40\0\0\0\0\0\0\0{"a"'),
        ["model.safetensors"],
    ),
    "pickled weights": (
        with_weights("pytorch_model.bin", b"\x80\x04cos\nsystem\n(S'touch hacked'\ntR."),
        ["safetensors"],
    ),
    "misshapen weights": (misshapen_weights, ["embeddings.word_embeddings.weight", "(8, 5)", "(8, 4)"]),
    "truncated GGUF": (truncated_gguf, ["model.gguf"]),
    "offline without answers": (
        with_flags("--llm.offline"),
        ["2 of 2 answers", "llm.sqlite", "cache import"],
    ),
    "foreign cache": (foreign_cache, ["llm.sqlite", "move it away"]),
    "sampled beams": (
        with_flags("--generate.num-beams", "2", "--generate.temperature", "0.7"),
        ["generate.num_beams is 2", "generate.temperature 0.7"],
    ),
    "broken config": (broken_config, ["broken.py", "line 2", "ZeroDivisionError"]),
    "seed beyond 32 bits": (
        with_flags("--seed", str(2**64)),
        ["seed is 18446744073709551616", "from 0 to 4294967295"],
    ),
    "negative seed": (with_flags("--seed", "-1"), ["seed is -1", "from 0 to 4294967295"]),
    "system not UTF-8": (with_flags("--system", "caf\udce9"), ["'caf\\udce9' is not UTF-8"]),
    "prefix not UTF-8": (with_flags("--encoder.query_prefix=caf\udce9"), ["caf\\udce9' is not UTF-8"]),
}


@pytest.mark.parametrize("fault", BAD)
def test_bad_input_is_one_clear_line_and_exit_code_2(
    fault: str, case: Case, capfd: pytest.CaptureFixture[str]
):
    spoil, words = BAD[fault]
    spoil(case)
    assert case.run() == 2
    error = capfd.readouterr().err.splitlines()[-1]
    assert error.startswith("pbr-jax: error: ")
    assert "Traceback" not in error
    for word in words:
        assert word in error
    assert len(error) < 900
    written = [p.name for p in case.out.rglob("*")] if case.out.is_dir() else []
    assert set(written) <= {"log.jsonl", "run.json"}
    assert not Path("hacked").exists()
    assert not list((case.tmp / "cache").glob("*/*/stage.json")) or fault not in (
        "truncated JSON",
        "not UTF-8",
    )


@pytest.mark.parametrize("kilobytes", [1, 20, 40])
def test_a_full_disk_is_one_clear_line(case: Case, kilobytes: int, capsys: pytest.CaptureFixture[str]):
    case.edit(lambda records: [record | {"input": record["input"] + " word" * 4000} for record in records])
    case.flags = ["--generate.method", "none"]
    with full_disk(kilobytes):
        assert case.run() == 2
    told = capsys.readouterr().err
    assert told.splitlines()[-1].startswith("pbr-jax: error: cannot write")
    assert "Traceback" not in told
    assert not (case.out / "results.json").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["COMMAND"]),
        (["fly"], ["invalid choice: 'fly'"]),
        (["run"], ["no config given", "pbr-jax configs"]),
        (["run", DENSE], ["add --out"]),
        (["run", "nowhere.py", "--out", "x"], ["config file not found: nowhere.py"]),
        (["sweep", "ablations/system_k", "--out", "x", "--index", "8"], ["--index is 8, want 0 to 7"]),
        (["sweep", "ablations/system_k", "--out", "x", "--max-parallel", "0"], ["--max-parallel is 0"]),
        (["sweep", "ablations/system_k", "--out", "x", "--stale-after", "9"], ["--stale-after has no use"]),
        (["report", "nowhere"], ["nowhere"]),
        (["report", "nowhere", "--al"], ["unknown argument '--al'"]),
        (["run", DENSE, "--seed", "1", "2"], ["seed has 2 values ['1', '2'], want one"]),
        (["run", DENSE, "--seed"], ["seed has 0 values, want one"]),
        (["run", DENSE, "--llm.offline", "maybe"], ["llm.offline is 'maybe', want on or off"]),
        (["report", "nowhere", "--format", "pdf"], ["invalid choice: 'pdf'"]),
        (["ask", "--run", "nowhere", "--user", "u", "q"], ["no run folder at nowhere"]),
        (["picture", "--run", "nowhere", "--question", "q", "--out", "x.svg"], ["no run folder at nowhere"]),
        (["data", "validate", "--benchmark.name", "lamp_7", "--benchmark.root", "nowhere"], ["nowhere"]),
        (["data", "validate", "--benchmark.name", "lamp_7"], ["--benchmark.root"]),
        (["ask", "--run", "nowhere", "--user", "\udcff", "q"], ["'\\udcff' is not UTF-8"]),
        (["ask", "--run", "nowhere", "--user", "u", "caf\udce9"], ["'caf\\udce9' is not UTF-8"]),
        (["ask", "--run", __file__, "--user", "u", "q"], ["no run folder at", "test_cli.py"]),
        (["cache"], ["ACTION"]),
        (["cache", "import"], ["FILE"]),
        (["cache", "import", "nowhere.jsonl"], ["cannot read nowhere.jsonl"]),
        (["cache", "export", "x.jsonl"], ["there is no cache of answers at", "PBR_JAX_CACHE"]),
    ],
)
def test_a_wrong_command_is_one_clear_line(
    arguments: list[str], words: list[str], capfd: pytest.CaptureFixture[str]
):
    assert main(arguments) == 2
    error = capfd.readouterr().err
    assert error.count("\n") == 1
    assert all(word in error for word in words)


def test_a_cache_is_exported_and_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    file, keys = tmp_path / "answers.jsonl", [f"{i:064x}" for i in range(3)]
    Answers(cache_folder() / "llm.sqlite").add("text", dict.fromkeys(keys, "an answer"))
    assert main(["cache", "export", str(file)]) == 0
    assert capfd.readouterr().out == f"3 answers in {file}\n"
    assert main(["cache", "export", str(file)]) == 0
    (tmp_path / "mine.txt").write_text("my notes\n")
    assert main(["cache", "export", str(tmp_path / "mine.txt")]) == 2
    assert "mine.txt exists and was not written by pbr-jax" in capfd.readouterr().err
    assert (tmp_path / "mine.txt").read_text() == "my notes\n"
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "elsewhere"))
    Answers(cache_folder() / "llm.sqlite").add("text", {keys[0]: "another answer"})
    assert main(["cache", "import", str(file)]) == 0
    assert capfd.readouterr().out == "2 answers added, 0 were there, 1 differed: ours kept\n"
    with file.open("a") as stream:
        stream.write("{}\n")
    assert main(["cache", "import", str(file)]) == 2
    assert "line 5" in capfd.readouterr().err


def test_a_switch_is_set_alone_or_with_a_value_and_unset_with_one():
    on = override(Config(), {"llm.offline": True})
    for words in (
        ["--llm.offline"],
        ["--llm.offline", "True"],
        ["--llm.offline=True"],
        ["--llm.offline", "on"],
    ):
        assert parsed([*words, "--seed", "3"], Config(), "pbr-jax") == override(on, {"seed": 3})
    assert parsed(["--llm.offline", "False"], on, "pbr-jax") == Config()


@pytest.mark.parametrize("word", ["none", "None", "NONE"])
def test_no_bound_is_none_however_it_is_spelled(word: str):
    """And a text or a method's name that is spelled so stays what it is."""
    limited = override(Config(), {"limit": 3, "generator.limit": 9, "llm.model": "m"})
    words = ["--limit", word, f"--generator.limit={word}"]
    assert parsed(words, limited, "pbr-jax") == override(limited, {"limit": None, "generator.limit": None})
    assert parsed(["--llm.model", word], limited, "pbr-jax").llm.model == word
    assert parsed(["--retrieve.method", "none"], limited, "pbr-jax").retrieve.method == "none"


def test_the_long_help_of_a_run_lists_every_field_of_its_methods(capfd: pytest.CaptureFixture[str]):
    for words in (["run", DENSE, "--help-all"], ["run", "dense", "--help-all"]):
        with pytest.raises(SystemExit) as caught:
            main(words)
        assert caught.value.code == 0
        text = capfd.readouterr().out
        assert all(name in text for name in ("--benchmark.name", "--retrieve.k", "--generate.top_p"))
        assert "--retrieve.epsilon" not in text
    with pytest.raises(SystemExit):
        main(["run", "dense", "--retrieve.method", "bm25", "--help-all"])
    assert "--retrieve.epsilon" in capfd.readouterr().out


def test_the_short_help_shows_what_is_set_most_often_and_fits_a_screen(capfd: pytest.CaptureFixture[str]):
    for command in ("run", "sweep"):
        with pytest.raises(SystemExit) as caught:
            main([command, "cfrag", "--help"])
        assert caught.value.code == 0
        text = capfd.readouterr().out
        assert len(text.splitlines()) < 45
        assert all(word in text for word in ("--out", "--help-all", "--neighbours.m          4", "tuned"))


def test_the_choices_of_options_are_those_of_the_types_that_take_them():
    """The parser names them itself, so that help loads none of these modules."""
    for words, options in (
        (["export", "run", "--out", "o", "--format"], Format),
        (["sweep", "dense", "--launcher"], Cluster),
        (["data", "import", "table", "--out", "o", "--user-is"], UserIs),
    ):
        for choice in get_args(options):
            parser().parse_known_args([*words, choice])
        with pytest.raises(UserError, match=re.escape(", ".join(map(repr, get_args(options))))):
            parser().parse_known_args([*words, "none of them"])


def test_help_loads_no_jax():
    code = "import sys, pbr_jax.cli.main as cli; cli.parser().format_help(); assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_checkout_that_is_not_installed_runs():
    nowhere = (
        "import importlib.metadata as metadata, runpy, sys\n"
        "real = metadata.distribution\n"
        "def distribution(name):\n"
        "    if name in ('pbr-jax', 'pbr_jax'):\n"
        "        raise metadata.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "metadata.distribution = distribution\n"
        "sys.argv = ['pbr-jax', *sys.argv[1:]]\n"
        "runpy.run_module('pbr_jax', run_name='__main__')\n"
    )
    for module, arguments, told in (
        ("pbr_jax", ["--version"], "pbr-jax 0"),
        ("pbr_jax.cli.main", ["configs"], "purple_small"),
    ):
        command = [sys.executable, "-c", nowhere.replace("'pbr_jax', run", f"'{module}', run"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert told in done.stdout


def test_the_version_and_the_packaged_configs_are_told(capfd: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capfd.readouterr().out.startswith("pbr-jax 0.")
    assert main(["configs"]) == 0
    told = dict(line.split(None, 1) for line in capfd.readouterr().out.splitlines())
    assert told["dense"].startswith("Dense retrieval")
    assert "ablations/cfrag_modules" in told
    assert all(told.values())
    assert main(["run", "dence", "--out", "x"]) == 2
    assert "did you mean dense" in capfd.readouterr().err
    assert main(["run", "../pyproject", "--out", "x"]) == 2


def test_an_option_of_another_method_is_told_with_its_owner(case: Case, capfd: pytest.CaptureFixture[str]):
    case.flags = ["--select.distillation.loss", "reinforce"]
    assert case.run() == 2
    told = capfd.readouterr().err.splitlines()[-1]
    assert "select.distillation.loss belongs to tuned, and select.method is top_k" in told
    case.flags = ["--retrieve.method", "dense", "--retrieve.epsilon", "0.5"]
    assert case.run() == 2
    assert "belongs to bm25 and bm25_lamp, and retrieve.method is dense" in capfd.readouterr().err


@pytest.mark.parametrize("number", [2**31, 10**22])
@pytest.mark.parametrize("config", ["dense", "bm25", "recency", "random"])
def test_more_than_there_is_means_all(case: Case, config: str, number: int, weights: None):
    case.config = config
    case.flags = ["--generate.method", "none", "--retrieve.k", str(number), "--limit", str(number)]
    assert case.run() == 0
    lines = [json.loads(line) for line in (case.out / "predictions.jsonl").read_text().splitlines()]
    assert [len(line["documents"]) for line in lines] == [2, 1]


def test_a_dry_run_reads_the_data_and_says_what_would_be_made(case: Case, capfd: pytest.CaptureFixture[str]):
    case.flags = ["--generate.method", "none", "--dry"]
    assert case.run() == 0
    told = capfd.readouterr().out
    assert [line.split()[0] for line in told.splitlines()] == ["rank", "data"]
    assert told.count("would be made") == 1 == told.count("found, made in")
    assert not case.out.exists()
    assert {path.name for path in (case.tmp / "cache").iterdir() if path.is_dir()} == {"data"}
    case.flags = ["--generate.method", "none"]
    assert case.run() == 0
    case.flags.append("--dry")
    capfd.readouterr()
    assert case.run() == 0
    assert capfd.readouterr().out.count("found, made in") == 2


def test_validate_counts(case: Case, capfd: pytest.CaptureFixture[str]):
    assert main(["data", "validate", "--benchmark.name", "lamp_7", "--benchmark.root", str(case.root)]) == 0
    assert (
        "dev: 2 questions of 2 users; a question sees 1 to 2 of 3 documents; 2 with a target"
        in capfd.readouterr().out
    )


def test_run_prints_a_table_and_report_joins_runs(case: Case, capfd: pytest.CaptureFixture[str]):
    case.flags = ["--generate.method", "none"]
    assert case.run() == 0
    case.config, case.out = str(ROOT / "configs" / "recency.py"), case.tmp / "second"
    assert case.run() == 0
    capfd.readouterr()
    assert main(["report", str(case.tmp / "out"), str(case.tmp / "second")]) == 0
    printed = capfd.readouterr().out
    assert "bm25" in printed
    assert "recency" in printed
    html = case.tmp / "deep" / "report.html"
    assert main(["report", str(case.tmp / "out"), "--format", "html", "--out", str(html)]) == 0
    assert "<html" in html.read_text()


REPORTS = {
    "md": (r"<!-- pbr_jax report -->\n# ", "# My results\n"),
    "html": (
        r'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta name="generator" content="pbr_jax report">\n<meta',
        "<!DOCTYPE html>\n<html><title>pbr_jax report</title>",
    ),
    "latex": (r"% pbr_jax report\n", "\\documentclass{article}\n"),
}


def test_a_report_replaces_a_report_and_nothing_else(case: Case, capfd: pytest.CaptureFixture[str]):
    case.flags = ["--generate.method", "none"]
    assert case.run() == 0
    for format, (start, foreign) in REPORTS.items():
        path = case.tmp / f"report.{format}"
        command = ["report", str(case.out), "--format", format]
        assert main([*command, "--out", str(path)]) == 0
        ours = path.read_text()
        assert re.match(start, ours)
        path.write_text(ours + "more")
        assert main([*command, "--out", str(path)]) == 0
        assert path.read_text() == ours
        capfd.readouterr()
        assert main(command) == 0
        assert "pbr_jax report" not in capfd.readouterr().out
        path.write_text(foreign)
        assert main([*command, "--out", str(path)]) == 2
        error = capfd.readouterr().err
        assert f"report.{format} exists and was not written by pbr-jax" in error
        assert error.count("\n") == 1
        assert path.read_text() == foreign
    assert main(["report", str(case.out), "--out", str(case.tmp)]) == 2
    assert main(["report", str(case.out), "--out", str(case.questions / "report.md")]) == 2
    assert "Traceback" not in capfd.readouterr().err


def test_synthetic_data_is_written_and_valid(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    assert main(["data", "synthetic", "--out", str(tmp_path / "s"), "--users", "12", "--seed", "3"]) == 0
    for name in ("synthetic", "lamp_4"):
        assert (
            main(["data", "validate", "--benchmark.name", name, "--benchmark.root", str(tmp_path / "s")]) == 0
        )
    assert "dev: " in capfd.readouterr().out
