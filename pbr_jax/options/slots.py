"""The bases of the slots: what the methods of a slot have in common. A method is a class of one of them."""

import abc
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pbr_jax.options.base import Options, TrainingSplit, added, checked, hints
from pbr_jax.types import UserError


@dataclass(frozen=True, kw_only=True)
class Method(Options, abc.ABC):
    """A way to fill a slot: its options, what it needs, and how it computes.

    `needs` chooses nodes of the graph and computes nothing; it alone sees the run. `slot` gets the values of
    these nodes by their names, and makes the slot's callable. A slot's key is the hash of the options, of
    the code and of the needs, so it cannot read what is not in its key.
    """

    training_split: ClassVar[TrainingSplit] = "unused"
    """Whether it looks at the training split."""

    method: str

    @property
    def ceiling(self) -> bool:
        """Whether it reads what is to be predicted. Its row is then a bound on what a system can reach."""
        return False

    def learns(self) -> TrainingSplit:
        """`training_split`, where it depends on options."""
        return self.training_split

    def needs(self, run: Any) -> Mapping[str, Any]:
        """The nodes (`pbr_jax.graph`) that `slot` computes with, by the names of its arguments."""
        return {}

    def check_run(self, run: Any) -> None:
        """Raises UserError for what the run's config, models and data do not allow; called before any work.

        The data has been read by then: `run.data.value` is the store of the documents and the questions.
        """

    @abc.abstractmethod
    def slot(self, *args: Any, **kwargs: Any) -> Any:
        """`slot(tally, *, name=value …)`: the callable of the slot, see `pbr_jax.pipeline`."""


@dataclass(frozen=True, kw_only=True)
class Learner(Method):
    """A method of any slot that learns from a stream of questions: `class Own(Learner, Retrieve)`.

    Its state is a folder of its own files: `state` is the present one, in `slot` too, where values of needs
    come by their names. Blocks are of `pbr_jax.stream.Block`.
    """

    @property
    def supervised(self) -> bool:
        """Whether it sees targets, relevant documents and likelihoods of questions that were answered."""
        return False

    @property
    def supervision(self) -> str:
        """What it learns from where it is supervised, for the run's notes."""
        return "what users wrote to questions"

    def start(self, folder: Path, **values: Any) -> None:
        """Writes the first state; without this it is an empty folder."""

    def corpus(self, store: Any, state: Path) -> Any:
        """The store of what `slot` finds: the run's, or a copy (`Store.copy_to`) in the state, which `learn`
        has written to. The same object for the same state."""
        return store

    def observe(self, block: Any, *, state: Path, **values: Any) -> list[Any]:
        """What is learned from, JSON for each question of a block, or of a part of one, that was answered."""
        return [None] * len(block.examples)

    @abc.abstractmethod
    def learn(self, blocks: Any, *, state: Path, out: Path, **values: Any) -> None:
        """Writes the next state into the folder `out`, which may hold files of an interrupted attempt.

        `blocks`: the sequence of all blocks so far, the newest last, each of them read when it is indexed.
        Of folds of users it is all but the one that is to be answered, and `state` is the first state.
        """

    def report(self, blocks: Any, *, state: Path, **values: Any) -> Mapping[str, float]:
        """Numbers for results.json, by their names, such as how many of the observed labels are right.

        `blocks`: all blocks, the newest last, or all folds, with targets and relevant documents. `state`: the
        one by which the last of them was answered.
        """
        return {}


def names_of(methods: Sequence[Method]) -> list[str]:
    """What methods of one list are called: by their methods' names, a second one bm25_2."""
    found: list[str] = []
    for place, one in enumerate(methods):
        count = sum(before.method == one.method for before in methods[:place])
        found.append(f"{one.method}_{count + 1}" if count else one.method)
    return found


_M = TypeVar("_M", bound=Method)


def swapped(old: Method, method: type[_M]) -> _M:
    """Another method with the values of those fields that both have, where they fit."""
    kept = {}
    for name, hint in hints(method).items():
        if name == "method" or not hasattr(old, name):
            continue
        with contextlib.suppress(UserError):
            kept[name] = checked(name, getattr(old, name), hint)
    return method(**kept)


@dataclass(frozen=True, kw_only=True)
class Expand(Method):
    """Slot 1: query text to query vector(s)."""

    section: ClassVar[str] = "expand"

    own_vector: ClassVar[bool] = False
    """Whether its queries may come with vectors, so that the retriever encodes no text of theirs."""


@dataclass(frozen=True, kw_only=True)
class Neighbours(Method):
    """Slot 2: whose histories are searched."""

    section: ClassVar[str] = "neighbours"

    m: int = 1  # number of users whose documents are searched, the asking user included

    @property
    def others(self) -> int:
        """How many of the users are not the one who asks."""
        return self.m - 1

    @property
    def searched(self) -> int:
        """How many users' histories are searched, at most."""
        return self.m

    def check(self) -> None:
        self.at_least("m", 1)

    def users(self, run: Any) -> Any:
        """The node of users as vectors, for the parts that know who asks; None: the trained encoder's."""
        return None


@dataclass(frozen=True, kw_only=True)
class Retrieve(Method):
    """Slot 3: candidates from those histories."""

    section: ClassVar[str] = "retrieve"

    k: int = 4  # number of documents retrieved from each user

    def check(self) -> None:
        self.at_least("k", 1, "configs/zero_shot.py runs without documents")

    def encoder(self, run: Any) -> Any:
        """The node of the encoder whose vectors are searched; None where none are."""
        return None


@dataclass(frozen=True, kw_only=True)
class Select(Method):
    """Slot 4: the ordered documents that enter the prompt."""

    section: ClassVar[str] = "select"

    k: int | None = None  # number of documents in the prompt. None: all that were retrieved

    def check(self) -> None:
        self.at_least("k", 1)


@dataclass(frozen=True, kw_only=True)
class Generate(Method):
    """Slot 6: how the answer is decoded."""

    section: ClassVar[str] = "generate"

    own_likelihood: ClassVar[bool] = False
    """Whether the slot computes itself how probable an answer is (`pipeline.Scoring`)."""

    max_new_tokens: int | None = None  # maximum length of an answer, in tokens. None: as the task specifies
    temperature: float = 0.0  # sampling temperature. 0: greedy decoding
    top_p: float = 1.0  # probability mass of nucleus sampling, from 0 to 1
    num_beams: int = 1  # number of beams. More than 1: beam search, which does not sample
    # texts before which an answer ends, in addition to those of the task
    stop: tuple[str, ...] = field(default=(), metadata=added(()))
    # seed of sampled answers. Training and all other random choices depend on `seed`. None: `seed` for both
    seed: int | None = None

    def check(self) -> None:
        self.at_least("max_new_tokens", 1)
        self.at_least("temperature", 0)
        self.between("top_p", 0, 1)
        self.at_least("num_beams", 1)
        self.filled("stop")
        if self.seed is not None:
            self.between("seed", 0, 2**32 - 1)
        if self.num_beams > 1 and self.temperature > 0:
            raise UserError(
                f"generate.num_beams is {self.num_beams} and generate.temperature {self.temperature}; "
                "beam search does not sample: set one of them back"
            )

    def check_run(self, run: Any) -> None:
        run.config.llm.check_beams(self.num_beams)

    def sampling_seed(self, seed: int) -> int:
        """The seed of sampled answers in a run of this seed; 0 where nothing is drawn."""
        return 0 if not self.temperature else seed if self.seed is None else self.seed

    def stop_strings(self, task: Any) -> tuple[str, ...]:
        """The texts before which an answer to this task ends."""
        return tuple(dict.fromkeys((*task.stop, *self.stop)))

    def resolved(self, task: Any) -> "Generate | None":
        """What answers this task; None: nothing does."""
        return self
