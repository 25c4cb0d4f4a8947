"""How probable the language model finds what the user really wrote, given the prompt of the run.

No answer is decoded: the target is read once behind the prompt (PURPLE's reward, Du et al., 2026, Eq. 3). So
the measure is graded where answers of a small model are all alike, and it costs a fraction of theirs.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from tqdm import tqdm

from pbr_jax import terminal
from pbr_jax.corpus.store import Store
from pbr_jax.files import write_text
from pbr_jax.graph import Slot, Stage
from pbr_jax.llm import LLM, Score, naming
from pbr_jax.options import Generate
from pbr_jax.parts import language_model
from pbr_jax.parts.answers import documents_in_prompt
from pbr_jax.parts.generator import generator
from pbr_jax.parts.rankings import Rankings
from pbr_jax.parts.run import CHUNK, Run, chunks, line, metered
from pbr_jax.pipeline import PromptWriter, Ranking, Scoring, Tally
from pbr_jax.text.prompts import Written
from pbr_jax.types import Example, UserError


class Likelihoods:
    """log p(target | prompt) of every example on disk, with what the model was shown."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self) -> Iterator[dict[str, Any]]:
        """`total` (nats), `tokens`, `bytes` of the target, all None where it is withheld; `prompt_tokens`,
        `documents` and `messages` as of an answer."""
        with (self._folder / "likelihoods.jsonl").open(encoding="utf-8") as file:
            yield from map(json.loads, file)


def wanted(run: Run, method: Generate | None) -> bool:
    """Whether targets are scored: where answers are and the model can, or as eval.likelihood says."""
    asked = run.config.eval.likelihood
    if asked == "auto":
        return method is not None and run.config.llm.can_score
    return asked == "on"


def likelihoods(run: Run, ranked: Stage, method: Generate | None = None) -> Stage:
    """The likelihood of every evaluated question's target after the prompt with its documents, or as the
    method that answers has it."""
    needs = {
        "store": run.data,
        "ranked": ranked,
        "write": language_model.writer(run),
        "llm": generator(run),
        **({"generate": Slot(method, run)} if method is not None and method.own_likelihood else {}),
    }
    return Stage(
        "likelihood",
        (documents_in_prompt(run),),
        needs,
        _score,
        Likelihoods,
        check=partial(run.config.llm.check_scoring, "eval.likelihood on"),
    )


def _score(
    folder: Path,
    k: int,
    *,
    store: Store,
    ranked: Rankings,
    write: PromptWriter,
    llm: LLM,
    generate: Any = None,
) -> None:
    """Each score is in the cache once it is there, where the next attempt finds it."""
    lines: list[str] = []
    examples = store.examples()
    total = store.summary.examples
    scoring: Scoring | None = None if generate is None else generate(Tally())
    with metered(folder), terminal.bar(desc="likelihoods", total=total) as bar:
        for rankings in chunks(ranked.read(store)):
            some = list(islice(examples, CHUNK))
            shown = [ranking[:k] for ranking in rankings]
            if scoring is not None:
                written, scores = _own_scores(scoring, some, shown, write, bar)
            else:
                written = write(some, shown)
                scores = _scores(llm, some, written, bar)
            lines += [line(_record(*found, llm)) for found in zip(some, written, scores, strict=True)]
    write_text(folder / "likelihoods.jsonl", "".join(lines))


@contextmanager
def _excusing() -> Iterator[None]:
    """Who cannot score their targets may do without."""
    try:
        yield
    except UserError as error:
        raise UserError(f"likelihood of the targets: {error}; or set eval.likelihood off") from error


def _scores(llm: LLM, examples: list[Example], written: list[Written], bar: tqdm) -> list[Score | None]:
    """The score of every target; None where it is withheld."""
    known = [(i, example.target) for i, example in enumerate(examples) if example.target is not None]
    prompts, targets = [written[i].messages for i, _ in known], [target for _, target in known]

    def on_batch(positions: Sequence[int], _: Sequence[Score]) -> None:
        bar.update(len(positions))

    with _excusing(), naming(examples[i].id for i, _ in known):
        found = llm.score(prompts, targets, on_batch=on_batch)
    scores: list[Score | None] = [None] * len(examples)
    for (i, _), score in zip(known, found, strict=True):
        scores[i] = score
    return scores


def _own_scores(
    scoring: Scoring, examples: list[Example], rankings: list[Ranking], write: PromptWriter, bar: tqdm
) -> tuple[list[Written], list[Score | None]]:
    """The same, as the method that answers has it."""

    def on_batch(more: int) -> None:
        bar.update(more)

    with _excusing(), naming(example.id for example in examples):
        found = scoring.score(examples, rankings, write, on_batch=on_batch)
    return [written for written, _ in found], [
        None if example.target is None else score for example, (_, score) in zip(examples, found, strict=True)
    ]


def _record(example: Example, prompt: Written, score: Score | None, llm: LLM) -> dict[str, Any]:
    return {
        "total": score and score.total,
        "tokens": score and score.tokens,
        "bytes": None if example.target is None else len(example.target.encode()),
        "prompt_tokens": llm.num_tokens(prompt.messages),
        "documents": prompt.documents,
        "messages": prompt.messages,
    }
