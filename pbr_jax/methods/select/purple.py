"""PURPLE: which records stand in the prompt, and in which order, is learned by a contextual bandit.

Du et al., "Optimizing User Profiles via Contextual Bandits for Retrieval-Augmented LLM Personalization",
2026, https://arxiv.org/abs/2601.12078. A policy reads the query and all candidates together and gives each a
propensity; the k highest stand in the prompt, the highest first.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import numpy as np

from pbr_jax.base.prefetch import fetched
from pbr_jax.base.types import Params, UserError
from pbr_jax.corpus.store import Store
from pbr_jax.graph import Node, Slot, Stage, Value, builds_nodes
from pbr_jax.methods.generate.ipa import Ipa
from pbr_jax.methods.select.by_score import Batch, ByScore, TopK
from pbr_jax.models.set_policy import Fusion, SetPolicyConfig, from_arrays, set_policy
from pbr_jax.options import Feedback, Optimizer, Training, TrainingSplit, added
from pbr_jax.pipeline import Examples, Ranking, Tally
from pbr_jax.stages import feedback, language_model, vectors
from pbr_jax.stages import late_interaction as late
from pbr_jax.stages.generator import generator
from pbr_jax.stages.late_interaction import Ragged
from pbr_jax.stages.rankings import Questions, Rankings, at_depth, drop_leaks, rankings
from pbr_jax.stages.run import Run, enable_compilation_cache, metered, once, tallied
from pbr_jax.stages.scores import standardised
from pbr_jax.stages.together import by_rows
from pbr_jax.stages.trained import check_training, is_saved, load_report, load_saved, save_fitted
from pbr_jax.system import System
from pbr_jax.text.encode import TextEncoder, TokenStates
from pbr_jax.text.padding import multiple, padded


def _bandit() -> Training:
    """Appendix D: all epochs are trained, and the best step is kept.

    15 % of the training users choose it, where the paper has a validation split.
    """
    adam = Optimizer(name="adam", learning_rate=1e-4)
    return Training(epochs=10, batch_size=16, selection=0.15, patience=None, optimizer=adam)


@dataclass(frozen=True, kw_only=True)
class Purple(ByScore):
    """A policy over ordered sets of candidates, trained with the rewards of prompts (PURPLE)."""

    training_split: ClassVar[TrainingSplit] = "apart"

    method: Literal["purple"] = "purple"
    k: int | None = 5  # number of documents in the prompt
    # how records and query are combined. cross_attention: records attend to the query; residual_attention
    # (ours): the record's own mean state is added; match (ours): also with the similarity of the query's and
    # the record's mean states; concat_token: the query is an additional member of the set ("w/o CA");
    # concat_hidden: the query is concatenated to each record
    fusion: Fusion = "cross_attention"
    # number of layers in which records attend to each other. 0: each is scored alone ("w/o RDM")
    num_layers: int = 12
    num_heads: int = 12  # number of attention heads
    dropout: float = 0.1  # dropout probability, from 0 to 0.9
    query_tokens: int = 256  # maximum length of a query for the frozen encoder, in tokens. The rest is cut
    record_tokens: int = 256  # maximum length of a record for the frozen encoder, in tokens. The rest is cut
    # scores: a candidate's vector includes its retrieval score, its rank and, for a fused list, the score of
    # each retriever, standardised within a question
    features: Literal["none", "scores"] = field(default="none", metadata=added("none"))
    # weight of the retriever's scores, standardised within a question, in the policy's logits, from 0 to 10.
    # 0: the policy starts without them, as in the paper. Above 0: it starts as the retriever. Above about 3
    # the first records are drawn almost uniformly, because a record's weight is the sigmoid of its logit,
    # which saturates
    prior: float = 0.0
    # profiles: k records drawn by the policy; singles: each record alone, scored once. With singles, the
    # expected reward of choosing one record is maximized exactly, and the k best are selected
    learns_from: Literal["profiles", "singles"] = "profiles"
    rollouts: int = 32  # number of profiles drawn for each question
    # likelihood: log p(target | prompt), summed over the target's tokens; per_token: the mean over them;
    # metric: feedback.metric of the answer ("w/ MR")
    reward: Literal["likelihood", "per_token", "metric"] = "likelihood"
    # how rewards of a question's profiles become advantages. z_scores: standardised; leave_one_out: each
    # minus the mean of the others
    advantage: Literal["z_scores", "leave_one_out"] = "z_scores"
    # reinforce: the policy gradient; grpo: with clipped probability ratios
    loss: Literal["reinforce", "grpo"] = "reinforce"
    clip: float = 0.2  # grpo: clipping range of the ratios, from 0 to 1
    updates: int = 1  # number of policy updates from the same rewards. More than one needs grpo
    training: Training = field(default_factory=_bandit)  # how the policy is trained

    def check(self) -> None:
        super().check()
        if self.k is None:
            raise UserError("select.k is none, want the number of documents that PURPLE chooses")
        self.at_least("rollouts", 2, "a profile is judged by the others")
        self.at_least("query_tokens", 3)
        self.at_least("record_tokens", 3)
        self.at_least("num_layers", 0)
        self.at_least("num_heads", 1)
        self.between("prior", 0, 10)
        self.at_least("updates", 1)
        self.between("dropout", 0, 0.9)
        self.between("clip", 0, 1)
        if self.updates > 1 and self.loss != "grpo" and self.learns_from == "profiles":
            raise UserError(
                f"select.updates is {self.updates} and select.loss {self.loss}: rewards of profiles that an "
                "older policy drew need grpo's ratios; set select.loss grpo"
            )

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        needs = {
            "params": self.params(run),
            "encoder": vectors.encoder(run),
            "records": record_states(run, self.record_tokens),
        }
        # What the policy is, the key of its parameters says.
        policy = Value("policy", (self,), needs, _load, identity=lambda: None)
        return {"policy": policy}

    @once
    def params(self, run: Run) -> Stage:
        """Parameters of the policy, trained on what the config's pipeline finds for training questions."""
        run.learns_from_others("select.method purple")
        if self.reward != "metric":
            run.config.llm.check_scoring("select.method purple")
        self._check_candidates(run)
        asked = feedback.questions(run)
        finding = (getattr(run.config, name) for name in ("expand", "neighbours", "retrieve"))
        learned = run
        if run.training is not None and all(method.learns() in ("unused", "apart") for method in finding):
            # Candidates do not depend on who is evaluated, so neither does what is learned.
            learned = run._replace(data=run.training)
            asked = replace(asked, training=False)
        needs: dict[str, Node] = {
            "store": learned.data,
            "ranked": rankings(learned, asked, "rank_for_purple", reported=True, select=TopK()),
            "queries": query_states(learned, asked, self.query_tokens),
            "records": record_states(learned, self.record_tokens),
            "encoder": vectors.encoder(run),
            "write": language_model.training_writer(run),
        }
        judged = None
        if self.reward == "metric":
            judged = run.config.feedback
            limit = judged.max_new_tokens or run.config.generate.max_new_tokens
            answers = replace(Ipa.like(run), num_beams=judged.num_beams, max_new_tokens=limit)
            judged = replace(judged, metric=feedback.metric_of(run.task, judged.metric))
            needs |= {"generate": Slot(answers, run), "answer_format": language_model.answer_format(run)}
        else:
            needs["llm"] = generator(run)
        # Choosing among single records, a training does not know how many will be chosen.
        options = replace(self, own=None, k=1 if self.learns_from == "singles" else self.k)
        return Stage(
            "purple",
            (options, asked, judged, run.config.seed, *feedback.shuffling(run)),
            needs,
            _train,
            _Learned.load,
            check=partial(self._check, learned, asked),
            together=by_rows,
        )

    @builds_nodes
    def _check_candidates(self, run: Run) -> None:
        """Raises UserError where the slots before find fewer documents than are to be chosen."""
        retrieve, users = run.config.retrieve, run.config.neighbours.searched
        if retrieve.method == "none":
            raise UserError(
                "retrieve.method is none, which finds no documents, and select.method purple chooses among "
                "documents; set retrieve.method dense, or select.method top_k"
            )
        most = at_depth(run).k * users
        if self.k is not None and self.k > most:
            raise UserError(
                f"select.k is {self.k} and there are at most {most} candidates (retrieve.k {retrieve.k} "
                f"from each of {users} users searched by neighbours.method {run.config.neighbours.method}); "
                "PURPLE chooses among them: raise retrieve.k"
            )

    @builds_nodes
    def _check(self, run: Run, asked: Questions) -> None:
        check_training(self.training)
        self.sizes(vectors.encoder(run).value.dim)
        if self.reward == "metric":
            feedback.metric(feedback.metric_of(run.task, run.config.feedback.metric), run.task.labels)
        metrics = [feedback.metric_of(run.task, run.config.feedback.metric)] * (self.reward == "metric")
        feedback.check_targets(run, asked, "select.method purple", metrics)

    def sizes(self, width: int) -> SetPolicyConfig:
        """Of the policy, for token states of this width; features are added where it is trained."""
        return SetPolicyConfig(
            width=width,
            fusion=self.fusion,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            dropout=self.dropout,
            residual=self.prior > 0,
        )

    def scores(self, batch: Batch, tally: Tally, *, policy: "PolicyScorer") -> list[np.ndarray]:
        with tally.timed("select_policy"):
            return policy.scores(batch.examples, batch.rankings)


class _Learned(NamedTuple):
    """The parameters of a policy, and the parts whose scores are among its features; None: it has none."""

    params: Params
    parts: Sequence[str] | None

    @classmethod
    def load(cls, folder: Path) -> "_Learned":
        return cls(load_saved(folder), load_report(folder).get("parts"))


def _load(options: Purple, *, params: _Learned, encoder: TextEncoder, records: Ragged) -> "PolicyScorer":
    (weights, parts), queries = params, TokenStates(encoder, options.query_tokens)
    return PolicyScorer(
        with_features(options.sizes(encoder.dim), parts), weights, queries, records, options.prior, parts
    )


def _dealt(examples: Examples, candidates: Sequence[Ranking], seed: int) -> list[Ranking]:
    """Each question's candidates, of which each is judged by the worth of another: a control."""
    pairs = zip(examples, candidates, strict=True)
    return [[own[i] for i in feedback.shuffled(example, len(own), seed)] for example, own in pairs]


def _train(
    folder: Path,
    options: Purple,
    asked: Questions,
    judged: Feedback | None,
    seed: int,
    shuffle: int | None = None,
    *,
    store: Store,
    ranked: Rankings,
    queries: Ragged,
    records: Ragged,
    encoder: TextEncoder,
    **parts: Any,
) -> None:
    if is_saved(folder):
        return
    from pbr_jax.methods.select import purple_training

    enable_compilation_cache()
    examples = list(asked.read(store))
    candidates = list(drop_leaks(store, examples, ranked.read(store, examples)))
    rows = [[candidate.row for candidate in ranking] for ranking in candidates]
    parts_of = part_names(candidates) if options.features == "scores" else None
    shape = shape_of(int(queries.lengths.max(initial=1)), max(map(len, rows), default=1), encoder.dim)

    def inputs(questions: np.ndarray) -> dict[str, np.ndarray]:
        found = [
            question(query, records.read(rows[i]), candidates[i], parts_of)
            for i, query in zip(questions.tolist(), queries.read(questions), strict=True)
        ]
        return arrays(found, shape, options.prior)

    lengths = np.array([rows_of(records.lengths[of]).sum() for of in rows])
    model = set_policy(with_features(options.sizes(encoder.dim), parts_of))
    policy = purple_training.Policy(model, inputs, lengths)
    user_ids, sizes = [example.user_id for example in examples], list(map(len, rows))
    with metered(folder), tallied(folder) as tally:
        system = System(parts, tally=tally)
        if judged is None:
            reward = feedback.by_likelihood(system, total=options.reward == "likelihood")
        else:
            labels = system.answer_format.labels
            reward = feedback.by_answers(system, feedback.metric(judged.metric, labels, judged.errors))
        num_tokens = system.llm.num_tokens if judged is None else None
        dealt = candidates if shuffle is None else _dealt(examples, candidates, shuffle)
        rewards = purple_training.Rewards(
            reward, system.write, examples, dealt, folder / "rewards.jsonl", num_tokens
        )
        fitted = purple_training.train(policy, rewards, sizes, user_ids, options, folder, seed=seed)
    costs = {"asked": len(rewards), "prompt_tokens": rewards.prompt_tokens if judged is None else None}
    costs |= {} if parts_of is None else {"parts": parts_of}
    save_fitted(fitted._replace(report={**fitted.report, **costs}), folder, "purple")


# -- what the policy reads --------------------------------------------------------------------------


@once
def record_states(run: Run, tokens: int) -> Node:
    """States of all documents, row by row as in the store, cut to so many tokens."""
    needs = {"store": run.documents, "encoder": vectors.encoder(run)}
    return Stage("token_states", (tokens,), needs, _encode_records, Ragged)


@once
def query_states(run: Run, asked: Questions, tokens: int) -> Node:
    """States of the queries of some questions, in their order."""
    needs = {"store": run.data, "encoder": vectors.encoder(run)}
    return Stage("query_states", (tokens, asked), needs, _encode_queries, Ragged)


def _encode_records(folder: Path, tokens: int, *, store: Store, encoder: TextEncoder) -> None:
    encode = partial(TokenStates(encoder, tokens).encode, role="document")
    late.keep(folder, (text for _, text in store.texts()), store.rows, encode, "token states")


def _encode_queries(
    folder: Path, tokens: int, asked: Questions, *, store: Store, encoder: TextEncoder
) -> None:
    encode = partial(TokenStates(encoder, tokens).encode, role="query")
    texts = (example.query for example in asked.read(store))
    late.keep(folder, texts, asked.count(store), encode, "token states")


_BATCH = 16  # questions of one forward pass
_TOKENS, _PLACES = 16, 4  # sizes are multiples of these, so that few programs are compiled
_PART, _ROWS = 8, 16  # tokens of a record that stand in a row; rows are a multiple of these


class Question(NamedTuple):
    """Token states of a query [s d], of its candidates [t d] each, the retriever's scores of these, and what
    else is known of them [n f] (`features`)."""

    query: np.ndarray
    records: Sequence[np.ndarray]
    scores: Sequence[float]
    features: np.ndarray | None = None


class Shape(NamedTuple):
    """Room for tokens of a query, candidates, and the width of a state."""

    query: int
    records: int
    width: int


def shape_of(query: int, records: int, width: int) -> Shape:
    """Rounded up from the longest query and the most candidates."""
    return Shape(multiple(max(query, 1), _TOKENS), multiple(max(records, 1), _PLACES), width)


def arrays(questions: Sequence[Question], shape: Shape, prior: float) -> dict[str, np.ndarray]:
    """The inputs [b ...] of `models.set_policy`; `prior`: the weight of the retriever's scores.

    Records are cut into rows of 8 tokens, so that a long one lengthens no other; there are as many rows as
    the question with the most of them needs, rounded up to one of four numbers in each power of two.
    """
    size = len(questions), shape.query, shape.width
    queries, query_mask = padded([q.query for q in questions], size, np.float16)
    owners = [_owners(question.records) for question in questions]
    rows = _rounded(max(map(len, owners), default=1))
    records = np.zeros((len(questions), rows, _PART, shape.width), np.float16)
    token_mask = np.zeros(records.shape[:3], bool)
    record_of = np.full(records.shape[:2], -1, np.int32)
    for row, (question, of_rows) in enumerate(zip(questions, owners, strict=True)):
        record_of[row, : len(of_rows)] = of_rows
        states, mask = records[row].reshape(-1, shape.width), token_mask[row].reshape(-1)
        starts = np.searchsorted(of_rows, np.arange(len(question.records))) * _PART
        for record, start in zip(question.records, starts.tolist(), strict=True):
            states[start : start + len(record)] = record
            mask[start : start + len(record)] = True
    counts = np.array([len(question.records) for question in questions])
    known = np.zeros((len(questions), shape.records), np.float32)
    for row, question in enumerate(questions):
        known[row, : counts[row]] = prior * standardised(question.scores)
    further = {}
    if questions and questions[0].features is not None:
        further["features"] = np.zeros((*known.shape, questions[0].features.shape[1]), np.float32)
        for row, question in enumerate(questions):
            further["features"][row, : counts[row]] = question.features
    return {
        "query": queries,
        "query_mask": query_mask,
        "records": records,
        "token_mask": token_mask,
        "record_of": record_of,
        "record_mask": np.arange(shape.records) < counts[:, None],
        "prior": known,
        **further,
    }


def _owners(records: Sequence[np.ndarray]) -> np.ndarray:
    """The record of each row of tokens, int [m], ascending."""
    return np.repeat(np.arange(len(records)), rows_of([len(record) for record in records]))


def rows_of(tokens: Sequence[int] | np.ndarray) -> np.ndarray:
    """How many rows records of so many tokens take."""
    return -(-np.asarray(tokens, np.int64) // _PART)


def _rounded(rows: int) -> int:
    """A multiple of 16; of 32, 64, ... above 128, 256, ..."""
    step = max(_ROWS, 1 << max((rows - 1).bit_length() - 3, 0))
    return multiple(max(rows, 1), step)


def question(
    query: np.ndarray, records: Sequence[np.ndarray], ranking: Ranking, parts: Sequence[str] | None
) -> Question:
    """A question with the states of its candidates. `parts`: of their features; None: there are none."""
    known = None if parts is None else features(ranking, parts)
    return Question(query, records, [candidate.score for candidate in ranking], known)


def part_names(rankings: Iterable[Ranking]) -> tuple[str, ...]:
    """The parts that candidates' scores are made of, over all rankings, sorted."""
    return tuple(sorted({name for ranking in rankings for candidate in ranking for name in candidate.scores}))


def features(ranking: Ranking, parts: Sequence[str]) -> np.ndarray:
    """What retrievers say of a question's candidates, float32 [n 2 + p]: the score, the place (the first is
    the highest) and the scores of each part, each standardised within the question. A candidate that a part
    has no score of has the lowest of that part's.
    """
    columns = [[candidate.score for candidate in ranking], [-float(place) for place in range(len(ranking))]]
    for name in parts:
        lowest = min((c.scores[name] for c in ranking if name in c.scores), default=0.0)
        columns.append([candidate.scores.get(name, lowest) for candidate in ranking])
    return np.stack([standardised(column) for column in columns], axis=-1).astype(np.float32)


def with_features(config: SetPolicyConfig, parts: Sequence[str] | None) -> SetPolicyConfig:
    """The sizes of a policy that reads `features` of these parts; None: of one that reads none."""
    return config if parts is None else replace(config, num_features=2 + len(parts))


class PolicyScorer:
    """A trained policy.

    Args:
      queries: the frozen encoder, for queries, which may be new.
      records: token states of all documents.
      prior: the weight of the retriever's scores.
      parts: whose scores are among the features that it was trained with; None: it has no features.
    """

    def __init__(
        self,
        config: SetPolicyConfig,
        params: Params,
        queries: TokenStates,
        records: Ragged,
        prior: float,
        parts: Sequence[str] | None = None,
    ) -> None:
        self._parts = parts
        self._params, self._queries, self._records, self._prior = params, queries, records, prior
        self._apply = jax.jit(from_arrays(set_policy(config)))

    def scores(self, examples: Examples, rankings: Sequence[Ranking]) -> list[np.ndarray]:
        """The logit of each example's candidates, float32."""
        queries = self._queries.encode([example.query for example in examples], role="query")
        rows = [[candidate.row for candidate in ranking] for ranking in rankings]
        longest, most = max(map(len, queries), default=1), max(map(len, rows), default=1)
        shape = shape_of(longest, most, self._queries.width)
        found: list[Any] = [None] * len(examples)
        order = np.argsort([rows_of(self._records.lengths[of]).sum() for of in rows], kind="stable").tolist()

        def start(some: list[int]) -> tuple[list[int], Any]:
            read = [question(queries[i], self._records.read(rows[i]), rankings[i], self._parts) for i in some]
            filled = read + read[:1] * (_BATCH - len(read))
            return some, self._apply(self._params, arrays(filled, shape, self._prior))

        batches = (order[begin : begin + _BATCH] for begin in range(0, len(order), _BATCH))
        for some, scores in fetched(map(start, batches)):
            for i, row in zip(some, scores):
                found[i] = row[: len(rows[i])]
        return found
