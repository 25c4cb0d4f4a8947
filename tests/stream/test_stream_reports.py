"""Parts of a stream in results.json, and reports over one of them, against counting by hand."""

import json
import random
import re
import statistics
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pbr_jax
from pbr_jax.base.types import UserError
from pbr_jax.cli.main import main
from pbr_jax.config import Config, load, override
from pbr_jax.experiment.run import Results

POPULAR = '''
import json
from collections import Counter
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pbr_jax.config import Config
from pbr_jax.methods.retrieve.scored import scored
from pbr_jax.options import Learner, Retrieve, Stream


@dataclass(frozen=True, kw_only=True)
class Popular(Learner, Retrieve):
    """Passages that were relevant to questions of past blocks, in the order of how often."""

    method: Literal["popular"] = "popular"

    @property
    def supervised(self):
        return True

    def needs(self, run):
        run.learns_from_others("popular")
        return {"store": run.data}

    def slot(self, tally, *, state, store):
        file = state / "counts.json"
        counts = json.loads(file.read_text()) if file.exists() else {}

        def score(example, query, rows):
            return np.array([counts.get(document.id, 0) for document in store.documents(rows)], float)

        return scored(store, self.k, score)

    def learn(self, blocks, *, state, out, store):
        counts = Counter(g[0] for block in blocks for e in block.examples for g in e.relevant)
        (out / "counts.json").write_text(json.dumps(counts))

    def report(self, blocks, *, state, store):
        return {"questions": sum(len(block.examples) for block in blocks)}


def get_config():
    return Config(system="popular", collaboration="signals", retrieve=Popular(), stream=Stream(size=8))
'''
COUNT = 40

pytestmark = pytest.mark.usefixtures("fresh_cache")


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Results]:
    """Runs the learner or bm25 on forty questions on twelve paragraphs."""
    draw = random.Random(2)
    words = [f"w{i}" for i in range(30)]
    texts = [f"{i} " + " ".join(draw.choices(words, k=12)) for i in range(12)]
    paragraphs: list[dict[str, Any]] = [{"context": text, "qas": []} for text in texts]
    for i in range(COUNT):
        place = draw.randrange(12)
        asked = " ".join([*draw.choices(texts[place].split(), k=2), *draw.choices(words, k=1)])
        answer = {"text": texts[place].split()[1], "answer_start": 2}
        paragraphs[place]["qas"].append({"id": f"q{i}", "question": asked, "answers": [answer]})
    articles = [{"title": f"a{i}", "paragraphs": paragraphs[i * 2 : i * 2 + 2]} for i in range(6)]
    place = tmp_path / "dev-v1.1.json"
    place.write_text(json.dumps({"version": "1.1", "data": articles}))
    file = tmp_path / "popular.py"
    file.write_text(POPULAR)
    told = {"benchmark.name": "squad", "benchmark.root": str(tmp_path), "benchmark.passages": str(place),
            "generate.method": "none", "eval.resamples": 50, "retrieve.k": 5}  # fmt: skip

    def run(what: str, out: str, **options: Any) -> Results:
        start = load(file).config if what == "popular" else Config(system="bm25")
        own = {} if what == "popular" else {"retrieve.method": "bm25"}
        told_here = {name.replace("__", "."): value for name, value in options.items()}
        return pbr_jax.run(override(start, {**told, **own, "stream.size": 8, **told_here}), tmp_path / out)

    return run


def of(lines: list[dict[str, Any]], part: str) -> list[float]:
    return [line["metrics"]["recall@5"] for line in lines if part in line["over"]]


@pytest.mark.parametrize("order", ["shuffled", "shifted"])
def test_parts_of_a_stream(order: str, run: Callable[..., Results]):
    found = run("popular", "out", stream__order=order, seed=3)
    lines = found.records()
    order_of = sorted(lines, key=lambda line: line["place"])
    assert [line["place"] for line in order_of] == list(range(COUNT))
    assert [line["block"] for line in order_of] == [place // 8 for place in range(COUNT)]
    parts = found.values["over"]
    wanted = {"second_half", "seen", "new"} | (
        {"before_shift", "after_shift"} if order == "shifted" else set()
    )
    assert set(parts) == wanted
    for part, values in parts.items():
        assert values["n"] == len(of(lines, part))
        assert values["metrics"]["recall@5"] == pytest.approx(statistics.fmean(of(lines, part)))
        low, high = values["intervals"]["recall@5"]
        assert low <= values["metrics"]["recall@5"] <= high
    assert ["second_half" in line["over"] for line in order_of] == [place >= 20 for place in range(COUNT)]
    assert sum(parts[name]["n"] for name in ("seen", "new")) == COUNT
    if order == "shifted":
        shift = found.values["shift"]
        assert [("before_shift" in line["over"]) for line in order_of] == [i < shift for i in range(COUNT)]
    assert found.values["learned"] == {"retrieve": {"questions": COUNT}}


def test_a_report_over_the_second_half(
    run: Callable[..., Results], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for seed in (0, 1):
        for what in ("bm25", "popular"):
            run(what, f"{what}{seed}", stream__order="shuffled", seed=seed)
    folders = [str(tmp_path / f"{what}{seed}") for seed in (0, 1) for what in ("bm25", "popular")]
    capsys.readouterr()
    assert (
        main(
            [
                "report",
                *folders,
                "--reference",
                "bm25, retrieve.method bm25",
                "--over",
                "second_half",
                "--all",
            ]
        )
        == 0
    )
    sections = re.split(r"^## ", capsys.readouterr().out, flags=re.MULTILINE)[1:]
    assert [section.split("\n")[0].split(", ", 2)[2] for section in sections] == [
        f"second_half (order of arrival: shuffled, seed {seed})" for seed in (0, 1)
    ]  # fmt: skip
    for seed, section in enumerate(sections):
        values = [Results(tmp_path / f"{what}{seed}", {}).records() for what in ("popular", "bm25")]
        means = [statistics.fmean(of(lines, "second_half")) for lines in values]
        assert f"{means[0]:.4f}" in section
        (header,) = re.findall(r"^\| run \| Δ.*$", section, flags=re.MULTILINE)
        (line,) = re.findall(r"^\| popular.* \| [+-]\d\.\d+.*$", section, flags=re.MULTILINE)
        cells = dict(zip(header.split(" | "), line.split(" | "), strict=True))
        assert next(cell for name, cell in cells.items() if name.startswith("Δ recall@5")).startswith(
            f"{means[0] - means[1]:+.4f}"
        )
        assert "n = 20 questions" in section
    run("popular", "released")  # another half: a section by itself, where no run is of the reference
    words = ["report", *folders, str(tmp_path / "released"), "--over", "second_half", "--reference"]
    assert main([*words, "popular"]) == main([*words, "bm25, retrieve.method bm25"]) == 0
    assert capsys.readouterr().out.count("order of arrival: released") == 2
    assert main([*words, "bm26"]) == 2
    assert "no run is of the reference 'bm26'" in capsys.readouterr().err
    assert main(["report", *folders]) == 0  # over the whole stream seeds are one row
    whole = capsys.readouterr().out
    assert "By part of the stream" in whole
    assert "(2 seeds)" in whole
    assert re.search(r"\| retrieve: questions \| 40 \|", whole)
    assert main(["report", folders[0], "--over", "before_shift"]) == 2
    assert (
        "no scored question is of the part 'before_shift'; there are second_half" in capsys.readouterr().err
    )


def test_runs_without_a_stream_have_no_parts(
    run: Callable[..., Results], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    found = run("bm25", "out", stream__size=None)
    assert "over" not in found.values
    assert main(["report", str(tmp_path / "out"), "--over", "new"]) == 2
    assert "it has no parts of a stream; set stream.size" in capsys.readouterr().err


# -- what was learned, elsewhere ---------------------------------------------------------------------------


def test_an_export_has_the_files_of_the_last_state(
    run: Callable[..., Results], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run("popular", "out", stream__order="shuffled")
    state = str(tmp_path / "a" / "state")
    words = ["export", str(tmp_path / "out"), "--format", "state", "--slot", "retrieve", "--out", state]
    assert main(words) == 0
    out = tmp_path / "a" / "state"
    assert {path.name for path in out.iterdir()} == {"counts.json", "export.json"}
    assert [path.name for path in out.parent.iterdir()] == ["state"]
    assert {oct(path.stat().st_mode)[-3:] for path in (out, *out.iterdir())} == {"700", "600"}
    questions = pbr_jax.open(tmp_path / "out").store.examples()  # all, those of the last block included
    assert json.loads((out / "counts.json").read_text()) == Counter(e.relevant[0][0] for e in questions)
    told = json.loads((out / "export.json").read_text())
    assert (told["slot"], told["method"], told["encoder"], told["benchmark"]) == (
        "retrieve",
        "popular",
        None,
        "squad",
    )
    assert told["options"]["k"] == 5
    before = (out / "counts.json").stat().st_mtime_ns
    capsys.readouterr()
    assert main(words) == 2
    assert "state is there already; choose another --out" in capsys.readouterr().err
    assert (out / "counts.json").stat().st_mtime_ns == before
    assert main([*words[:5], "select", "--out", str(tmp_path / "b")]) == 2
    assert "nothing in the slot 'select' was trained" in capsys.readouterr().err
    run("bm25", "frozen")
    assert main(["export", str(tmp_path / "frozen"), *words[2:-1], str(tmp_path / "b")]) == 2
    assert "so it has no state" in capsys.readouterr().err
    for blocks, error in ((0, "no state after 0 blocks"), (5, "no state after 5 blocks: the stream has 5")):
        assert main([*words[:-1], str(tmp_path / "b"), "--blocks", str(blocks)]) == 2
        assert error in capsys.readouterr().err
    assert not (tmp_path / "b").exists()
    assert main([*words[:-1], str(tmp_path / "b"), "--blocks", "2"]) == 0
    lines = Results(tmp_path / "out", {}).records()
    early = {line["id"] for line in lines if line["place"] < 16}
    questions = [e for e in pbr_jax.open(tmp_path / "out").store.examples() if e.id in early]
    counts = json.loads((tmp_path / "b" / "counts.json").read_text())
    assert counts == Counter(e.relevant[0][0] for e in questions)


def test_backward_transfer(run: Callable[..., Results], tmp_path: Path):
    """Against counting: passages by how often they were relevant, after each block and at the end."""
    found = run("popular", "out", stream__order="shuffled")
    store = pbr_jax.open(tmp_path / "out").store
    examples = {e.id: e for e in store.examples()}
    lines = sorted(found.records(), key=lambda line: line["place"])
    order = [examples[line["id"]] for line in lines]
    passages = [document.id for document in store.documents(store.history(""))]

    def recall(counts: Counter[str], example: Any) -> float:
        return float(example.relevant[0][0] in sorted(passages, key=lambda id: -counts[id])[:5])

    after = [Counter(e.relevant[0][0] for e in order[: 8 * (i // 8 + 1)]) for i in range(COUNT - 8)]
    whole = Counter(e.relevant[0][0] for e in order)
    transfer = pbr_jax.backward_transfer(tmp_path / "out")["recall@5"]
    wanted = [
        statistics.fmean(recall(one, e) for one, e in zip(counts, order, strict=False))
        for counts in (after, [whole] * (COUNT - 8))
    ]
    assert (transfer.learned, transfer.last) == (pytest.approx(wanted[0]), pytest.approx(wanted[1]))
    assert wanted[0] != wanted[1]
    assert transfer.backward.value == pytest.approx(transfer.last - transfer.learned)
    assert transfer.arrival == pytest.approx(
        statistics.fmean(line["metrics"]["recall@5"] for line in lines[: COUNT - 8])
    )
    assert transfer.backward.low <= transfer.backward.value <= transfer.backward.high


def test_backward_transfer_needs_blocks_and_their_states(run: Callable[..., Results], tmp_path: Path):
    run("popular", "one", stream__size=100)
    with pytest.raises(UserError, match="no prequential stream of two blocks or more"):
        pbr_jax.backward_transfer(tmp_path / "one")
    run("popular", "kept", stream__keep=1)
    with pytest.raises(UserError, match=r"run without stream\.keep, with PBR_JAX_CACHE"):
        pbr_jax.backward_transfer(tmp_path / "kept")
    run("bm25", "frozen")
    with pytest.raises(UserError, match="none of its methods learns from a stream"):
        pbr_jax.backward_transfer(tmp_path / "frozen")
