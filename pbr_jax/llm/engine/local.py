"""What the backends have in common: checks of a request, equal requests, and a model read from disk."""

import abc
import functools
import hashlib
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from pbr_jax import options as schema
from pbr_jax.base import interrupts
from pbr_jax.base.types import UserError
from pbr_jax.llm import usage
from pbr_jax.llm.protocol import Progress, Prompt, Prompts, Sampling, TooLong, occurrences
from pbr_jax.llm.stop_strings import cut
from pbr_jax.llm.tokens import chat
from pbr_jax.llm.tokens.templates import DATE
from pbr_jax.models import adapter_file, pretrained, sharding, tokenizer_file

Ids = tuple[int, ...]
Local = TypeVar("Local", bound="LocalModel")
Request = TypeVar("Request", bound=Hashable)
Value = TypeVar("Value")
AnswerBatches = Iterator[list[tuple[int, Value]]]
"""Positions of requests and their values, batch by batch as they are finished."""


class LocalModel(abc.ABC):
    """A model and its tokenizer on disk; nothing is read before it is needed.

    Args:
      path: a Hugging Face folder or a GGUF file.
      dtype: the number format of weights and activations.
      batch_size: prompts computed together.
      context: tokens that the model may see; None: as many as it says itself.
      devices: that share the weights of every layer; the others have copies, which share the work.
      date: what a chat template takes for today.
      overflow: what becomes of prompts over the context: `refuse` or `cut`, in the middle.
      adapter: a folder with a LoRA adapter, or with tuned parameters. None: the adapter that lies beside the
        model's weights, as transformers reads such a folder, or none.
    """

    version = "0"  # of how texts are computed; raised when the same weights would give other texts
    separate = False  # whether an answer is a text of its own, not one that goes on with the prompt
    context: functools.cached_property[int]
    """Longest prompt plus answer, in tokens; where the answer is `separate`, of either."""

    def __init__(
        self,
        path: Path,
        *,
        dtype: str = "float32",
        batch_size: int = 16,
        context: int | None = None,
        devices: int = 1,
        overflow: str = "refuse",
        date: str = DATE,
        adapter: Path | None = None,
    ):
        if batch_size < 1:
            raise UserError(f"llm.batch_size is {batch_size}; it must be at least 1")
        self._path = path
        self._content = pretrained.fingerprint(path)  # now: whatever lies there later is another's
        self._dtype = jnp.dtype(dtype)
        self._batch_size = batch_size
        self._wanted_context = context
        self._devices = devices
        beside = path if (path / adapter_file.CONFIG).is_file() else None
        self._overflow, self._date, self._adapter = overflow, date, adapter or beside
        adapter = self._adapter
        self._tuned = "" if adapter is None else adapter_file.fingerprint(adapter)

    @classmethod
    def load(cls: type[Local], config: schema.LLM) -> Local:
        """The model that a config names. Raises UserError for a context that it does not have."""
        model = cls(
            pretrained.locate(config.model), dtype=config.dtype, batch_size=config.batch_size,
            context=config.context, devices=config.tensor_parallel, overflow=config.overflow,
            date=config.date, adapter=Path(config.adapter) if config.adapter else None,
        )  # fmt: skip
        if config.context is not None:
            _ = model.context
        return model

    @property
    def fingerprint(self) -> str:
        """Of weights, tokenizer, template and its date, number format, platform and versions, and how prompts
        are cut."""
        # Other hardware and other compilers round otherwise, and a rounding can choose another token.
        numerics = f"{jax.default_backend()} {jax.__version__} {version('jaxlib')}"
        # Where prompts are cut, how far is part of what the model reads; where not, they are refused.
        overflow = f"cut {self._wanted_context}" if self._overflow == "cut" else self._overflow
        how = f"{self.version} {chat.VERSION} {overflow} {self._date}"
        identity = f"{self._content} {self._dtype.name} {how} {numerics}" + (
            f" {self._tuned}" * bool(self._tuned)
        )
        return hashlib.sha256(identity.encode()).hexdigest()

    def _check_unchanged(self) -> None:
        """Once the files are read: raises UserError where they are not those that the fingerprint is of."""
        adapter = "" if self._adapter is None else adapter_file.fingerprint(self._adapter)
        if pretrained.fingerprint(self._path) != self._content or adapter != self._tuned:
            raise UserError(f"{self._path} or its adapter was written to while this ran; start again")

    @functools.cached_property
    def _codec(self) -> chat.Codec:
        return chat.load(self._path, self._date)

    def count(self, text: str) -> int:
        return self._codec.count(text)

    def truncate(self, text: str, tokens: int) -> str:
        return self._codec.truncate(text, tokens)

    def render(self, prompt: Prompt) -> str:
        return self._codec.render(prompt)

    def num_tokens(self, prompt: Prompt) -> int:
        return self._codec.num_tokens(prompt)

    def _encode(self, prompts: Prompts) -> list[Ids]:
        encoded = [tuple(self._codec.encode(prompt)) for prompt in prompts]
        for index, ids in enumerate(encoded):
            if not ids:
                raise UserError(f"prompt {index} is empty; a model needs at least one token to continue")
        self._check_known(encoded)
        return encoded

    def _requests(
        self, prompts: Prompts, sampling: Sampling
    ) -> tuple[list[tuple[Ids, int]], dict[int, TooLong]]:
        """Each prompt's tokens with the number of its draw, and the errors of prompts that do not fit."""
        check_beams(sampling.num_beams, self._codec.stops, self.vocabulary)
        new = [sampling.max_new_tokens] * len(prompts)
        ids, errors = self._fit(self._encode(prompts), new, "generate.max_new_tokens")
        return list(zip(ids, occurrences(prompts) if sampling.temperature else [0] * len(ids))), errors

    def _pairs(
        self, prompts: Prompts, targets: Sequence[str]
    ) -> tuple[list[tuple[Ids, Ids]], dict[int, TooLong]]:
        """Tokens of each prompt and target, and the errors of pairs that do not fit."""
        check_pairs(prompts, targets)
        second = [tuple(self._codec.encode_target(text, begins=self.separate)) for text in targets]
        self._check_known(second)
        first, errors = self._fit(self._encode(prompts), list(map(len, second)), "the target's length")
        return list(zip(first, second)), errors

    def _text(self, tokens: Sequence[int], stop: Sequence[str] = ()) -> str:
        """The text of an answer's tokens up to a stop token or a stop string; what follows means nothing."""
        end = next((i for i, token in enumerate(tokens) if token in self._codec.stops), len(tokens))
        self._check_numbers(min(tokens[:end], default=0) >= 0)
        return cut(self._codec.decode(tokens[:end]), stop)

    def _check_numbers(self, finite: Any) -> None:
        """UserError where the model's logits were not numbers (tokens of -1, scores of NaN)."""
        if not finite:
            raise UserError(
                f"{self._path}: the model's logits are not numbers (NaN) in {self._dtype.name}; check its "
                "weights, or set --llm.dtype to the other format"
            )

    def _check_known(self, texts: Iterable[Ids]) -> None:
        tokenizer_file.check_known(texts, self.vocabulary, str(self._path))

    @property
    @abc.abstractmethod
    def vocabulary(self) -> int:
        """How many tokens the model has rows for."""

    def _fit(
        self, prompts: Sequence[Ids], following: Sequence[int], name: str
    ) -> tuple[list[Ids], dict[int, TooLong]]:
        """The prompts, cut where that is wanted, and the errors of those that do not fit."""
        fitting, errors, count = list(prompts), {}, 0
        for index, (ids, more) in enumerate(zip(prompts, following, strict=True)):
            try:
                fitting[index] = fit(
                    index, ids, more, self.context, name, cut=self._overflow == "cut", separate=self.separate
                )
                count += fitting[index] != ids
            except TooLong as error:
                errors[index] = error
        usage.count({"cut_prompts": count} if count else {})
        return fitting, errors


def replicas(devices: int) -> list[Mesh]:
    """Where this process has copies of a model that so many devices share; none on a CPU where each copy
    would have one device: its cores share a copy."""
    if devices == 1 and jax.local_devices()[0].platform == "cpu":
        return []
    return sharding.replicas(devices)


def answer_each(
    requests: Sequence[Request],
    errors: Mapping[int, TooLong],
    compute: Callable[[list[Request], list[bool]], AnswerBatches[Value]],
    progress: Progress,
) -> list[Value]:
    """The answer to every request; equal requests are computed once.

    Args:
      errors: of requests that are not answered; the first one is raised when all others are.
      compute: called with the distinct requests and which of them are wanted.
      progress: what is done, and who is told of new answers.
    """
    answers = dict(progress.get("done") or {})
    on_batch = progress.get("on_batch")
    same = [group for group in groups(requests) if group[0] not in errors]
    wanted = [any(i not in answers for i in group) for group in same]
    with interrupts.deferred():
        for batch in compute([requests[group[0]] for group in same], wanted) if any(wanted) else ():
            new = {i: value for place, value in batch for i in same[place] if i not in answers}
            answers |= new
            if on_batch is not None:
                on_batch(list(new), list(new.values()))
            interrupts.check()
    if unanswered := [error for index, error in errors.items() if index not in answers]:
        raise unanswered[0]
    return [answers[index] for index in range(len(requests))]


def check_pairs(prompts: Prompts, targets: Sequence[str]) -> None:
    """Raises ValueError unless there is one target for each prompt."""
    if len(prompts) != len(targets):
        raise ValueError(f"{len(prompts)} prompts for {len(targets)} targets; one target each is needed")


def check_beams(num_beams: int, stops: Collection[int], vocabulary: int) -> None:
    """Raises UserError for more beams than a vocabulary can fill; see `beam_search` for how many it needs."""
    most = vocabulary // (max(1, len(stops)) + 1)
    if num_beams > max(1, most):
        raise UserError(
            f"generate.num_beams is {num_beams}, and the model's vocabulary of {vocabulary} tokens fills "
            f"{most}; lower it"
        )


def fit(index: int, ids: Ids, following: int, context: int, name: str, *, cut: bool, separate: bool) -> Ids:
    """A prompt that fits, cut in the middle where that is wanted. Raises TooLong.

    Args:
      following: tokens after it.
      name: what to lower so that fewer follow.
      separate: whether what follows is a text of its own, with as much room again.
    """
    room = context if separate else context - following
    if cut and room > 0:
        ids = cut_middle(ids, room)
    error = too_long(index, len(ids), 0 if separate else following, context, name)
    if error is None and separate and following > context:
        line = f"is followed by {following} tokens, over the context of {context}"
        error = TooLong(index, f"{line}; lower {name} or raise llm.context")
    if error is not None:
        raise error
    return ids


def too_long(
    index: int, length: int, following: int, context: int, name: str, *, cuts: bool = True
) -> TooLong | None:
    """The error of a prompt that does not fit with what follows it; `name` says what else to lower, `cuts`
    whether prompts can be cut."""
    if length + following <= context:
        return None
    more, also = (f" and {following} more follow", f" or {name}") if following else ("", "")
    return TooLong(
        index,
        f"has {length} tokens{more}, over the context of {context}; lower prompt.max_tokens{also}, raise "
        f"llm.context{', or set llm.overflow cut' * cuts}",
    )


def cut_middle(ids: Ids, tokens: int) -> Ids:
    """The first and last tokens of a prompt, so many together: its instruction and its end stay."""
    return ids if len(ids) <= tokens else ids[: (tokens + 1) // 2] + ids[len(ids) - tokens // 2 :]


def groups(items: Sequence[Hashable]) -> list[list[int]]:
    """Positions of equal items together, in order of first appearance."""
    positions: dict[Hashable, list[int]] = {}
    for index, item in enumerate(items):
        positions.setdefault(item, []).append(index)
    return list(positions.values())


def draw(ids: Ids, occurrence: int) -> int:
    """What a prompt's randomness starts from, beside the seed: 32 bits of its tokens and its occurrence."""
    digest = hashlib.sha256(f"{ids} {occurrence}".encode()).digest()
    return int.from_bytes(digest[:4], "big")
