"""The tuned generator: what it learns from, and the folder that its adapter or its weights are kept in."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

import pbr_jax.llm
from pbr_jax.base.types import UserError
from pbr_jax.corpus.store import Store
from pbr_jax.graph import Node, Stage, Value, builds_nodes, constant
from pbr_jax.llm import TooLong, is_t5
from pbr_jax.llm.tokens import chat
from pbr_jax.models import adapter_file
from pbr_jax.models.pretrained import fingerprint, locate
from pbr_jax.options import LLM, Generate, TunedGenerator
from pbr_jax.pipeline import PromptWriter, Ranking
from pbr_jax.stages import language_model
from pbr_jax.stages.rankings import Questions, Rankings, drop_leaks, rankings
from pbr_jax.stages.run import Run, enable_compilation_cache, once
from pbr_jax.stages.together import by_rows
from pbr_jax.stages.trained import check_training, is_saved, save_adapter, save_fitted

if TYPE_CHECKING:
    from pbr_jax.llm.engine.local import Ids
    from pbr_jax.train.generator import Pair


_HALVES = {"hybrid": ("own", "others"), "own_neighbours": ("own", "neighbours")}
_FOREIGN = {"others", "neighbours"}
_NO_DOCUMENTS = (
    "generator.documents wants documents in training prompts, and no training question has any; take data "
    "with histories, or set generator.documents none"
)


class Room(NamedTuple):
    """How long training prompts may be with their targets, in tokens (None: as the model says), and whether
    longer ones are cut."""

    context: int | None
    cut: bool


@once
def generator(run: Run) -> Node:
    """The language model that answers, scores targets and gives feedback: frozen, or tuned.

    What a model is asked for besides, such as expansions of queries, is the frozen one's to say.
    """
    if not run.config.generator.is_tuned:
        return language_model.frozen(run)
    model = run.config.llm
    # Its weights are those that the stage keeps: their key says what they are.
    return Value(
        "llm",
        (model,),
        {"tuned": weights(run)},
        _load,
        identity=lambda: [model.batch_size, model.tensor_parallel, *filter(None, [model.ask_again])],
    )


@builds_nodes
def decoding(run: Run, method: Generate) -> dict[str, Node]:
    """What a method needs to write answers: the model, how long they may be, where they end, and the seed."""
    stop = method.stop_strings(run.task)
    return {
        "llm": generator(run),
        "max_new_tokens": constant("max_new_tokens", method.max_new_tokens or run.task.max_new_tokens),
        "seed": constant("seed", method.sampling_seed(run.config.seed)),
        **({"stop": constant("stop", stop)} if stop else {}),
    }


def _load(model: LLM, *, tuned: Path) -> pbr_jax.llm.LLM:
    return pbr_jax.llm.load(replace(model, adapter=str(tuned)))


@once
def weights(run: Run) -> Stage:
    """The stage that tunes the generator on the training split. Raises UserError at collaboration none."""
    options = run.config.generator
    run.learns_from_others("generator")
    needed = {source for kind in options.documents for source in _HALVES.get(kind, (kind,))} - {"none"}
    if needed & _FOREIGN and run.config.collaboration != "text":
        raise UserError(
            f"generator.documents is {' '.join(options.documents)}: other users' documents would stand in "
            "training prompts; say so with collaboration text, or leave them out"
        )
    limit = options.limit
    asked = Questions(sample=limit, seed=0 if limit is None else run.config.seed, answered=True)
    model = run.config.llm.model
    needs: dict[str, Node] = {
        "model": Value("weights", (model,), {}, locate, identity=lambda: fingerprint(locate(model)))
    }
    if run.training is None or options.learns() != "apart":
        # What the pipeline finds depends on who is evaluated: their documents may be borrowed from.
        asked = replace(asked, training=True)
    else:
        run = run._replace(data=run.training)
    needs |= {"write": language_model.training_writer(run), "store": run.data}
    needs |= {source: _found(run, asked, source) for source in sorted(needed)}
    llm = run.config.llm
    room = Room(llm.context if llm.overflow == "cut" else None, llm.overflow == "cut")
    return Stage(
        "generator",
        (options, asked, run.config.seed, room, llm.date, llm.tensor_parallel),
        needs,
        _train,
        _same,
        check=partial(_check, run, options, asked),
        together=by_rows,
    )


def _same(folder: Path) -> Path:
    return folder


@builds_nodes
def _found(run: Run, asked: Questions, source: str) -> Node:
    """The documents of training prompts; own and others' are the same whatever row of a table the run is."""
    changes = run.config.training_documents(source)
    return rankings(run, asked, f"rank_for_generator_{source}", **changes)


@builds_nodes
def _check(run: Run, options: TunedGenerator, asked: Questions) -> None:
    model = run.config.llm
    if model.backend == "http":
        raise UserError(
            f"generator.method is {options.method}, and llm.backend http: a server's model cannot be tuned "
            "here; set llm.backend jax, or llm.adapter to the name of an adapter that the server has"
        )
    if model.adapter:
        raise UserError(
            f"generator.method is {options.method} and llm.adapter {model.adapter}: one of them tunes the "
            "model; leave the other out"
        )
    if (locate(model.model) / adapter_file.CONFIG).is_file():
        raise UserError(
            f"generator.method is {options.method}, and {model.model} has an adapter beside its weights, "
            "which would be left out: merge it into them, or give a folder without it"
        )
    check_training(options.training, model.tensor_parallel)
    asked.check_known(run.data.value, "target", "the generator")
    if set(options.documents) != {"none"} and not run.data.value.summary.documents:
        raise UserError(_NO_DOCUMENTS)


def _train(
    folder: Path,
    options: TunedGenerator,
    asked: Questions,
    seed: int,
    room: Room,
    date: str,
    tensor_parallel: int,
    *,
    store: Store,
    write: PromptWriter,
    model: Path,
    **found: Rankings,
) -> None:
    full = options.method == "full"
    if is_saved(folder, adapter_file.PARAMS if full else adapter_file.WEIGHTS):
        return
    from pbr_jax.llm.engine.local import fit
    from pbr_jax.models import causal_lm, t5
    from pbr_jax.train import generator, sharding

    enable_compilation_cache()
    separate = is_t5(model)
    limit = (t5 if separate else causal_lm).read_config(model).context
    fits = partial(
        fit, context=room.context or limit, name="the target's length", cut=room.cut, separate=separate
    )
    pairs = _pairs(chat.load(model, date), options, asked, seed, store, write, found, fits, separate)
    mesh = sharding.data_mesh(options.training.devices, tensor_parallel)
    family = (generator.t5_family if separate else generator.causal_family)(model, options, mesh)
    fitted = generator.train(family, pairs, options, folder, seed=seed, mesh=mesh)
    if full:
        save_fitted(fitted._replace(params=fitted.params["base"]), folder, "generator")
        return
    written = partial(
        adapter_file.write,
        adapter=fitted.params["adapter"],
        modules=family.modules,
        rank=options.rank,
        alpha=options.alpha,
        dropout=options.dropout,
        base=model.name,
        task=family.task,
    )
    save_adapter(fitted, folder, "generator", written)


def _pairs(
    codec: chat.Codec,
    options: TunedGenerator,
    asked: Questions,
    seed: int,
    store: Store,
    write: PromptWriter,
    found: Mapping[str, Rankings],
    fits: "Callable[[int, Ids, int], Ids]",
    separate: bool,
) -> "list[Pair]":
    """Each question with each kind of documents."""
    from pbr_jax.train.generator import Pair

    examples = list(asked.read(store))
    ranked = {name: list(drop_leaks(store, examples, of.read(store, examples))) for name, of in found.items()}
    if codec.end is None:
        raise UserError(
            "the model's tokenizer names no token that ends an answer, which the tuned model must write; add "
            "eos_token to its tokenizer_config.json"
        )
    pairs, drawn = [], _drawn(options, len(examples), seed)
    for place, kind in enumerate(options.documents):
        shown, chosen = _shown(kind, ranked, len(examples), options.k), np.flatnonzero(drawn[:, place])
        prompts = write([examples[i] for i in chosen], [shown[i] for i in chosen])
        for index, written in zip(map(int, chosen), prompts, strict=True):
            example = examples[index]
            target = (*codec.encode_target(str(example.target), begins=separate), codec.end)
            if len(target) == 1:  # an empty one says nothing
                continue
            try:
                prompt = fits(index, tuple(codec.encode(written.messages)), len(target))
            except TooLong as error:
                raise error.of(f"training question {example.id!r}") from error
            pairs.append(Pair(prompt, target, example.user_id))
    if not any(any(ranking) for ranking in ranked.values()) and set(options.documents) != {"none"}:
        raise UserError(_NO_DOCUMENTS)
    return pairs


def _drawn(options: TunedGenerator, count: int, seed: int) -> np.ndarray:
    """Which of `generator.documents` each question is learned with, bool [q, kinds]."""
    ranks = np.random.default_rng([seed, 5]).random((count, len(options.documents))).argsort(1)
    return ranks < (options.per_question or len(options.documents))


def _shown(kind: str, ranked: Mapping[str, list[Ranking]], count: int, k: int) -> list[Ranking]:
    if kind == "none":
        return [[]] * count
    if kind not in _HALVES:
        return [ranking[:k] for ranking in ranked[kind]]
    own, foreign = _HALVES[kind]
    pairs = zip(ranked[own], ranked[foreign], strict=True)
    return [[*own[: (k + 1) // 2], *others[: k // 2]] for own, others in pairs]
