"""What each part of the memory retriever (configs/memory.py) is worth, on questions about conversations.

The first row is the best of ablations/memory. Rows below "memory" change one thing in it, or leave parts out.
"other words out" is a control of "names out": as many words are deleted, drawn among those that are no names.
"dates" adds a fourth part: sessions of the month or the day that the question names.

pbr-jax sweep ablations/combination --benchmark.name locomo --benchmark.root FOLDER \
    --benchmark.split locomo10 --generate.method none --eval.likelihood off --out DIR
"""

import calendar
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import numpy as np

from pbr_jax.base.draws import generator
from pbr_jax.config import Config, Overrides, found, load
from pbr_jax.methods import retrieve
from pbr_jax.methods.retrieve.scored import scored
from pbr_jax.options import Retrieve
from pbr_jax.pipeline import Query
from pbr_jax.stages.search import without_names


@dataclass(frozen=True, kw_only=True)
class FewerWords(Retrieve):
    """Dense retrieval without as many words of a question as its names have, which stay."""

    method: Literal["fewer_words"] = "fewer_words"

    def encoder(self, run):
        return retrieve.Dense(k=self.k).encoder(run)

    def needs(self, run):
        return retrieve.Dense(k=self.k).needs(run)

    def slot(self, tally, *, store, **values):
        search = retrieve.Dense(k=self.k).slot(tally, store=store, **values)
        said, out = without_names(store, "i"), without_names(store, "out")

        def fewer(example, query):
            words = " ".join(query.texts).split()
            (kept,) = out([example], [query])
            alone = said([example] * len(words), [Query((word,)) for word in words])
            others = [i for i, (word, one) in enumerate(zip(words, alone)) if one.texts == (word,)]
            count = len(words) - len(" ".join(kept.texts).split())
            gone = {*generator("fewer_words", example.id).permutation(others)[:count].tolist()}
            return Query((" ".join(word for i, word in enumerate(words) if i not in gone),))

        def retrieved(examples, queries, neighbours):
            return search(examples, [*map(fewer, examples, queries)], neighbours)

        return retrieved


_MONTHS = [month.lower() for month in calendar.month_name[1:]]
_DAY = r"(\d{1,2})(?:st|nd|rd|th)?"
_NAMED = rf"(?:{_DAY}(?: of)? )?\b({'|'.join(_MONTHS)})(?: {_DAY})?\b"
_NUMERIC = r"\b(\d{1,2})[./](\d{1,2})\b"  # the day first


@dataclass(frozen=True, kw_only=True)
class Dates(Retrieve):
    """4 for a document of a month that the question names, and 3 more for the day."""

    method: Literal["dates"] = "dates"

    def slot(self, tally, *, store):
        def score(example, query, rows):
            text, found = " ".join(query.texts), np.zeros(len(rows))
            named = re.findall(_NAMED, text.replace("may ", "").lower())  # "may" is a verb, "May" is not
            told = [(_MONTHS.index(month), before or after) for before, month, after in named]
            told += [(int(month) - 1, day) for day, month in re.findall(_NUMERIC, text)]
            for i, time in enumerate(store.times[rows]):
                if np.isnan(time):
                    continue
                date = datetime.fromtimestamp(time, UTC)
                for month, day in told:
                    found[i] = max(found[i], (date.month - 1 == month) * (4 + 3 * (day == str(date.day))))
            return found

        return scored(store, self.k, score)

    def needs(self, run):
        return {"store": run.data}


_KEPT: Overrides = {"retrieve.of.dense.names": "keep"}
_ASKED: Overrides = {f"retrieve.of.{part}.question_words": "keep" for part in ("bm25", "bm25_2")}
_EVEN: Overrides = {"retrieve.weights": ()}
_FUSED: Overrides = {
    "retrieve.of": ["bm25", "dense"],
    "retrieve.of.bm25.analyser": "words",
    "retrieve.of.bm25.question_words": "keep",
}
_DENSE: Overrides = {"retrieve.method": "dense", "retrieve.k": 10}
_SESSIONS: Overrides = {"retrieve.of": ["bm25"], **_EVEN}
_TWO: Overrides = {"retrieve.of": ["bm25", "dense"], "retrieve.weights": (1.0, 2.0)}
_PASSAGES: Overrides = {"retrieve.of.bm25.over": "passages"}
ROWS: dict[str, Overrides] = {
    "fused, passages": {**_FUSED, **_KEPT, **_EVEN},
    "fused, sessions": {**_FUSED, **_KEPT, **_EVEN, "corpus.chunk": "none"},
    "equal weights, names and question words kept": {**_KEPT, **_ASKED, **_EVEN},
    "memory": {},
    "names kept": _KEPT,
    "names out": {"retrieve.of.dense.names": "out"},
    "question words kept": _ASKED,
    "equal weights": _EVEN,
    "BM25 of sessions": _SESSIONS,
    "BM25 of passages": {**_SESSIONS, **_PASSAGES},
    "BM25 of both": {"retrieve.of": ["bm25", "bm25"], **_EVEN},
    "BM25 of sessions, dense passages": _TWO,
    "BM25 of passages, dense passages": {**_TWO, **_PASSAGES},
    "dense passages, names kept": _DENSE,
    "dense passages, names out": {**_DENSE, "retrieve.names": "out"},
    "dense passages, names i": {**_DENSE, "retrieve.names": "i"},
    "dense passages, other words out": {"retrieve.method": "fewer_words", "retrieve.k": 10},
    "dates": {"retrieve.of": ["bm25", "bm25", "dense", "dates"], "retrieve.weights": (1.0, 1.0, 2.0, 1.0)},
}


def get_config() -> Config:
    return load(found("memory")).config


def sweep() -> Iterator[Overrides]:
    for name, row in ROWS.items():
        yield {"system": name, **row}
