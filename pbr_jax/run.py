"""A run: stages, metrics, and the files of its folder.

`run(config, out)` writes config.json, results.json, predictions.jsonl and log.jsonl. Running it again finds
everything made and does nothing; a run killed anywhere continues where it was.
"""

import dataclasses
import json
import math
import platform
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from pbr_jax.artefacts import Log, write_text
from pbr_jax.config import Config, digest, from_dict, to_dict
from pbr_jax.data_stages import line
from pbr_jax.eval.evaluate import evaluate
from pbr_jax.pipeline.pipeline import answer, rank
from pbr_jax.stages import Stages
from pbr_jax.text import prompts
from pbr_jax.types import Candidate, Example, UserError

_VERSIONED = ("pbr-jax", "jax", "jaxlib", "flax", "numpy", "tokenizers", "bm25s", "rouge-score")


@dataclass(frozen=True)
class Results:
    """What a run found; `values` is the content of results.json."""

    path: Path
    values: Mapping[str, Any]

    @property
    def metrics(self) -> dict[str, float]:
        return self.values["metrics"]

    @property
    def intervals(self) -> dict[str, list[float]]:
        return self.values["intervals"]

    def predictions(self) -> list[dict[str, Any]]:
        """The lines of predictions.jsonl."""
        with (self.path / "predictions.jsonl").open(encoding="utf-8") as file:
            return [json.loads(record) for record in file]


def run(config: Config, out: str | Path) -> Results:
    """Runs one config and writes its results into the folder `out`.

    Raises UserError for whatever the user can mend: data, weights, fields, an unusable output folder.
    """
    out = Path(out)
    check_writable(out)
    stages = Stages(config, log=_logger(out / "log.jsonl"))
    stages.check()
    identity = {"config": digest(to_dict(config)), "data": stages.data_hash}
    if stages.training_hash:
        identity["training"] = stages.training_hash
    found = _finished(out, identity)
    if found is not None:
        return found
    values, predictions = _evaluate(stages, identity)
    write_text(out / "config.json", json.dumps(to_dict(config), indent=2) + "\n")
    write_text(out / "predictions.jsonl", "".join(map(line, predictions)))
    write_text(out / "results.json", json.dumps(values, indent=2, ensure_ascii=False) + "\n")
    return Results(out, values)


def check_writable(out: Path) -> None:
    """Finds out before the work, not after it, that the folder cannot take the results."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_text(out / ".writable", "")
        (out / ".writable").unlink()
    except OSError as error:
        raise UserError(
            f"cannot write to the output folder {out}: {error.strerror}; choose another --out"
        ) from error


def _logger(path: Path) -> Log:
    def log(event: Mapping[str, Any]) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(line({"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **event}))

    return log


def _finished(out: Path, identity: Mapping[str, str]) -> Results | None:
    """The results that stand in the folder, if they are of this config and this data."""
    try:
        values = json.loads((out / "results.json").read_text(encoding="utf-8"))
        same = all(values["fingerprint"][name] == value for name, value in identity.items())
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Results(out, values) if same and (out / "predictions.jsonl").is_file() else None


def _evaluate(stages: Stages, identity: Mapping[str, str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The content of results.json and predictions.jsonl."""
    config, task, summary = stages.config, stages.task, stages.store.summary
    records, examples = list(_records(stages)), list(stages.store.examples())
    start = time.perf_counter()
    evaluation = evaluate(
        task,
        ids=[example.id for example in examples],
        users=[example.user_id for example in examples],
        predictions=[record["prediction"] for record in records] if stages.generates else None,
        targets=[example.target for example in examples],
        alternatives=[example.alternatives for example in examples],
        rankings=[[d["id"] for d in record["documents"]] for record in records],
        relevant=[example.relevant for example in examples],
        scored=[example.scored for example in examples],
        categories=[example.category for example in examples],
        resamples=config.eval.resamples,
        confidence=config.eval.confidence,
        seed=config.seed,
    )
    seconds = {name: artefact.seconds for name, artefact in stages.artefacts.items()}
    seconds |= {part: round(spent, 3) for part, spent in stages.tally.seconds.items()}
    values = {
        "system": config.system,
        "benchmark": config.benchmark.name,
        "split": config.benchmark.split,
        "n": evaluation.n,
        "dropped": summary.examples - len(records),
        "metrics": evaluation.metrics,
        "intervals": {name: list(pair) for name, pair in evaluation.intervals.items()},
        "seconds": {**seconds, "evaluate": round(time.perf_counter() - start, 3)},
        "by_category": evaluation.by_category,
        "variants": evaluation.variants,
        "notes": evaluation.notes,
        "counts": {
            "examples": summary.examples,
            "unscored": sum(not example.scored for example in examples),
            "users": summary.users,
            "documents": summary.documents,
            "empty_profiles": summary.empty_profiles,
            "targets_in_history": summary.targets_in_history,
            "targets_in_other_histories": summary.targets_elsewhere,
            "training_examples": summary.training,
            **stages.tally.counts,
        },
        "fingerprint": {**identity, "commit": commit(), "versions": _versions()},
    }
    for record, metrics in zip(records, evaluation.per_example, strict=True):
        record["metrics"] = metrics
    return values, records


def _records(stages: Stages) -> Iterator[dict[str, Any]]:
    """A line of predictions.jsonl for every example, without its metrics."""
    nothing = {"text": "", "prompt_tokens": 0}
    generations = stages.generations() if stages.generates else iter(lambda: nothing, None)
    for example, ranking, made in zip(stages.store.examples(), stages.rankings(), generations, strict=False):
        yield {
            "id": example.id,
            "user_id": example.user_id,
            "prediction": prompts.answer(stages.task, made["text"]),
            "target": example.target,
            "prompt_tokens": made["prompt_tokens"],
            "documents": [
                {"id": c.document.id, "user_id": c.document.user_id, "score": c.score} for c in ranking
            ],
        }


@dataclass(frozen=True)
class Answer:
    """The answer to one question, and the documents that stood in its prompt."""

    text: str
    documents: list[Candidate]


def ask(folder: str | Path, user: str, query: str) -> Answer:
    """Answers one question of one user with the system, data and models of a finished run.

    The user's whole history is visible. Raises UserError for a folder without a run and an unknown user.
    """
    config = read_config(Path(folder))
    config = dataclasses.replace(config, generate=dataclasses.replace(config.generate, method="ipa"))
    stages = Stages(config)
    stages.store.history(user)  # an unknown user is an error before any model is loaded
    # Asked now: after everything that is dated.
    example = Example(id="", user_id=user, query=query, input=query, target=None, time=math.inf)
    ranking = rank(stages.pipeline, [example], config.collaboration)[0]
    text = answer(stages.pipeline, stages.task, [example], [ranking])[0]
    return Answer(text, ranking)


def read_config(folder: Path) -> Config:
    """The resolved config of a finished run."""
    path = folder / "config.json"
    try:
        return from_dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise UserError(f"{folder} is not the folder of a finished run: config.json is missing") from error
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error


@lru_cache(maxsize=1)
def commit() -> str:
    """The commit of the package's source, "+" marking local changes; "" outside a checkout."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(
            ("git", "-C", str(here), *arguments), capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "run.py")  # else the checkout around us is somebody else's
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _VERSIONED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
