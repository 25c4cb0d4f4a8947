"""What trainings read, epoch by epoch: a step takes three times the work of a forward pass.

A gradient takes one more pass for activations and one for weights; where weights stay frozen (LoRA), only the
first. All epochs are counted, whether or not a training stops before.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from pbr_jax.estimate import flops, standins
from pbr_jax.estimate.chips import Work
from pbr_jax.estimate.sizes import Row, asked, base_name, language_model
from pbr_jax.graph import Stage
from pbr_jax.llm import Counting
from pbr_jax.models.sentence_folder import Role
from pbr_jax.options import LLM, Training
from pbr_jax.stages import generator
from pbr_jax.stages.rankings import drop_leaks
from pbr_jax.stages.run import Run
from pbr_jax.text.encode import TextEncoder
from pbr_jax.text.padding import multiple
from pbr_jax.train.selection import by_users

BY_LOT = "documents drawn by lot, until a model has ranked them"
_ROW = 8  # token widths of trained encoders are multiples of it (`train.retriever`)


def generator_row(stage: Stage, label: str, values: Mapping[str, Any], llm: LLM, note: str) -> Row:
    """Tuning the language model: each question with each kind of documents, in every epoch."""
    from pbr_jax.llm.tokens import chat

    options, questions, seed, _, date, _ = stage.options
    parts = dict(values)
    model, store, write = (parts.pop(name) for name in ("model", "store", "write"))
    pairs = generator._pairs(
        chat.load(model, date), options, questions, seed, store, write, parts,
        lambda index, ids, more: ids, language_model(llm).cross > 0,
    )  # fmt: skip
    lengths = [(len(pair.prompt), len(pair.target)) for pair in pairs]
    forward = asked(label, llm, lengths, [])
    passes = (2 if options.method == "lora" else 3) + options.remat
    return _repeated(forward, options.training.epochs, passes, options.training, note)


def retriever_row(run: Run, stage: Stage, label: str, encoder: TextEncoder) -> Row:
    """Tuning an encoder: every question and all of its candidates, each padded to the longest text."""
    needs = {"store": stage.needs["store"], "ranked": stage.needs["lessons"].needs["ranked"]}
    found, drawn = standins.values(run, stage, needs)
    store, training = found["store"], stage.options[0].training
    examples = list(stage.options[1].read(store))
    rankings = list(drop_leaks(store, examples, found["ranked"].read(store, examples)))
    places = len(examples) * max(map(len, rankings), default=0)
    queries = _padded(encoder, [example.query for example in examples], "query", len(examples))
    texts = [candidate.document.text for ranking in rankings for candidate in ranking]
    documents = _padded(encoder, texts, "document", places)
    read, done = (one + other for one, other in zip(queries, documents))
    forward = Row(label, base_name(encoder.config), len(examples) + len(texts), int(read), work=Work(done))
    return _repeated(forward, training.epochs, 3, training, BY_LOT * drawn)


def reward_row(
    stage: Stage, label: str, values: Mapping[str, Any], llm: LLM, counting: Counting, note: str
) -> Row:
    """PURPLE's rewards: as many profiles of each question as every epoch draws, and those that choose the
    step. The prompt of a question's first documents stands for all of its profiles."""
    options, questions, judged, seed = stage.options[:4]
    store, write = values["store"], values["write"]
    examples = list(questions.read(store))
    candidates = list(drop_leaks(store, examples, values["ranked"].read(store, examples)))
    several = [i for i, ranking in enumerate(candidates) if len(ranking) > 1]
    _, held = by_users([examples[i].user_id for i in several], options.training.selection, seed)
    epochs, sizes = options.training.epochs, [len(candidates[i]) for i in several]
    profiles = np.array([math.perm(size, min(options.k, size)) for size in sizes], np.float64)
    asks = profiles if options.learns_from == "singles" else np.minimum(epochs * options.rollouts, profiles)
    if options.training.select_by == "reward":
        asks[held] = np.minimum(epochs + 1, profiles[held])
    written = write([examples[i] for i in several], [candidates[i][: options.k] for i in several])
    lengths = np.array([
        (counting.num_tokens(prompt.messages), counting.count(str(examples[i].target)))
        for prompt, i in zip(written, several, strict=True)
    ], np.int64).reshape(-1, 2)  # fmt: skip
    most = "at most: a profile that is drawn again is not asked again; the policy's own steps are not counted"
    if judged is not None:
        lengths[:, 1] = judged.max_new_tokens or values["generate"].method.max_new_tokens or 0
    repeated = np.repeat(lengths, asks.astype(np.int64), axis=0).tolist()
    scored, answers = (repeated, []) if judged is None else ([], repeated)
    return asked(f"{label}: rewards", llm, scored, answers, "; ".join(filter(None, [note, most])))


def _repeated(forward: Row, epochs: int, passes: int, training: Training, note: str) -> Row:
    """A training of so many epochs; held-out questions are read once in each instead."""
    share = training.selection
    times = epochs * ((1 - share) * passes + share)
    work = None if forward.work is None else Work(forward.work.flops * times)
    return Row(
        forward.stage, forward.model, epochs * forward.prompts, epochs * forward.read,
        work=work, dtype=training.dtype, note=note,
    )  # fmt: skip


def _padded(encoder: TextEncoder, texts: list[str], role: Role, count: int) -> tuple[int, float]:
    """Tokens of these texts, and operations on so many rows as long as the longest."""
    prefix = encoder.prefix(role)
    lengths = [len(ids) for ids in encoder.tokenizer.encode_batch([prefix + text for text in texts])]
    width = np.array([multiple(max(lengths, default=1), _ROW)])
    return sum(lengths), float(flops.bert(encoder.bert_config, width).sum()) * count
