"""The model card of a tuned encoder: what it is, what taught it, how well its run did, and what to mind."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pbr_jax.config import to_dict
from pbr_jax.eval.runs import Run as Finished
from pbr_jax.eval.runs import read_run
from pbr_jax.experiment.plan import Plan
from pbr_jax.graph import Node, Stage
from pbr_jax.stages.trained import load_report
from pbr_jax.text.encode import TextEncoder

_CARD = """\
---
library_name: sentence-transformers
pipeline_tag: sentence-similarity
tags:
- sentence-transformers
- personalized-retrieval
---

# {base}, tuned on {benchmark}

A text encoder for retrieval inside a user's own documents. It began as {base} and was tuned by pbr_jax
on how much each document helped a language model to answer its user's question. Vectors have {dim}
dimensions; relevance is their {similarity}.

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("this folder")
queries = model.encode_query(["What did I order last week?"])
documents = model.encode_document(["Ordered on Monday: two lamps."])
print(model.similarity(queries, documents))
```

Take `encode_query` for queries and `encode_document` for documents: `encode` leaves the prefixes out
(query {query}, document {document}).

## Training

| | |
|---|---|
| data | {data} |
| feedback from | {llm} |
| retriever | {retriever} |
| system | {system} |
| seed | {seed} |
{users}
What the training reports:

```json
{report}
```

The options of the retriever, and of the feedback that it learned from:

```json
{options}
```

## Results of the run

{metrics}

{n} questions of the split `{split}`. The numbers are those of the whole system, with the options of its
`config.json`{folds}.

## Licence

{licence} The licence of the data may bind the tuned weights as well.

## Privacy

The weights were trained on users' questions, answers and documents, and may hold traces of them. Treat the
folder like that data: ask before you share it. Forgetting a user in pbr_jax (`System.forget`) does not reach
a folder that was exported before; train and export it again.
"""


def model_card(plan: Plan, run: Path, encoder: TextEncoder, params: Node) -> str:
    """The text of README.md. It names models and data, never where they lie."""
    config, found = plan.config, read_run(run)
    benchmark, retrieve = config.benchmark, config.retrieve
    asked = benchmark.split if plan.folded else benchmark.training
    alpha = getattr(retrieve, "alpha", 0.0)
    told = to_dict(config)
    return _CARD.format(
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
