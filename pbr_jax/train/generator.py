"""Fine-tunes the generator on the targets of training users, with LoRA or all of its weights.

The loss of a question is the mean over the tokens of its target, including the end token. The loss of a batch
is the mean over questions. Logits are computed only at target positions, and a common prefix of all prompts
is computed once.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from pbr_jax.base.prefetch import fetched
from pbr_jax.base.types import Model, Params, UserError
from pbr_jax.losses.language_model import token_cross_entropy
from pbr_jax.losses.reduction import masked_mean
from pbr_jax.models import causal_lm, lora, t5
from pbr_jax.models.adapter_file import Modules
from pbr_jax.models.sharding import Rules
from pbr_jax.options import TunedGenerator
from pbr_jax.text.padding import multiple, padded
from pbr_jax.train.batches import Rows
from pbr_jax.train.loop import Fitted, TrainingTask, fit
from pbr_jax.train.sharding import Batch, replicated, spread_rows

Ids = tuple[int, ...]
_ALIKE = 8  # tokens that rows share are a multiple of it
_MEMBERS = 64  # pairs of each kind that the membership test looks at
_FEWEST = 8  # users that may choose the step


class Pair(NamedTuple):
    """A user's prompt and its target with the end token."""

    prompt: Ids
    target: Ids
    user_id: str


class Family(NamedTuple):
    """The model that is tuned. `params()` reads its parameters, sharded by `rules` (in a single process
    over all devices). `nll(params, batch, key)` is the mean loss of each row's counted tokens, [b]."""

    params: Callable[[], Params]
    nll: Callable[[Params, dict[str, Array], Array | None], Float[Array, "b"]]
    arrays: Callable[[Sequence[Pair]], Batch]
    modules: Modules
    task: str
    rules: Rules


def train(
    family: Family, pairs: Sequence[Pair], options: TunedGenerator, folder: Path, *, seed: int, mesh: Mesh
) -> Fitted:
    """Trains on the pairs of some users, and chooses the best step by the pairs of held-out users.

    In the result, `params` are those of the adapter (`lora`) or of the whole model. `report` contains the
    membership test: the likelihood of targets of training and held-out users before and after training, and
    the AUC that separates them.

    Raises UserError if there are no training pairs, or if a loss is not finite.
    """
    if not pairs:
        raise UserError("no training question has a target; a generator is tuned on targets")
    training = options.training
    learned, held = _divided(pairs, training.selection, seed)
    start, frozen, scale = _begun(family, options, seed)
    loss = _loss(family, scale)
    target_nll = jax.jit(spread_rows(_target_nll(family, scale), mesh), out_shardings=replicated(mesh))

    def batch(rows: Rows) -> Batch:
        return family.arrays([learned[i] for i in rows.indices.tolist()]) | {"where": rows.where}

    def nll(params: Params, some: Sequence[Pair]) -> np.ndarray:
        """The mean loss of each pair without its end token: its target_nll."""
        return _over(lambda arrays: target_nll(params | frozen, arrays), family, some, training.batch_size)

    def evaluate(params: Params) -> float:
        return -float(nll(params, held).mean())

    task = TrainingTask(
        start,
        loss,
        len(learned),
        batch,
        evaluate if held else None,
        frozen=frozen,
        mesh=mesh,
        lengths=np.array([len(pair.prompt) + len(pair.target) for pair in learned]),
        rules=family.rules if options.method == "full" else None,
    )
    fitted = fit(task, training, folder, seed=seed)
    membership = _membership(nll, start, fitted.params, learned, held, seed)
    users = len({pair.user_id for pair in learned})
    report = {
        "step": fitted.step,
        "pairs": len(learned),
        "users": users,
        "tokens": sum(len(pair.target) for pair in learned),
        "held_out": len(held),
        "membership": membership,
    }
    return fitted._replace(report=report, notes=(_note(membership, users),))


def _note(membership: dict[str, Any], users: int) -> str:
    if not membership:
        return f"learned from {users} users; none were left to choose the step, so the last one was taken"
    before, after = (membership[when]["auc"] for when in ("before", "after"))
    return (
        f"learned from {users} users; membership by the likelihood of targets has AUC {before:.2f} before, "
        f"{after:.2f} after"
    )


def _begun(family: Family, options: TunedGenerator, seed: int) -> tuple[Callable[[], Params], Params, float]:
    """What is trained, what is not, and what products of an adapter are multiplied with."""
    if options.method == "full":
        return lambda: {"base": family.params()}, {}, 0.0
    base = family.params()
    start = lora.init(jax.random.key(seed), base, options.targets, options.rank)
    return lambda: {"adapter": start}, {"base": base}, options.alpha / options.rank


def _weights(params: Params, scale: float) -> Params:
    if "adapter" not in params:
        return params["base"]
    return lora.attached(params["base"], params["adapter"], scale)


def _loss(family: Family, scale: float):
    def loss(params: Params, batch: dict[str, Array], key: Array) -> Float[Array, ""]:
        return masked_mean(family.nll(_weights(params, scale), batch, key), batch["where"])

    return loss


def _target_nll(family: Family, scale: float):
    def target_nll(params: Params, batch: dict[str, Array]) -> Float[Array, "b"]:
        # Without the end: what `LLM.score` gives.
        last = batch["counted"].sum(axis=1, keepdims=True) - 1
        counted = batch["counted"] & (jnp.arange(batch["counted"].shape[1])[None] < last)
        return family.nll(_weights(params, scale), batch | {"counted": counted}, None)

    return target_nll


def _over(compute: Any, family: Family, pairs: Sequence[Pair], size: int) -> np.ndarray:
    values = np.zeros(len(pairs))
    order = np.argsort([len(pair.prompt) + len(pair.target) for pair in pairs], kind="stable")
    batches = (order[begin : begin + size] for begin in range(0, len(order), size))

    def start(rows: np.ndarray) -> tuple[np.ndarray, Any]:
        return rows, compute(family.arrays([pairs[i] for i in np.resize(rows, size).tolist()]))

    for rows, found in fetched(map(start, batches)):
        values[rows] = found[: len(rows)]
    return values


def _divided(pairs: Sequence[Pair], share: float, seed: int) -> tuple[list[Pair], list[Pair]]:
    """Pairs to learn from, and those of held-out users: a share of them, from 8 to half, or none."""
    users = sorted({pair.user_id for pair in pairs})
    count = min(max(_FEWEST, round(share * len(users))), len(users) // 2)
    if not share or count < _FEWEST:
        count = 0
    order = np.random.default_rng([seed, 5]).permutation(len(users))
    apart = {users[i] for i in order[:count]}
    return [p for p in pairs if p.user_id not in apart], [p for p in pairs if p.user_id in apart]


def _membership(
    nll: Callable[[Params, Sequence[Pair]], np.ndarray],
    start: Callable[[], Params],
    end: Params,
    learned: Sequence[Pair],
    held: Sequence[Pair],
    seed: int,
) -> dict[str, Any]:
    """What an observer of likelihoods learns of who was learned from; empty without held-out users."""
    if not held:
        return {}
    draw = np.random.default_rng([seed, 6])
    members, others = (
        [some[i] for i in sorted(draw.permutation(len(some))[:_MEMBERS].tolist())] for some in (learned, held)
    )
    report: dict[str, Any] = {"pairs": [len(members), len(others)]}
    for when, of in (("before", start), ("after", lambda: end)):
        params = of()
        inside, outside = nll(params, members), nll(params, others)
        lower = (inside[:, None] < outside[None]).mean() + 0.5 * (inside[:, None] == outside[None]).mean()
        report[when] = {
            "members_nll": float(inside.mean()),
            "others_nll": float(outside.mean()),
            "auc": float(lower),
        }
    return report


def causal_family(path: Path, options: TunedGenerator, mesh: Mesh) -> Family:
    """A decoder-only model from a folder or GGUF file, sharded over the mesh. Frozen weights have the dtype
    of the training, others float32."""
    dtype = jnp.dtype(options.training.dtype)
    kept = jnp.float32 if options.method == "full" else dtype
    config = causal_lm.read_config(path)
    model = causal_lm.causal_lm(config, dtype, dropout=options.dropout, remat=options.remat)

    def nll(params: Params, batch: dict[str, Array], key: Array | None) -> Float[Array, "b"]:
        past = _begun_alike(model, params, batch.get("shared"), key)
        output = model.apply(params, batch["ids"], batch["positions"], past, key=key, rows=batch.get("row"))
        wanted = batch["wanted"]
        places = batch["first"][:, None] + jnp.arange(wanted.shape[1])[None]
        hidden = jnp.take_along_axis(output.hidden, places[..., None], axis=1, mode="clip")
        return _mean(causal_lm.logits(params, hidden, config.logit_cap), batch)

    # LongRoPE: long texts read even their beginning otherwise.
    most = config.rope.original if config.rope.long_divisors else None
    arrays = partial(_causal_arrays, most=most)
    rules = causal_lm.sharding_rules(config, mesh)
    return Family(
        # Several processes keep whole copies: each step would gather the shares over the network.
        lambda: causal_lm.load(path, kept, mesh, fully=jax.process_count() == 1)[1],
        nll, arrays, causal_lm.modules(config), "CAUSAL_LM", rules,
    )  # fmt: skip


def _begun_alike(
    model: Model, params: Params, shared: Int[Array, "b s"] | None, key: Array | None
) -> causal_lm.Past | None:
    """What all rows begin with, read once for all of them; its dropout is no row's."""
    if shared is None:
        return None
    places = jnp.arange(shared.shape[1])
    read = model.apply(params, shared[:1], places[None], key=key, rows=jnp.full((1,), -1, jnp.int32))
    return causal_lm.Past(read.keys[:, 0], read.values[:, 0], places)


def t5_family(path: Path, options: TunedGenerator, mesh: Mesh) -> Family:
    """A T5 from a folder, as in `causal_family`."""
    dtype = jnp.dtype(options.training.dtype)
    kept = jnp.float32 if options.method == "full" else dtype
    config = t5.read_config(path)
    model = t5.t5(config, dtype, dropout=options.dropout)

    def nll(params: Params, batch: dict[str, Array], key: Array | None) -> Float[Array, "b"]:
        read = t5.shift_right(batch["wanted"], batch["counted"], config.start_id)
        hidden = model.apply(params, batch["ids"], batch["mask"], read, key=key, rows=batch.get("row"))
        return _mean(t5.logits(params, hidden), batch)

    return Family(
        lambda: t5.load(path, kept, mesh, fully=jax.process_count() == 1)[1],
        nll, _t5_arrays, t5.modules(config), "SEQ_2_SEQ_LM", t5.SHARDING,
    )  # fmt: skip


def _mean(logits: Float[Array, "b t v"], batch: dict[str, Array]) -> Float[Array, "b"]:
    counted = batch["counted"]
    losses = token_cross_entropy(logits, batch["wanted"], where=counted)
    return losses.sum(axis=1) / jnp.maximum(counted.sum(axis=1), 1)


def _causal_arrays(pairs: Sequence[Pair], most: int | None = None) -> Batch:
    """`shared` [b s], where rows begin alike: those tokens, in each of them; `ids` [b t] stand behind
    them. `most`: tokens of the longest text up to which rows share anything; None: of any."""
    # The last token of a target is predicted, never read.
    texts = [pair.prompt + pair.target[:-1] for pair in pairs]
    alike = 0 if most is not None and max(map(len, texts)) > most else _alike([pair.prompt for pair in pairs])
    ids, mask = _padded([text[alike:] for text in texts], 32)
    targets = [pair.target for pair in pairs]
    # Every width is one more program, which takes longer to compile than a few more places to compute.
    wanted, counted = _padded(targets, 8 if max(map(len, targets)) <= 8 else 32)
    positions = np.where(mask, alike + np.arange(ids.shape[1], dtype=np.int32)[None], -1)
    first = np.array([len(pair.prompt) - 1 - alike for pair in pairs], np.int32)
    arrays = {"ids": ids, "positions": positions, "first": first, "wanted": wanted, "counted": counted}
    return arrays | ({"shared": np.array([text[:alike] for text in texts], np.int32)} if alike else {})


def _alike(prompts: Sequence[Ids]) -> int:
    """How many tokens all prompts begin with, before their last one; a multiple, so that shapes are few. One
    prompt shares nothing."""
    most = min(map(len, prompts)) - 1 if len(prompts) > 1 else 0
    differ = (place for place, tokens in enumerate(zip(*prompts)) if len(set(tokens)) > 1)
    return min(next(differ, most), most) // _ALIKE * _ALIKE


def _t5_arrays(pairs: Sequence[Pair]) -> Batch:
    ids, mask = _padded([pair.prompt for pair in pairs], 32)
    wanted, counted = _padded([pair.target for pair in pairs], 8)
    return {"ids": ids, "mask": mask, "wanted": wanted, "counted": counted}


def _padded(rows: Sequence[Ids], floor: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids [b t] with zeros on the right, and which are real; few widths, so few programs are compiled."""
    longest = max(map(len, rows))
    step = max(floor, multiple(longest, 8) // 8)  # an eighth of padding at most, beyond the first ones
    width = multiple(longest, 1 << (step - 1).bit_length())
    return padded(rows, (len(rows), width))
