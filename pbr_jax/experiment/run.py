"""A run: from a config to the files of its folder.

`run(config, out)` writes config.json, results.json, predictions.jsonl, texts.jsonl and log.jsonl. A finished
run is not computed again, and an interrupted run continues where it stopped.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from pbr_jax import llm
from pbr_jax.base import processes as hosts
from pbr_jax.base.provenance import provenance
from pbr_jax.base.types import UserError
from pbr_jax.cache.artefacts import log_of
from pbr_jax.config import Config, override, to_dict
from pbr_jax.config import values as values_of
from pbr_jax.data.passages import is_split
from pbr_jax.eval.run_files import RESULTS
from pbr_jax.experiment import evaluation
from pbr_jax.experiment.plan import Plan
from pbr_jax.experiment.results import Results
from pbr_jax.experiment.run_folder import RunFolder
from pbr_jax.graph import Stage, Value, logging_to, tell, walk
from pbr_jax.graph.lists import stages
from pbr_jax.llm.answers_file import location
from pbr_jax.llm.usage import cost
from pbr_jax.options import LLM
from pbr_jax.stages import judged, programs
from pbr_jax.stages.answers import Answers, Likelihoods
from pbr_jax.stages.profiles import LABEL
from pbr_jax.stages.rankings import Rankings
from pbr_jax.stages.run import MEASURES, METRICS, TALLY, USAGE, by_stage, line
from pbr_jax.stages.trained import reports
from pbr_jax.stream import folds
from pbr_jax.stream import stage as stream
from pbr_jax.text.lengths import CUT, cut_notes

_ANSWERING = ("generate", "stream", "stream_last")  # stages whose bad answers are told question by question

# Fields that may name a file or folder.
_PLACES = ("root", "training_root", "passages", "distractors", "task", "model", "adapter", "state")


def run(config: Config, out: str | Path, *, overwrite: bool = False) -> Results:
    """Runs one config and writes its results into the folder `out`.

    Raises UserError for errors that the user can correct: invalid data, weights or fields, or an `out` that
    contains something else. `overwrite` allows files of another run to be replaced; other files never are.
    """
    if not hosts.leads():
        raise UserError("a run is process 0's; the others follow it (pbr_jax.experiment.run.follow)")
    out, events = Path(out), []
    with logging_to(events.append):  # the data is read for the keys, before the folder is the run's
        plan = Plan(config)
        plan.check()
    hosts.order()  # the data are in the cache now
    _agree(plan)
    keys = {label: stage.key for label, stage in stages(plan.last).items()}
    owner = {"identity": plan.identity, "config": to_dict(config), "parts": plan.parts, "keys": keys}
    folder = RunFolder(out, owner)
    with folder.alone():
        folder.claim(overwrite=overwrite)
        found = folder.finished()
        if found is None or not _as_wanted(found, plan):
            log = log_of(out / "log.jsonl")
            for event in events:
                log(event)
            with logging_to(log):
                found = _made(plan, folder)
    hosts.order()
    return Results(out, found)


def follow(config: Config) -> None:
    """Takes part in a run of process 0, in the stages that it announces.

    Raises UserError if this process plans another run than process 0.
    """
    hosts.order()  # waits until the data are in the cache
    plan = Plan(config)
    plan.check()
    _agree(plan)
    known = {node.key: node for node in walk(plan.last) if isinstance(node, Stage)}
    while (key := hosts.order()) is not None:
        known[key].join()


def _agree(plan: Plan) -> None:
    """Raises UserError unless all processes plan the same run."""
    first, *others = hosts.gather(plan.identity)
    for number, identity in enumerate(others, 1):
        if differ := [name for name, value in first.items() if identity.get(name) != value]:
            raise UserError(
                f"process {number} would make another run than process 0 (its {', '.join(differ)} differs); "
                "start all with one config, one version of the code, and the same data and models"
            )


def _as_wanted(found: Mapping[str, Any], plan: Plan) -> bool:
    """Whether a finished folder tells what this config asks for beside its results: texts, and the cost."""
    counts = found.get("counts", {})
    priced = {name: value for name, value in counts.items() if name == "server_cost"}
    return plan.config.keep_texts == ("texts.jsonl" in found["files"]) and priced == _cost(plan, counts)


@dataclass(kw_only=True)
class _Content(evaluation.Evaluated):
    """The content of results.json, with the fields of `Evaluated`."""

    system: str
    benchmark: str
    task: dict[str, Any]
    split: str
    ceiling: bool
    trained: dict[str, dict[str, Any]]
    measured: dict[str, dict[str, int | float]]
    tallies: dict[str, Any]
    seconds: dict[str, float]
    keys: dict[str, str]
    fingerprint: dict[str, Any]


def _made(plan: Plan, folder: RunFolder) -> dict[str, Any]:
    """Computes what is missing, and writes the folder's files, results.json last."""
    programs.release()
    config, store = plan.config, plan.store.value
    if plan.folded:
        folds.make([stage for stage in (plan.ranked, plan.answered, plan.scored) if stage is not None])
    ranked: Rankings = plan.ranked.value
    answered: Answers | None = plan.answered and plan.answered.value
    scored: Likelihoods | None = plan.scored and plan.scored.value

    def read() -> evaluation.Made:
        return evaluation.Made(
            ranked.read(store, store.examples()),
            answered and answered.records(store.examples()),
            scored and scored.records(store.examples()),
            plan.judged and plan.judged.value.records(store.examples()),
        )

    start = time.perf_counter()
    learned = 0 if plan.training is None else plan.training.value.summary.examples
    found, records = evaluation.evaluated(
        plan.task, store, read(), config.eval, seed=config.seed, learned=learned, arrivals=plan.arrivals
    )
    if found.judge is not None:
        found.judge |= judged.identity(config.eval, config.llm)
    if plan.streamed is not None:
        found.learned = stream.reported(plan.streamed.value)
        for block in found.blocks or ():
            block["seconds"] = stream.seconds(config.stream, plan.streamed.value, block["block"])
    seconds = {**_seconds(plan), "evaluate": round(time.perf_counter() - start, 3)}
    trained, measured = reports(plan.last), by_stage(plan.ranked, MEASURES)
    counted = _tallied(plan, LABEL, judged.LABEL)
    found.metrics |= _of_stages(measured, plan.folded)
    found.notes += _notes(plan, trained) + _cuts(answered, counted, found.counts["examples"])
    found.notes += _passages(config) + _cold(config, found.counts)
    found.counts |= {**ranked.tally.counts, **(answered.tally.counts if answered else {})}
    found.counts |= {**counted, **_asked(plan), **_cut_documents(measured)}
    found.notes += cut_notes(found.counts) + _unusable(plan)
    content = _Content(
        **vars(found),
        system=config.system,
        benchmark=config.benchmark.name,
        task={"title": plan.task.title, "metrics": plan.task.metrics, "labels": plan.task.labels},
        split=config.benchmark.split,
        ceiling=any(method.ceiling for method in config.methods),
        trained=trained,
        measured=measured,
        tallies=by_stage(plan.last, TALLY),
        seconds=seconds,
        keys={label: stage.key for label, stage in stages(plan.last).items()},
        fingerprint={**plan.identity, **provenance(), "stages": _made_elsewhere(plan, seconds)},
    )
    for record, example in zip(records, store.examples(), strict=True):
        record |= {"relevant": example.relevant} if example.relevant else {}
    texts = map(line, evaluation.texts(store, read())) if config.keep_texts else None
    values = _written(folder, config, content, records, texts)
    _check_erased(plan, folder)
    return values


def _check_erased(plan: Plan, folder: RunFolder) -> None:
    """Raises UserError if what the run was made from was erased meanwhile; then nothing of it is kept."""
    used = (stage for stage in stages(plan.last).values() if "value" in vars(stage))
    if gone := [stage.label for stage in used if not stage.is_made]:
        (folder.out / RESULTS).unlink()
        folder.sweep_up()
        raise UserError(f"{folder.out}: stage {gone[0]} was erased from the cache meanwhile; run again")


def _written(
    folder: RunFolder,
    config: Config,
    content: _Content,
    records: list[dict[str, Any]],
    texts: Iterable[str] | None,
) -> dict[str, Any]:
    """Writes the files of a finished run; returns the content of results.json, the last one."""
    folder.sign()
    folder.write("config.json", json.dumps(to_dict(_placed(config)), indent=2) + "\n")
    if texts is not None:
        folder.write("texts.jsonl", texts)
    else:
        (folder.out / "texts.jsonl").unlink(missing_ok=True)
        records = [{**record, "prediction": None, "target": None} for record in records]
    folder.write("predictions.jsonl", map(line, records))
    first = ("system", "benchmark", "task", "split", "ceiling")  # of the file
    values = {name: getattr(content, name) for name in (*first, *vars(content))}
    return folder.finish({name: value for name, value in values.items() if value is not None})


def _notes(plan: Plan, trained: Mapping[str, dict[str, Any]]) -> list[str]:
    """What trainings told, which leaves their reports, and what readers of the results should know."""
    config = plan.config
    notes = [f"{label}: {note}" for label, report in trained.items() for note in report.pop("notes")]
    others = "earlier blocks" if config.stream.protocol == "prequential" else "other folds"
    notes += [
        f"{method.section}.method {method.method} learns from {method.supervision} of {others}"
        for method in stream.learners(config)
        if method.supervised
    ]
    notes += [folds.note(plan.ranked)] if plan.folded else []
    if config.feedback.shuffle:
        notes.append(
            "feedback.shuffle: a control, candidates' values are shuffled before they are learned from"
        )
    values = (node for node in walk(plan.last) if isinstance(node, Value))
    models = {option for value in values for option in value.options if isinstance(option, LLM)}
    notes += sorted({note for model in models for note in llm.notes(model)})
    if not config.keep_texts:
        notes.append(_still_cached(plan))
        tell("run", notes[-1])
    return notes


def _cold(config: Config, counts: Mapping[str, Any]) -> list[str]:
    """How many questions of a sample have no history to show."""
    if config.limit is None or not counts["empty_profiles"]:
        return []
    return [
        f"{counts['empty_profiles']} of the {counts['examples']} questions that limit drew have no history; "
        "benchmark.cold_start skip leaves such questions out"
    ]


def _of_stages(measured: Mapping[str, Mapping[str, int | float]], folded: bool) -> dict[str, float]:
    """The metrics that stages measured; of folds their mean, since each fold has a stage of its own."""
    known = {name: [one[name] for one in measured.values() if name in one] for name in METRICS}
    return {name: fmean(found) if folded else found[-1] for name, found in known.items() if found}


def _cuts(answered: Answers | None, counted: Mapping[str, int], examples: int) -> list[str]:
    """What did not fit into prompts where a reader would take it for granted: options, texts to grade."""
    notes, count = [], 0 if answered is None else answered.tally.counts["cut_options"]
    if count:
        notes.append(
            f"the options of {count} of {examples} questions do not fit a prompt, so their middle is cut: "
            "raise prompt.max_tokens, or take generate.options cloze, which lists none"
        )
    if count := counted.get("judge_cut", 0):
        notes.append(f"{count} of {examples} answers were graded with a text cut: raise eval.judge_tokens")
    return notes


def _cut_documents(measured: Mapping[str, Mapping[str, int | float]]) -> dict[str, int | float]:
    """The counts of documents that an encoder did not read to their end: of the one that cut most."""
    found = [{name: one[name] for name in CUT} for one in measured.values() if one.get("cut_documents")]
    return max(found, key=lambda one: one["cut_documents"], default={})


def _unusable(plan: Plan) -> list[str]:
    """What became of bad answers to other requests than the questions themselves."""
    made = stages(plan.last)
    usage = [one for label, one in by_stage(plan.last, USAGE).items() if made[label].name not in _ANSWERING]
    count = sum(one.get("server_unusable", 0) for one in usage)
    if not count:
        return []
    return [
        f"{count} answers to requests beside the questions (expansions, orders, profiles) could not be used "
        "and count as empty texts"
    ]


def _passages(config: Config) -> list[str]:
    """What was ranked and shown where documents are cut into passages."""
    corpus = config.corpus
    if not corpus.active:
        return []
    shown = {
        "passage": "the passage that was found",
        "around": "the passage that was found between those before and after it",
        "document": "the whole document of the passage that was found",
    }
    ranked = "passages" if corpus.pool == "none" else f"documents by their passages ({corpus.pool})"
    return [
        f"documents are cut into passages (corpus.chunk {corpus.chunk}): rankings hold {ranked}, metrics of "
        f"rankings count documents, and prompts show {shown[config.prompt.show]}"
    ]


def _placed(config: Config) -> Config:
    """The config with the files and folders that it names by absolute paths, so that a run can be opened from
    any working directory."""
    values = values_of(config)
    if is_split(config.benchmark):  # no file, whatever lies there by its name
        del values["benchmark.passages"]
    served = {name[: -len(".backend")] for name, value in values.items() if value == "http"}
    places = {
        name: os.path.abspath(value)
        for name, value in values.items()
        if name.rpartition(".")[2] in _PLACES and value and os.path.exists(value)
        if name.rpartition(".")[0] not in served
    }
    return override(config, places)


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


def _tallied(plan: Plan, *labels: str) -> dict[str, int]:
    """What stages with tallies of their own counted, those of all folds together."""
    tallies, total = by_stage(plan.last, TALLY), Counter[str]()
    for name, stage in stages(plan.last).items():
        if stage.label in labels and name in tallies:
            total.update(tallies[name]["counts"])
    return dict(total)


def _asked(plan: Plan) -> dict[str, int | float]:
    """What servers were asked when the stages were made, and its cost where prices are known."""
    counts: Counter[str] = Counter()
    for usage in by_stage(plan.last, USAGE).values():
        counts.update(usage)
    return {**counts, **_cost(plan, counts)}


def _cost(plan: Plan, counts: Mapping[str, int | float]) -> dict[str, float]:
    """Nothing where a server was asked whose prices are unknown."""
    others = {"select": getattr(plan.config.select, "llm", None), judged.LABEL: plan.config.eval.judge_llm}
    rest = {name: count for name, count in counts.items() if name.startswith("server_")}
    asked = []
    for part, other in others.items():
        if other is not None:
            spent = {name: counts.get(f"{part}_{name}", 0) for name in rest}
            rest = {name: count - spent[name] for name, count in rest.items()}
            asked.append((spent, other))
    asked.append((rest, plan.config.llm))
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
