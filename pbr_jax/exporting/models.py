"""What a run has trained, in the formats of other programs: LoRA adapters, and encoders with a model card.

A tuned encoder becomes a folder that sentence-transformers loads; names of tensors are those of transformers'
BertModel (RobertaModel, XLMRobertaModel)."""

import json
import re
import shutil
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pbr_jax.base.files import write_text
from pbr_jax.base.types import Params, UserError
from pbr_jax.config import to_dict
from pbr_jax.eval.runs import Run as Finished
from pbr_jax.eval.runs import read_run
from pbr_jax.experiment.opening import plan_of
from pbr_jax.experiment.plan import Plan
from pbr_jax.graph import Node, Stage
from pbr_jax.graph.lists import unified
from pbr_jax.methods.retrieve.fused import Fused
from pbr_jax.models import adapter_file, bert, sentence_folder
from pbr_jax.models.bert import BertConfig
from pbr_jax.models.pretrained import read_json, read_tensors
from pbr_jax.models.rules import flatten, transpose
from pbr_jax.stages import generator
from pbr_jax.stages.trained import load_report
from pbr_jax.text.encode import TextEncoder


def write_adapter(folder: Path, run: Path) -> None:
    """Writes the adapter of a finished run into a folder.

    It is trained now where it has left the cache, or where the run is of folds.

    Raises UserError where the run's generator has no adapter of its own.
    """
    plan = plan_of(run)
    method = plan.config.generator.method
    if method != "lora":
        raise UserError(
            f"{run}: generator.method {method} trains no adapter; export a run of generator.method lora, "
            "such as configs/tuned"
        )
    source: Path = unified(generator.weights(plan.run)).value
    for name in (adapter_file.CONFIG, adapter_file.WEIGHTS):
        shutil.copyfile(source / name, folder / name)


def model_card(plan: Plan, run: Path, encoder: TextEncoder, params: Node) -> str:
    """The text of README.md. It names models and data, never where they lie."""
    config, found = plan.config, read_run(run)
    benchmark, retrieve = config.benchmark, config.retrieve
    asked = benchmark.split if plan.folded else benchmark.training
    alpha = getattr(retrieve, "alpha", 0.0)
    told = to_dict(config)
    card = resources.files("pbr_jax.exporting").joinpath("model_card.md").read_text(encoding="utf-8")
    return card.format(
        base=_name(config.encoder.model),
        benchmark=benchmark.training_name or benchmark.name,
        dim=encoder.dim,
        similarity="cosine" if encoder.settings.normalize else "dot product",
        query=json.dumps(encoder.prefix("query")),
        document=json.dumps(encoder.prefix("document")),
        data=f"{benchmark.training_name or benchmark.name}, split `{asked}`",
        llm=_name(config.llm.model),
        retriever=f"`retrieve.method {retrieve.method}`",
        system=found.system,
        seed=config.seed,
        users=_USERS.format(alpha=alpha) if alpha else "",
        report=_json(load_report(params.folder) if isinstance(params, Stage) else {}),
        options=_json({"retrieve": told["retrieve"], "feedback": told["feedback"]}),
        metrics=_metrics(found, config.eval.confidence),
        n=found.n,
        split=found.split,
        folds=_FOLDS if plan.folded else "",
        licence=_licence(encoder.folder),
    )


_USERS = """
The run adds what each user prefers to the query (`retrieve.alpha` {alpha}). That part is not in this folder.
"""

_FOLDS = """, fold by fold: each fold was ranked by an encoder that the other
folds taught, and this one was taught by all of them"""


def _name(model: str) -> str:
    return Path(model).name or model


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False).replace("```", "'''")


def _metrics(found: Finished, confidence: float) -> str:
    rows = [f"| metric | value | {100 * confidence:.3g} % interval |", "|---|---|---|"]
    for name, value in found.metrics.items():
        low, high = found.intervals.get(name, (None, None))
        rows.append(f"| {name} | {value:.4f} | {'' if low is None else f'{low:.4f} to {high:.4f}'} |")
    return "\n".join(rows)


def _licence(base: Path) -> str:
    """What the base's own card says."""
    file = base / "README.md"
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    front = re.match(r"---\n(.*?)\n---", text, re.DOTALL)
    stated = re.search(r"^license:[ \t]*([\w.+-]+)[ \t]*$", front[1], re.MULTILINE) if front else None
    if stated is None:
        return "The base's folder does not say under which licence it is; find out before you share this one."
    return f"The base is under the licence `{stated[1]}`."


_TOKENIZER = (
    "tokenizer*.json", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "*.model",
)  # fmt: skip
_TUNED = "tuned encoder"  # the name of such nodes (`stages.vectors.tuned`)


def write_encoder(folder: Path, run: Path) -> None:
    """Writes the tuned encoder of a finished run's retriever into a folder.

    Its vectors are those of `TextEncoder`: `encode_query` and `encode_document` put the run's prefixes in
    front. What users prefer (`retrieve.alpha`) is no part of it. It is trained now where the run is of folds.

    Raises UserError where no part of the retriever has an encoder of its own, or several have.
    """
    plan = plan_of(run)
    node = _node(plan, run)
    encoder: TextEncoder = unified(node).value
    tower = unified(node.needs["params"]).value["tower"]
    base, settings = encoder.folder, encoder.settings
    config = read_json(base / "config.json")
    for name in ("torch_dtype", "_name_or_path", "auto_map"):
        config.pop(name, None)
    config |= {"architectures": [bert.FAMILIES[config["model_type"]].torch], "dtype": "float32"}
    steps = ["Transformer", "Pooling", *(["Normalize"] if settings.normalize else [])]
    places = ["" if i == 0 else f"{i}_{step}" for i, step in enumerate(steps)]
    files: dict[str, Any] = {
        "config.json": config,
        "modules.json": [
            {"idx": i, "name": str(i), "path": place, "type": f"sentence_transformers.models.{step}"}
            for i, (step, place) in enumerate(zip(steps, places, strict=True))
        ],
        "sentence_bert_config.json": {
            "max_seq_length": settings.max_length,
            "do_lower_case": sentence_folder.lower_case(base),
        },
        "1_Pooling/config.json": {
            "word_embedding_dimension": encoder.dim,
            "pooling_mode_cls_token": settings.pooling == "cls",
            "pooling_mode_mean_tokens": settings.pooling == "mean",
            "include_prompt": settings.include_prompt,
        },
        sentence_folder.MODEL: {
            "prompts": {"query": encoder.prefix("query"), "document": encoder.prefix("document")},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine" if settings.normalize else "dot",
        },
    }
    for place in filter(None, places):
        (folder / place).mkdir()
    for pattern in _TOKENIZER:
        for file in base.glob(pattern):
            shutil.copyfile(file, folder / file.name)
    for name, content in files.items():
        write_text(folder / name, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    _save(tensors(read_tensors(base), tower, encoder.bert_config), folder / "model.safetensors")
    write_text(folder / "README.md", model_card(plan, run, encoder, node.needs["params"]))


def _node(plan: Plan, run: Path) -> Node:
    """The node of the one tuned encoder of a run's retriever."""
    retrieve = plan.config.retrieve
    parts = retrieve.of if isinstance(retrieve, Fused) else (retrieve,)
    nodes = [part.encoder(plan.run.changed(retrieve=part)) for part in parts]
    tuned = [node for node in nodes if node is not None and node.name == _TUNED]
    if len(tuned) != 1:
        what = "several parts tune" if tuned else f"retrieve.method {retrieve.method} tunes no"
        raise UserError(f"{run}: {what} encoder; export a run of retrieve.method tuned, such as configs/ropg")
    return tuned[0]


def tensors(base: Mapping[str, np.ndarray], tower: Params, config: BertConfig) -> dict[str, np.ndarray]:
    """A tower's parameters as the tensors of a checkpoint: what `bert.load` reads, the other way round.

    Args:
      base: the tensors that the tower began with. Those that it has not got, such as the pooler and the rows
        of positions that RoBERTa keeps for padding, stay as they are; heads are left out.
    """
    flat = {path: np.asarray(jax.device_get(leaf), np.float32) for path, leaf in flatten(tower).items()}
    patterns = {re.compile(pattern): rule for pattern, rule in bert.rules(config).items()}
    found = {}
    for name, before in base.items():
        own = re.sub(r"^(?:bert|roberta)\.", "", name)
        own = own.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        rule, match = next(((r, m) for p, r in patterns.items() if (m := p.fullmatch(name))), (None, None))
        if rule is None or match is None:
            if own.startswith("pooler."):
                found[own] = np.asarray(before, np.float32)
            continue
        groups = match.groupdict()
        value = flat[rule.path.format(**groups)]
        value = value[int(groups["layer"])] if "layer" in groups else value
        value = value.T if rule.transform is transpose else value
        kept = len(before) - len(value)
        found[own] = np.concatenate([before[:kept], value]) if kept else value
    return found


def _save(found: Mapping[str, np.ndarray], file: Path) -> None:
    from safetensors.numpy import save_file

    arrays = {name: np.ascontiguousarray(array, np.float32) for name, array in found.items()}
    save_file(arrays, file, metadata={"format": "pt"})
