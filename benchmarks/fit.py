"""What PURPLE's fusions carry of how well a record fits the query, and what rewards of a file can teach.

    python benchmarks/fit.py ridge FILE    # held-out ridge from untrained fusions to the cosine
    python benchmarks/fit.py rewards FILE  # policies and ridge, learned from other groups' questions

FILE has a line of JSON a question: `query`, `passages`, `bm25` (their scores), `values` (what each alone is
worth) and `conv`, the group; groups are divided into folds. All questions have as many passages. Correlations
are inside questions.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

CUT = 64  # tokens of a passage


class Table:
    """Questions of a file with their token states."""

    def __init__(self, file: Path) -> None:
        from pbr_jax.methods.select.purple import shape_of
        from pbr_jax.options import Encoder
        from pbr_jax.text.encode import TextEncoder, TokenStates

        self.lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        states = TokenStates(TextEncoder(Encoder()), CUT)
        self.queries = states.encode([x["query"] for x in self.lines], role="query")
        flat = states.encode([p for x in self.lines for p in x["passages"]], role="document")
        self.size, self.width = len(self.lines[0]["passages"]), states.width
        self.records = [flat[i : i + self.size] for i in range(0, len(flat), self.size)]
        self.groups = np.array([x["conv"] for x in self.lines])
        self.values = np.array([x["values"] for x in self.lines], np.float32)
        self.bm25 = np.array([x["bm25"] for x in self.lines])
        q = _unit(np.stack([np.asarray(x, np.float32).mean(0) for x in self.queries]))[:, None]
        r = _unit(np.stack([[np.asarray(x, np.float32).mean(0) for x in of] for of in self.records]))
        self.pooled, self.cosine = (q, r), (q * r).sum(-1)
        self.shape = shape_of(max(map(len, self.queries)), self.size, self.width)

    def arrays(self, questions: np.ndarray, parts: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        from pbr_jax.base.types import Candidate, Document
        from pbr_jax.methods.select.purple import arrays, question

        made = []
        for i in questions.tolist():
            scores = zip(self.bm25[i].tolist(), self.cosine[i].tolist())
            document = Document("", "", "")
            ranking = [Candidate(document, b, 0, {"bm25": b, "dense": float(c)}) for b, c in scores]
            made.append(question(self.queries[i], self.records[i], ranking, parts))
        return arrays(made, self.shape, 0.0)

    def folds(self, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Learned and held-out questions."""
        held = [np.isin(self.groups, names) for names in np.array_split(np.unique(self.groups), count)]
        return [(np.flatnonzero(~h), np.flatnonzero(h)) for h in held]


def _unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def _standard(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(1, keepdims=True)) / np.maximum(x.std(1, keepdims=True), 1e-9)


def _ridge(features: np.ndarray, wanted: np.ndarray, folds: Any) -> np.ndarray:
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    found, f = np.zeros(wanted.shape), features.shape[-1]
    for learned, held in folds:
        model = make_pipeline(StandardScaler(), RidgeCV(np.logspace(0, 5, 6)))
        model.fit(features[learned].reshape(-1, f), wanted[learned].ravel())
        found[held] = model.predict(features[held].reshape(-1, f)).reshape(len(held), -1)
    return found


def ridge(table: Table, folds: int) -> None:
    """Of the vectors that an untrained fusion hands on, after its normalisation."""
    import jax

    from pbr_jax.models.set_policy import SetPolicyConfig, _SetPolicy, set_policy

    wanted = _standard(table.cosine)
    everybody = np.arange(len(table.lines))
    names = ("query", "records", "query_mask", "token_mask", "record_mask", "record_of")
    for fusion in ("cross_attention", "residual_attention", "match", "concat_hidden"):
        config = SetPolicyConfig(width=table.width, fusion=fusion, num_layers=0)
        params, found = set_policy(config).init(jax.random.key(0)), []
        module = _SetPolicy(config)
        run = jax.jit(
            lambda p, x, module=module: module.apply(
                {"params": p}, *x, capture_intermediates=lambda m, _: m.name == "fusion_norm"
            )[1]["intermediates"]["fusion_norm"]["__call__"][0]
        )
        for begin in range(0, len(everybody), 16):
            some = everybody[begin : begin + 16]
            batch = table.arrays(np.resize(some, 16))
            found.append(np.asarray(run(params, [batch[n] for n in names]))[: len(some), : table.size])
        guess = _ridge(np.concatenate(found), wanted, table.folds(folds))
        print(f"{fusion}: {np.corrcoef(_standard(guess).ravel(), wanted.ravel())[0, 1]:+.3f}", flush=True)
    q, r = table.pooled
    guess = _ridge(q * r, wanted, table.folds(folds))
    print(f"query * record alone: {np.corrcoef(_standard(guess).ravel(), wanted.ravel())[0, 1]:+.3f}")


def policy(table: Table, folds: int, epochs: int, seed: int, fusion: Any, parts: Any) -> np.ndarray:
    """Scores of held-out questions."""
    import jax

    from pbr_jax.methods.select import Purple
    from pbr_jax.methods.select import purple_training as purple
    from pbr_jax.methods.select.purple import with_features
    from pbr_jax.models.set_policy import from_arrays, set_policy
    from pbr_jax.options import Optimizer, Training

    training = Training(
        epochs=epochs, batch_size=16, selection=0.2, patience=None, devices=1, select_by="rank_correlation",
        optimizer=Optimizer(name="adam", learning_rate=3e-4),
    )  # fmt: skip
    told: Any = Purple(
        k=1, fusion=fusion, num_layers=0, learns_from="singles", advantage="leave_one_out", training=training
    )  # type: ignore[arg-type]
    model = set_policy(with_features(told.sizes(table.width), parts))
    score, found = jax.jit(from_arrays(model)), np.zeros(table.values.shape)
    for learned, held in table.folds(folds):
        made = purple.Policy(model, lambda some, of=learned: table.arrays(of[some], parts))

        def reward(asked: Any, of: np.ndarray = learned) -> np.ndarray:
            return np.array([table.values[of[q], p[0]] for q, p in asked], np.float32)

        with tempfile.TemporaryDirectory() as folder:
            owners = [f"{table.groups[i]}-{i % 6}" for i in learned]  # a part of a group chooses the step
            sizes = [table.size] * len(learned)
            params = purple.train(made, reward, sizes, owners, told, Path(folder), seed=seed).params
        for begin in range(0, len(held), 16):
            some = held[begin : begin + 16]
            rows = np.asarray(score(params, table.arrays(np.resize(some, 16), parts)))
            found[some] = rows[: len(some), : table.size]
    return found


def rewards(table: Table, folds: int, epochs: int, seed: int) -> None:
    """Rank correlation with the rewards, and the worth of the first less that of BM25's first; intervals
    over groups (Student's t)."""
    from scipy import stats

    from pbr_jax.train.selection import rank_correlation

    q, r = table.pooled
    places = np.broadcast_to(-np.arange(table.size), table.values.shape)
    known = np.stack([_standard(x) for x in (table.bm25, table.cosine, places)], -1)
    pairs = np.concatenate([q * r, np.abs(q - r)], -1)
    wanted, split = table.values - table.values.mean(1, keepdims=True), table.folds(folds)
    both = _standard(table.bm25) + _standard(table.cosine)
    rows: dict[str, Any] = {
        "bm25": lambda: table.bm25,
        "dense": lambda: table.cosine,
        "bm25 + dense, standardised": lambda: both,
        "random": lambda: np.random.default_rng(seed).normal(size=both.shape),
        "oracle": lambda: table.values,
        "ridge on scores and places": lambda: _ridge(known, wanted, split),
        "ridge on products and distances": lambda: _ridge(pairs, wanted, split),
        "ridge on both": lambda: _ridge(np.concatenate([pairs, known], -1), wanted, split),
        "policy, match": lambda: policy(table, folds, epochs, seed, "match", None),
        "policy, match + scores": lambda: policy(table, folds, epochs, seed, "match", ("bm25", "dense")),
        "policy, the paper's fusion": lambda: policy(table, folds, epochs, seed, "cross_attention", None),
    }
    groups = np.unique(table.groups)

    def told(values: Sequence[float]) -> str:
        half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5
        return f"{np.mean(values):+.3f} [{np.mean(values) - half:+.3f}, {np.mean(values) + half:+.3f}]"

    for name, scores in rows.items():
        found = scores()
        of = [table.groups == group for group in groups]
        ranks = [rank_correlation(list(table.values[o]), list(found[o])) for o in of]
        every = np.arange(len(found))
        first = table.values[every, found.argmax(1)] - table.values[every, table.bm25.argmax(1)]
        gain = told([float(first[o].mean()) for o in of])
        print(f"{name}: rank correlation {told(ranks)}, first less BM25's {gain}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["ridge", "rewards"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    table = Table(arguments.file)
    print(f"{len(table.lines)} questions of {len(np.unique(table.groups))} groups", flush=True)
    if arguments.what == "ridge":
        ridge(table, arguments.folds)
    else:
        rewards(table, arguments.folds, arguments.epochs, arguments.seed)


if __name__ == "__main__":
    sys.exit(main())
