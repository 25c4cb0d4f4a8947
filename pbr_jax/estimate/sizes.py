"""What a stage asks of one model: prompts, tokens and operations."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from os.path import basename, normpath

import numpy as np

from pbr_jax.estimate import flops
from pbr_jax.estimate.chips import Work
from pbr_jax.llm import is_t5
from pbr_jax.models import causal_lm, t5
from pbr_jax.models.pretrained import locate
from pbr_jax.models.sentence_folder import Role
from pbr_jax.options import LLM, Encoder
from pbr_jax.text.encode import WINDOW, TextEncoder
from pbr_jax.text.padding import row_sizes

Pairs = Sequence[tuple[int, int]]
"""Tokens of prompts and of what follows them."""


@dataclass(frozen=True)
class Row:
    """What a stage asks of a model. `read`: tokens of prompts, texts and targets; `written`: the most tokens
    that answers may have; `dtype`: of the products; `note`: what is not exact."""

    stage: str
    model: str
    prompts: int = 0
    read: int = 0
    written: int = 0
    work: Work | None = None
    dtype: str = "float32"
    note: str = ""


def asked(stage: str, options: LLM, scored: Pairs, written: Pairs, note: str = "") -> Row:
    """Of targets that a language model scores, and answers that it writes."""
    first, second = (np.array(pairs, np.int64).reshape(-1, 2) for pairs in (scored, written))
    work = None
    if options.backend == "jax":
        cost = language_model(options)
        done = (
            cost.scored(*first.T).sum() + cost.prefilled(second[:, 0]).sum() + cost.decoded(*second.T).sum()
        )
        weights = cost.parameters * (2 if options.dtype == "bfloat16" else 4)
        work = Work(float(done), weights * float(second[:, 1].sum()) / options.batch_size)
    else:
        note = "; ".join(filter(None, [note, "a server's model"]))
    return Row(
        stage,
        base_name(options),
        prompts=len(first) + len(second),
        read=int(first.sum() + second[:, 0].sum()),
        written=int(second[:, 1].sum()),
        work=work,
        dtype=options.dtype,
        note=note,
    )


def base_name(options: LLM | Encoder) -> str:
    """A model's name, without the folder that it lies in."""
    return basename(normpath(options.model))


def language_model(options: LLM) -> flops.LanguageModel:
    """Operations of the model that a config names."""
    place = locate(options.model)
    if is_t5(place):
        return flops.t5(t5.read_config(place))
    return flops.causal_lm(causal_lm.read_config(place))


def encoded(
    stage: str,
    encoder: TextEncoder,
    texts: Iterable[str],
    role: Role,
    note: str = "",
    most: int | None = None,
) -> Row:
    """Of texts that an encoder makes vectors or token states of; equal ones count once where they come close
    together. `most`: tokens of a text, where that is fewer than the encoder takes."""
    count, done, read, prefix = 0, 0.0, 0, encoder.prefix(role)
    longest = min(most or encoder.settings.max_length, encoder.settings.max_length)
    sizes, texts = np.array(row_sizes(longest)), iter(texts)
    while some := list(dict.fromkeys(islice(texts, WINDOW))):
        tokens = encoder.tokenizer.encode_batch([prefix + text for text in some])
        lengths = np.minimum(np.array([len(ids) for ids in tokens]), longest)
        count, read = count + len(some), read + int(lengths.sum())
        done += flops.bert(encoder.bert_config, sizes[np.searchsorted(sizes, lengths)]).sum()
    dtype = encoder.config.dtype if most is None else "float32"  # the states of single tokens always are
    return Row(stage, base_name(encoder.config), count, read, work=Work(float(done)), dtype=dtype, note=note)
