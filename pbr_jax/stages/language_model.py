"""The frozen language model, and the prompts that are counted in its tokens."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

import pbr_jax.llm
from pbr_jax.base.draws import generator
from pbr_jax.base.types import NO_ROW, Example, UserError
from pbr_jax.corpus.store import Store
from pbr_jax.graph import Node, Value, builds_nodes, constant
from pbr_jax.llm import LLM, VERSION
from pbr_jax.models.pretrained import locate
from pbr_jax.options import LLM as Options
from pbr_jax.options import OtherLLM, Prompt
from pbr_jax.pipeline import Examples, PromptWriter, Ranking
from pbr_jax.stages import profiles
from pbr_jax.stages.passages import around
from pbr_jax.stages.run import Run, once
from pbr_jax.tasks import Wording
from pbr_jax.text import prompts
from pbr_jax.text.prompts import Written


@once
def frozen(run: Run, other: OtherLLM | None = None) -> Node:
    """The language model as it comes, or another one, behind the cache of its answers."""
    options = run.config.llm if other is None else other.plain
    # The batch plan and the devices can move the last bit of a logit.
    return Value(
        "llm" if other is None else other.section,
        (options,),
        {},
        _load,
        identity=lambda: [VERSION, _fingerprint(options, other), options.batch_size, options.tensor_parallel],
    )


@once
def judge(run: Run) -> Node:
    """The language model as it comes, which judges users' remarks by probability."""
    options = run.config.llm
    return Value("judge", (options,), {"llm": frozen(run)}, _judge, identity=list)


def _judge(options: Options, *, llm: LLM) -> LLM:
    options.check_scoring("judging remarks")
    return llm


def _fingerprint(options: Options, other: OtherLLM | None) -> str:
    with blaming(other):
        return _load(options).fingerprint


def _load(options: Options) -> LLM:
    return pbr_jax.llm.load(options)


@contextmanager
def blaming(other: OtherLLM | None) -> Iterator[None]:
    """Errors of another model than the run's own say that they are its."""
    try:
        yield
    except UserError as error:
        raise error if other is None else UserError(f"{other.section}: {error}") from error


@once
def answer_format(run: Run) -> Node:
    """How the task's answers are read."""
    return constant("answer_format", run.task.answers)


@once
def wording(run: Run) -> Node:
    """How the task's prompts are worded in the config's form."""
    return constant("wording", run.task.wording(run.config.prompt.form))


@once
def writer(run: Run) -> Node:
    """In-prompt augmentation: the documents, then the input, within the config's budget of tokens."""
    return _prompts(run, evaluated=True)


@builds_nodes
def _prompts(run: Run, *, evaluated: bool) -> Node:
    prompt, needs = run.config.prompt, {"llm": frozen(run), "wording": wording(run)}
    needs |= {"store": run.data} if run.config.corpus.active and prompt.show != "passage" else {}
    if prompt.profile != "none":
        needs["profiles"] = profiles.profiles(run, needs["llm"], needs["wording"], evaluated=evaluated)
    return Value("prompts", (prompt,), needs, _writer)


@once
def training_writer(run: Run) -> Node:
    """The same for training, whose prompts are best first where the order is by lot.

    Orders by lot are a control of what is evaluated: those of one policy are compared with its own (PURPLE,
    Figure 4), not with those of other policies.
    """
    prompt = run.config.prompt
    if prompt.order == "random":
        run = run.changed(prompt=replace(prompt, order="best_first", order_seed=0))
    return _prompts(run, evaluated=False)


def check_tokens(options: Options, who: str) -> None:
    """Raises UserError, naming who asks, unless the model can be led token by token and looked into."""
    if options.backend != "jax":
        raise UserError(
            f"{who} leads the model token by token, which servers do not offer; take "
            f"{options.named('backend')} jax"
        )
    with blaming(options if isinstance(options, OtherLLM) else None):
        place = locate(options.model)
    if pbr_jax.llm.is_t5(place):
        raise UserError(
            f"{who} leads the model token by token, which needs a decoder-only one, and {options.model} is "
            f"of the T5 family; take another {options.named('model')}"
        )


def _writer(
    options: Prompt,
    *,
    llm: LLM,
    wording: Wording,
    store: Store | None = None,
    profiles: profiles.Profiles | None = None,
) -> PromptWriter:
    if options.reminder:
        wording = replace(wording, cue="\n".join(filter(None, [options.reminder, wording.cue])))
    budget: Any = {"max_tokens": options.max_tokens, "gamma": options.gamma}
    written = partial(prompts.write, wording, count=llm.count, truncate=llm.truncate, **budget)

    def one(example: Example, ranking: Ranking, profile: str) -> Written:
        if options.show == "around" and store is not None:
            documents = [around(store, candidate.row, candidate.document) for candidate in ranking]
        else:
            documents = [candidate.document for candidate in ranking]
        prompt = written(example, documents, profile=profile)
        if options.order == "best_first" or prompt.documents < 2:
            return prompt
        # Those that fit are the best ones, whatever their order; those without a text never stand there.
        texts = [document for document in documents if prompts.record(wording, document)]
        positions = ordered(prompt.documents, options, f"{example.user_id}\0{example.id}")
        return written(example, [texts[position] for position in positions], profile=profile)

    def whole(example: Example, ranking: Ranking, profile: str) -> Written:
        """Of whole documents; how many candidates stand in it is counted, which may share a document. Texts
        of their own stand in it as they are."""
        if store is None or any(candidate.row == NO_ROW for candidate in ranking):
            return one(example, ranking, profile)
        rows = np.array([candidate.row for candidate in ranking], np.int64)
        first = np.sort(np.unique(store.firsts[rows], return_index=True)[1])
        documents = store.wholes(rows[first])
        shown = [replace(ranking[i], document=whole) for i, whole in zip(first, documents, strict=True)]
        prompt = one(example, shown, profile)
        known = prompt.documents < len(first)
        return prompt._replace(documents=int(first[prompt.documents]) if known else len(ranking))

    show = whole if options.show == "document" else one

    def write(examples: Examples, rankings: Sequence[Ranking]) -> list[Written]:
        known = [""] * len(examples) if profiles is None else profiles(examples)
        return [show(*three) for three in zip(examples, rankings, known, strict=True)]

    return write


def ordered(count: int, options: Prompt, name: str) -> list[int]:
    """The places of so many documents, best first, in the order of the prompt; `name`: of the question."""
    if options.order != "random":
        return list(range(count))[:: -1 if options.order == "best_last" else 1]
    return generator(options.order_seed, name).permutation(count).tolist()
