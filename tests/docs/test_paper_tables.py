"""Each paper's page maps every table and figure to a command: each can be planned, and has the rows it names.

Data and models are made up; the names of options, sweeps and rows are those of the page.
"""

import fnmatch
import json
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from doc_blocks import ROOT, read_command
from safetensors.numpy import save_file

sys.path.append(str(ROOT / "tests" / "data"))

import dialogue_files
import test_longlamp as longlamp  # pyright: ignore[reportMissingImports]
import test_longmemeval as longmemeval  # pyright: ignore[reportMissingImports]
import test_personabench as personabench  # pyright: ignore[reportMissingImports]
import test_xquad as xquad  # pyright: ignore[reportMissingImports]

from pbr_jax.cli import flags
from pbr_jax.config import Config, override
from pbr_jax.experiment.plan import Plan
from pbr_jax.sweeps.sweep import trials

PAPERS = {"cfrag": (4, 9), "clusterrag": (11, 2), "luf": (10, 6), "pbr": (10, 6), "purple": (3, 6)}
"""Of each paper the numbers of its tables and of its figures."""

ALWAYS = ("--encoder.model", "--llm.model")
"""Options that stand-ins replace also where a command leaves them at their defaults."""

_HEADING = "## Each table and figure"


class Row(NamedTuple):
    """A row of a map: what of the paper it is about, what it says, and its commands and names of rows."""

    about: str
    told: str
    commands: list[str]
    names: list[str]


def rows_of(text: str) -> list[Row]:
    """The map in a page, `$NAME` replaced by what the block above the table says."""
    section = text.split(f"\n{_HEADING}\n")[1].split("\n## ")[0]
    known = dict(re.findall(r'^(\w+)="(.*)"$', section, re.MULTILINE))
    rows = []
    for line in re.findall(r"^\| (.*) \|$", section, re.MULTILINE)[1:]:
        about, told, names = (cell.strip() for cell in line.split("|"))
        said = re.sub(r"\$(\w+)", lambda found: known[found[1]], told)
        commands = [one for one in re.findall(r"`([^`]+)`", said) if one.split()[0] in ("pbr-jax", "python")]
        rows.append(Row(about, told, commands, re.findall(r"`([^`]+)`", names)))
    return rows


def numbered(about: str) -> set[tuple[str, int]]:
    """`Tables 1, 3, Figures 2 to 4`, as pairs."""
    found: set[tuple[str, int]] = set()
    for kind, numbers in re.findall(r"(Table|Figure)s? ([\d, to]+)", about):
        for first, last in re.findall(r"(\d+)(?: to (\d+))?", numbers):
            found |= {(kind, number) for number in range(int(first), int(last or first) + 1)}
    return found


PAGES = {name: (ROOT / "docs" / "papers" / f"{name}.md").read_text(encoding="utf-8") for name in PAPERS}
MAPS = {name: rows_of(text) for name, text in PAGES.items()}


@pytest.mark.parametrize("name", PAPERS)
def test_every_table_and_figure_has_a_command_or_a_sentence(name: str) -> None:
    tables, figures = PAPERS[name]
    wanted = {("Table", n + 1) for n in range(tables)} | {("Figure", n + 1) for n in range(figures)}
    assert set().union(*(numbered(row.about) for row in MAPS[name])) == wanted
    for row in MAPS[name]:
        assert row.commands or row.told.endswith("."), row


def planned(command: str, places: dict[str, str]) -> tuple[list[str], list[Config]]:
    """The names of the rows of a command, and their configs; nothing of a command that makes no runs."""
    words = shlex.split(command)
    if words[0] == "python":
        source = (ROOT / words[1]).read_text(encoding="utf-8")
        assert all(f'"{word}"' in source for word in words if word.startswith("--")), command
        return [], []
    read_command(words[1:])
    if words[1] not in ("run", "sweep"):
        return [], []
    kind, words = words[1], words[2 : words.index("--out")]
    file, config = flags.config(words, flags.RUN if kind == "run" else flags.SWEEP)
    fields = {option[2:]: place for option, place in places.items() if option in (*words, *ALWAYS)}
    if (root := f"root {config.benchmark.name}") in places:
        fields["benchmark.root"] = places[root]
    config = override(config, fields)
    found = [config] if kind == "run" else [trial.config for trial in trials(file, config)]
    return [one.system for one in found], found


@pytest.fixture
def judge(tmp_path: Path) -> dict[str, str]:
    """A pretrained reranker, as far as its tensors tell: sweeps read no other file."""
    save_file({"classifier.weight": np.zeros((1, 4), np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    return {"--select.model": str(tmp_path)}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What stands in for the words in capitals, by option; `root NAME`: the folder of a benchmark."""
    names = ("lamp_7", "personabench", "longmemeval", "longlamp", "squad", "sgd", "bert", "judge", "llama")
    made = {name: tmp_path_factory.mktemp(name) for name in names}
    for split in ("train", "dev"):
        write_tweets(made["lamp_7"], split)
    personabench.make(made["personabench"])
    longmemeval.write(made["longmemeval"], longmemeval.question())
    shutil.copy(made["longmemeval"] / "longmemeval_s.json", made["longmemeval"] / "longmemeval_m.json")
    for task, folder in longlamp.FOLDERS.items():
        for split in ("train", "val"):
            rows = [{**row, longlamp.USERS[task]: f"{split}{n}"} for n, row in enumerate(longlamp.rows(task))]
            longlamp.write(made["longlamp"] / folder / f"{split}.jsonl", rows)
    passages = xquad.write(made["squad"] / "dev-v1.1.json", xquad.ENGLISH)
    (made["squad"] / "more.tsv").write_text("id\ttext\ttitle\n1\tMore.\tMore\n")
    dialogue_files.write(made["sgd"], "sgd")
    (made["personabench"] / "expansions.json").write_text(
        json.dumps({f"{n}": {"utterances": ["a"], "reasoning": "b"} for n in range(3)})
    )
    save_models(made["bert"], made["judge"], made["llama"])
    folders = made | dict.fromkeys(longlamp.FOLDERS, made["longlamp"])
    roots = {f"root {name}": str(folder) for name, folder in folders.items()}
    models = {
        "encoder.model": "bert",
        "select.model": "judge",
        "llm.model": "llama",
        "select.llm.model": "llama",
    }
    return {
        **roots,
        **{f"--{option}": str(made[name]) for option, name in models.items()},
        "--benchmark.passages": str(passages),
        "--benchmark.distractors": str(made["squad"] / "more.tsv"),
        "--expand.released": str(made["personabench"] / "expansions.json"),
    }


def write_tweets(folder: Path, split: str) -> None:
    """A split of LaMP-7: four users, three tweets each."""
    asked = [{"id": f"{split}{n}", "input": f"Paraphrase the following tweet: tea {n}"} for n in range(4)]
    for one in asked:
        history = [{"id": f"{one['id']}-{i}", "text": f"tea {i}"} for i in range(3)]
        one |= {"profile": history}
    golds = [{"id": one["id"], "output": "i love tea"} for one in asked]
    (folder / f"{split}_questions.json").write_text(json.dumps(asked))
    (folder / f"{split}_outputs.json").write_text(json.dumps({"task": "LaMP_7", "golds": golds}))


def save_models(encoder: Path, judge: Path, llm: Path) -> None:
    """Random models with as many positions and heads as the papers' configs ask for."""
    import torch
    import transformers
    from tiny import save_byte_tokenizer

    torch.manual_seed(0)
    sizes: dict[str, Any] = dict(
        hidden_size=24, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    for folder, model in (
        (encoder, transformers.BertModel),
        (judge, transformers.BertForSequenceClassification),
    ):
        count = save_byte_tokenizer(folder, special=("[PAD]", "[UNK]", "[CLS]", "[SEP]"))
        one_score: dict[str, Any] = dict(num_labels=1, max_position_embeddings=512)
        options = transformers.BertConfig(vocab_size=count, **sizes, **one_score)
        model(options).save_pretrained(folder)
    count = save_byte_tokenizer(llm)
    ids: dict[str, Any] = dict(bos_token_id=0, eos_token_id=1, pad_token_id=0)
    options = transformers.LlamaConfig(vocab_size=count, max_position_embeddings=4096, **sizes, **ids)
    transformers.LlamaForCausalLM(options).save_pretrained(llm)


@pytest.mark.parametrize("name", PAPERS)
def test_every_command_has_the_rows_that_its_map_names(name: str, judge: dict[str, str]) -> None:
    for row in MAPS[name]:
        made = {one for command in row.commands for one in planned(command, judge)[0]}
        for wanted in row.names:
            assert fnmatch.filter(made, wanted), f"{name}, {row.about}: no row {wanted!r} of {sorted(made)}"


@pytest.mark.long
@pytest.mark.parametrize("name", PAPERS)
def test_every_run_of_every_command_can_be_planned(
    name: str, places: dict[str, str], fresh_cache: Path
) -> None:
    """Some 280 runs: no row asks for what its methods, the data or the models do not have."""
    for command in {command for row in MAPS[name] for command in row.commands}:
        for config in planned(command, places)[1]:
            assert Plan(config).name


def test_a_name_that_is_not_there_is_found(judge: dict[str, str]) -> None:
    """The map can be wrong: of a sweep, an option, a row, or a table that is left out."""
    from pbr_jax.base.types import UserError

    for command in ("sweep ablations/cfrag_moduls --out DIR", "run cfrag --retrive.k 3 --out DIR"):
        with pytest.raises(UserError):
            planned(f"pbr-jax {command}", judge)
    names, _ = planned("pbr-jax sweep ablations/cfrag_users --benchmark.name lamp_7 --out DIR", judge)
    assert not fnmatch.filter(names, "cfrag, every user")
    figures = {("Figure", number) for number in (2, 3, 4)}
    assert numbered("Tables 1, 3, Figures 2 to 4") == {("Table", 1), ("Table", 3), *figures}
