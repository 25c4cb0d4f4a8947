"""A run: from a config to the files of its folder.

`run(config, out)` writes config.json, results.json, predictions.jsonl, texts.jsonl and log.jsonl. Running it
again finds everything made and does nothing; a run killed anywhere continues where it was.
"""

import json
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pbr_jax import hashes
from pbr_jax import results as evaluation
from pbr_jax.artefacts import Log
from pbr_jax.config import Config, from_dict, override, to_dict
from pbr_jax.eval.run_files import read_json, verified
from pbr_jax.faults import located
from pbr_jax.files import cache_folder, open_private, parse_json
from pbr_jax.graph import logging_to, stages, tell
from pbr_jax.llm.answers_file import location
from pbr_jax.llm.usage import cost
from pbr_jax.models.thinking import after_thinking
from pbr_jax.parts import programs
from pbr_jax.parts.answers import Answers, documents_in_prompt
from pbr_jax.parts.likelihood import Likelihoods
from pbr_jax.parts.measures import METRICS, measures
from pbr_jax.parts.rankings import Rankings
from pbr_jax.parts.run import line, read_usage
from pbr_jax.parts.trained import reports
from pbr_jax.pipeline import Pipeline, Tally, rank
from pbr_jax.plan import Plan
from pbr_jax.provenance import provenance
from pbr_jax.run_folder import RunFolder, altered
from pbr_jax.text import prompts
from pbr_jax.types import Candidate, Example, UserError


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
            return [parse_json(record) for record in file]


def run(config: Config, out: str | Path, *, overwrite: bool = False) -> Results:
    """Runs one config and writes its results into the folder `out`.

    Raises UserError for whatever the user can mend: data, weights, fields, a folder that holds something
    else (another run's files are replaced only with `overwrite`, and nobody else's ever).
    """
    out, plan = Path(out), Plan(config)
    plan.check()
    owner = {"identity": plan.identity, "config": to_dict(config), "parts": plan.parts}
    folder = RunFolder(out, owner)
    with folder.alone():
        folder.claim(overwrite=overwrite)
        found = folder.finished()
        if found is None or not _as_wanted(found, plan):
            with logging_to(_logger(out / "log.jsonl")):
                found = _made(plan, folder)
    return Results(out, found)


def _as_wanted(found: Mapping[str, Any], plan: Plan) -> bool:
    """Whether a finished folder tells what this config asks for beside its results: texts, and the cost."""
    counts = found.get("counts", {})
    priced = {name: value for name, value in counts.items() if name == "server_cost"}
    return plan.config.keep_texts == ("texts.jsonl" in found["files"]) and priced == _cost(plan, counts)


def _made(plan: Plan, folder: RunFolder) -> dict[str, Any]:
    """Computes what is missing, and writes the folder's files, results.json last."""
    programs.release()
    config, store = plan.config, plan.data.value
    answered: Answers | None = None if plan.answered is None else plan.answered.value
    ranked: Rankings = plan.ranked.value

    scored: Likelihoods | None = None if plan.scored is None else plan.scored.value

    def read() -> evaluation.Made:
        return evaluation.Made(
            ranked.read(store, store.examples()),
            answered and answered.records(store.examples()),
            scored and scored.records(store.examples()),
        )

    start = time.perf_counter()
    learned = 0 if plan.training is None else plan.training.value.summary.examples
    found, records = evaluation.evaluated(
        plan.task, store, read(), config.eval, seed=config.seed, learned=learned
    )
    spent = round(time.perf_counter() - start, 3)
    trained, measured = reports(plan.last), measures(plan.ranked)
    for values in measured.values():
        found["metrics"] |= {name: values[name] for name in METRICS if name in values}
    notes = [f"{label}: {note}" for label, report in trained.items() for note in report.pop("notes")]
    if not config.keep_texts:
        notes.append(_still_cached(plan))
        tell("run", notes[-1])
    seconds = _seconds(plan)
    values = {
        "system": plan.system,
        "benchmark": config.benchmark.name,
        "split": config.benchmark.split,
        "ceiling": any(method.ceiling for method in config.methods),
        **found,
        "counts": {
            **found["counts"],
            **ranked.tally.counts,
            **(answered.tally.counts if answered else {}),
            **_asked(plan),
        },
        "notes": found["notes"] + notes,
        "trained": trained,
        "measured": measured,
        "seconds": {**seconds, "evaluate": spent},
        "keys": {label: stage.key for label, stage in stages(plan.last).items()},
        "fingerprint": {**plan.identity, **provenance(), "stages": _made_elsewhere(plan, seconds)},
    }
    folder.sign()
    folder.write("config.json", json.dumps(to_dict(config), indent=2) + "\n")
    if config.keep_texts:
        folder.write("texts.jsonl", map(line, evaluation.texts(store, read())))
    else:
        (folder.out / "texts.jsonl").unlink(missing_ok=True)
        records = [{**record, "prediction": None, "target": None} for record in records]
    folder.write("predictions.jsonl", map(line, records))
    return folder.finish(values)


def _made_elsewhere(plan: Plan, there: Container[str]) -> dict[str, list[dict[str, Any]]]:
    """Commit and versions of the processes that made the stages, where they are not those of this one.

    An empty list: an older version made the stage, and did not record them.
    """
    found = {label: stage.made_by for label, stage in stages(plan.last).items() if label in there}
    return {label: processes for label, processes in found.items() if processes != [provenance()]}


def _still_cached(plan: Plan) -> str:
    """What there is of users' words outside of a folder that keeps none."""
    made = ", ".join(stages(plan.last))
    answers = " and the language model's answers (llm.sqlite)" if location().is_file() else ""
    return (
        "with keep_texts off the run's folder holds no question, prompt, document, answer or target; the "
        f"cache (PBR_JAX_CACHE) still holds them in the stages {made}{answers}"
    )


def _asked(plan: Plan) -> dict[str, int | float]:
    """What servers were asked when the stages were made, and its cost where prices are known."""
    counts: Counter[str] = Counter()
    for stage in stages(plan.last).values():
        counts += read_usage(stage.folder)
    return {**counts, **_cost(plan, counts)}


def _cost(plan: Plan, counts: Mapping[str, int | float]) -> dict[str, float]:
    """Nothing where a server was asked whose prices are unknown."""
    other = getattr(plan.config.select, "llm", None)
    chosen = {name: counts.get(f"select_{name}", 0) for name in counts if name.startswith("server_")}
    rest = {name: counts[name] - chosen[name] for name in chosen}
    asked = [(rest, plan.config.llm), *([] if other is None else [(chosen, other)])]
    prices = [
        cost(spent, llm.price_prompt, llm.price_completion)
        for spent, llm in asked
        if spent.get("server_calls")
    ]
    known = [price for price in prices if price is not None]
    return {"server_cost": round(sum(known), 6)} if known and len(known) == len(prices) else {}


def _seconds(plan: Plan) -> dict[str, float]:
    """Seconds that each stage took when it was made, and parts of ranking and answering by their names."""
    found = {label: stage.seconds for label, stage in stages(plan.last).items()}
    tallies = [plan.ranked.value.tally, *([plan.answered.value.tally] if plan.answered else [])]
    parts = {name: round(spent, 3) for tally in tallies for name, spent in tally.seconds.items()}
    return {label: spent for label, spent in found.items() if spent is not None} | parts


def _logger(path: Path) -> Log:
    def log(event: Mapping[str, Any]) -> None:
        with located(path), open_private(path) as file:
            file.write(line({"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **event}))

    return log


@dataclass(frozen=True)
class Answer:
    """The answer to one question, and the documents that stood in its prompt."""

    text: str
    documents: list[Candidate]


def ask(folder: str | Path, user: str, query: str) -> Answer:
    """Answers one question of one user with the system, data and models of a finished run.

    The user's whole history is visible. Raises UserError for a folder without a run, an unknown user, and an
    answer without text.
    """
    system = _open(Path(folder))
    plan = system.plan
    plan.data.value.history(user)  # an unknown user is an error before any model is loaded
    # Asked now: after everything that is dated.
    example = Example(id="", user_id=user, query=query, input=query, target=None, time=math.inf)
    ranking = rank(system.pipeline, [example], plan.config.collaboration)[0]
    shown = ranking[: documents_in_prompt(plan.run)]
    answer = system.generate([example], [shown])[0]
    text = prompts.answer(plan.task, answer.text)
    if not text:
        what = "ends inside its thinking" if after_thinking(answer.text) is None else "has no text"
        raise UserError(
            f"the model's answer {what}; raise generate.max_new_tokens in the run's config, or turn the "
            "model's thinking off, and run again"
        )
    return Answer(text, shown[: answer.prompt.documents])


class _System:
    """A finished run that answers questions: its plan, and its slots once they are wanted."""

    def __init__(self, folder: Path) -> None:
        with hashes.watching() as self._files:
            plan = plan_of(folder)
            if plan.config.generate.method in ("auto", "none"):
                plan = Plan(override(plan.config, {"generate.method": "ipa"}))
                plan.check()
        self.plan = plan

    def is_current(self) -> bool:
        """Whether models, data and what the cache holds of them are still those that were opened."""
        read = (stage for stage in stages(self.plan.last).values() if "value" in vars(stage))
        return hashes.unchanged(self._files) and all(stage.seconds is not None for stage in read)

    @cached_property
    def pipeline(self) -> Pipeline:
        return pipeline_of(self.plan)

    @cached_property
    def generate(self) -> Callable[..., Any]:
        """`generate(examples, rankings)` gives the models' answers."""
        answered = self.plan.answered
        if answered is None:
            method = self.plan.config.generate.method
            raise UserError(f"generate.method {method} answers nothing; set it to ipa")
        slot, write = answered.needs["generate"].value(Tally()), answered.needs["write"].value
        return lambda examples, rankings: slot(examples, rankings, write)


_opened: dict[tuple[object, ...], _System] = {}


def _open(folder: Path) -> _System:
    """The system of a run; the last one stays open in this thread, as long as its files are as they were."""
    key = (folder.resolve(), verified(folder)["digest"], cache_folder(), threading.get_ident())
    found = _opened.get(key)
    if found is None or not found.is_current():
        found = _System(folder)
        _opened.clear()
        _opened[key] = found
    return found


def plan_of(folder: Path) -> Plan:
    """The plan of a finished run. Raises UserError where its files, data or models are not as they were."""
    plan = Plan(read_config(folder))
    plan.check()
    changed = altered(folder, plan.parts, plan.hashes)
    if changed:
        raise UserError(
            f"{folder}: what the run used has changed since ({', '.join(changed)}); "
            "run it anew, into another folder or with --overwrite"
        )
    return plan


def pipeline_of(plan: Plan) -> Pipeline:
    """The first four slots of a plan, ready to rank."""
    tally = Tally()
    return Pipeline(**{name: plan.ranked.needs[name].value(tally) for name in Pipeline._fields})


def read_config(folder: Path) -> Config:
    """The resolved config of a finished run, whose files are as the run wrote them."""
    verified(folder)
    path = folder / "config.json"
    try:
        return from_dict(read_json(path))
    except UserError as error:
        raise error if str(folder) in str(error) else UserError(f"{path}: {error}") from error
