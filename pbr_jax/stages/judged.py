"""Answers graded by a language model (`eval.judge`): beside the metrics, never one of them.

The judge reads the question, the reference and the answer, and p is the probability of "yes" among "yes" and
"no"; nothing is decoded. What judges find right depends on their wording and on the model, so results name
both, and nothing is compared, chosen or trained by them.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pbr_jax.base.types import Example, UserError
from pbr_jax.corpus.store import Store
from pbr_jax.graph import Node, Stage, builds_nodes
from pbr_jax.llm import LLM, naming, usage
from pbr_jax.options import LLM as Options
from pbr_jax.options import Eval
from pbr_jax.pipeline import Tally
from pbr_jax.stages import language_model
from pbr_jax.stages.answers import Answers
from pbr_jax.stages.records import Records
from pbr_jax.stages.run import Run
from pbr_jax.tasks import AnswerFormat
from pbr_jax.text.answers import parse_answer
from pbr_jax.text.judging import NO, PROMPT, YES, Grader, prompt_hash

LABEL = "judge"


class Judgements(Records):
    """`p` of each question: the judge's probability that the answer is right, 0 of one without text, None
    where the target is withheld."""

    file = "judgements.jsonl"


class _Asked(NamedTuple):
    """What one prompt asks, and the question that it was first written for."""

    content: str
    id: str


@builds_nodes
def judged(run: Run, store: Node, answered: Node | None) -> dict[str, Stage]:
    """The stage `judged` of a run's answers, where it wants them graded.

    Raises UserError where nothing is answered, for dialogue states, and for a judge's model without a judge.
    """
    options = run.config.eval
    if options.judge == "none" and options.judge_llm is not None:
        raise UserError("eval.judge_llm is set, and eval.judge is none; set it to llm")
    if options.judge == "none":
        return {}
    if answered is None:
        raise UserError(f"eval.judge is {options.judge}, and nothing is answered; set generate.method to ipa")
    if run.task.kind == "dialogue":
        raise UserError("eval.judge grades answers, and this task's are dialogue states; set it to none")
    needs = {
        "store": store,
        "answered": answered,
        "llm": language_model.frozen(run, options.judge_llm),
        "answer_format": language_model.answer_format(run),
    }
    check = partial(_model(options, run.config.llm).check_scoring, "eval.judge llm")
    told = (options.judge_prompt or PROMPT, options.judge_tokens)
    return {"judged": Stage("judge", told, needs, _judge, Judgements, label=LABEL, check=check)}


def identity(options: Eval, llm: Options) -> dict[str, str]:
    """What a judge's numbers are worth nothing without: `model`, `prompt` (its text) and `prompt_hash`."""
    template = options.judge_prompt or PROMPT
    name = os.path.basename(os.path.normpath(_model(options, llm).model))
    return {"model": name, "prompt": template, "prompt_hash": prompt_hash(template)}


def _model(options: Eval, llm: Options) -> Options:
    return options.judge_llm or llm


def _judge(
    folder: Path,
    template: str,
    max_tokens: int,
    *,
    store: Store,
    answered: Answers,
    llm: LLM,
    answer_format: AnswerFormat,
) -> None:
    """Each score is in the cache once it is there, where the next attempt finds it."""
    grader = Grader(template, max_tokens, llm.count, llm.truncate)
    known: dict[str, float] = {}
    tally, examples = Tally(), list(store.examples())

    def work(advance: Callable[[int], Any], chunk: list[Example], records: list[dict[str, Any]]) -> Any:
        texts = [parse_answer(answer_format, record["text"]) for record in records]
        prompts = _prompts(grader, chunk, texts, tally)
        new = {one.content: one for one in prompts if one is not None and one.content not in known}
        known.update(_probabilities(llm, [*new.values()], tally))
        advance(len(chunk))
        for example, prompt in zip(chunk, prompts, strict=True):
            yield {"p": None if example.target is None else 0.0 if prompt is None else known[prompt.content]}

    answers = answered.records(examples)
    Judgements.make(folder, work, tally, examples, answers, label="judge", total=len(examples), size=256)


def _prompts(
    grader: Grader, examples: Sequence[Example], texts: Sequence[str], tally: Tally
) -> list[_Asked | None]:
    """What is asked of each answer; None where there is nothing to ask."""
    prompts: list[_Asked | None] = []
    for example, text in zip(examples, texts, strict=True):
        if example.target is None or not text.strip():
            prompts.append(None)
            continue
        right = " or ".join(dict.fromkeys([example.target, *example.alternatives]))
        content, cut = grader(example.input, right, text)
        tally.counts["judge_cut"] += cut
        prompts.append(_Asked(content, example.id))
    return prompts


def _probabilities(llm: LLM, asked: Sequence[_Asked], tally: Tally) -> Mapping[str, float]:
    """p(yes) among yes and no by each prompt."""
    from scipy.special import expit

    if not asked:
        return {}
    prompts = [[{"role": "user", "content": one.content}] for one in asked]
    twice = [prompt for prompt in prompts for _ in (YES, NO)]
    try:
        with usage.apart(LABEL), tally.timed("judge_llm"), naming(one.id for one in asked for _ in (YES, NO)):
            scores = llm.score(twice, [YES, NO] * len(prompts))
    except UserError as error:
        raise UserError(f"eval.judge: {error}") from error
    tally.counts["judge_calls"] += len(prompts)
    tally.counts["judge_prompt_tokens"] += sum(map(llm.num_tokens, prompts))
    tally.counts["judge_answer_tokens"] += sum(score.tokens for score in scores)
    found = expit([yes.total - no.total for yes, no in zip(scores[::2], scores[1::2], strict=True)])
    return dict(zip((one.content for one in asked), found.tolist(), strict=True))
