"""One training step of CFRAG's three trained parts, the generator and PURPLE's policy: ours against torch.

    python benchmarks/train_steps.py --parts users retriever reranker generator policy --repeats 5
    python benchmarks/train_steps.py --parts generator --alone torch  # the most memory of one side

Shapes are those of configs/cfrag.py on short documents: 64 users of up to 100 documents; 8 questions of 20
candidates of 48 tokens; 4 questions of 20 pairs of 96 tokens. The towers are MiniLM's. The generator's: LoRA
(rank 8 on queries and values, dropout .05) on SmolLM2-135M, 8 rows of 170 to 185 tokens of which 16 to 32 are
the target, against PEFT; there the loss is transformers' own, labels -100 on the prompt. The policy's: 16
questions of 20 records, query and records of up to 64 tokens (states are given, in half precision), 12
layers, 32 profiles of 5; its peer are torch's own modules, the whole batch at once. Both sides compute
forward, backward, clipping and Adam in float32, with dropout, on the same inputs, in turn; batches are made
beforehand. Ours computes a batch in parts where that is its default. On an accelerator ours runs there and
torch on the CPU: then only our seconds mean something. All parts stand in one file, for one command.
"""

import argparse
import itertools
import resource
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

Step = Callable[[], float]
"""One step, ended when its loss is known."""


def our_step(loss: Any, params: Any, batch: Any, training: Any = None, frozen: Any = None) -> Step:
    import jax

    from pbr_jax.config import Optimizer
    from pbr_jax.train import sharding, steps
    from pbr_jax.train.optimizers import optimizer

    mesh = sharding.data_mesh(1)
    told = training.optimizer if frozen else Optimizer(name="adam", learning_rate=1e-5)
    rule = optimizer(told, 100)
    accumulate = training.accumulate if training else 1
    division = steps.division(len(batch["where"]), accumulate, mesh, few=bool(frozen))
    step = steps.compiled(loss, rule, mesh, division)
    now = [steps.create(params, rule, sharding.replicated(mesh))]
    arrays, key = sharding.put(batch, mesh), jax.random.key(0)

    def run() -> float:
        now[0], metrics = step(now[0], arrays, key, frozen)
        return float(metrics["loss"])

    return run


def peer_step(model: Any, loss: Callable[[], Any]) -> Step:
    import torch

    rule = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-5)

    def run() -> float:
        rule.zero_grad()
        value = loss()
        value.backward()
        torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
        rule.step()
        return float(value)

    return run


def peer_bert() -> Any:
    """MiniLM in torch, in training mode, as transformers builds it by default."""
    from transformers import AutoModel

    from pbr_jax.models.pretrained import locate

    return AutoModel.from_pretrained(str(locate("all-MiniLM-L6-v2")), add_pooling_layer=False).train()


def users(b: int = 64, n: int = 100, d: int = 384) -> tuple[Step, Step]:
    import jax
    import torch
    from torch import nn

    from pbr_jax.models.user_transformer import UserTransformerConfig, user_transformer
    from pbr_jax.train import user_encoder

    random = np.random.default_rng(0)
    lengths = random.integers(n // 4, n + 1, b)
    views = random.normal(size=(2, b, n, d)).astype(np.float32) / d**0.5
    mask = np.arange(n) < lengths[:, None]
    config = UserTransformerConfig(width=d, max_documents=n)
    batch: dict[str, Any] = {"where": np.ones(b, bool)}
    for name, view in zip(("first", "second"), views):
        batch |= {name: view, f"{name}_mask": mask, f"{name}_hidden": np.zeros_like(mask)}
    objective = user_encoder.Objective(loss="nt_xent")
    ours = our_step(
        user_encoder._loss(config, objective, dropout=True),
        user_transformer(config).init(jax.random.key(0)),
        batch,
    )

    class Peer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.position = nn.Parameter(torch.randn(n, d) * 0.02)
            self.layer = nn.TransformerEncoderLayer(d, 2, d, dropout=0.1, batch_first=True)

        def forward(self, x: Any, where: Any) -> Any:
            states = self.layer(x + self.position, src_key_padding_mask=~where)
            return (states * where[..., None]).sum(1) / where.sum(1, keepdim=True)

    peer, where = Peer().train(), torch.from_numpy(mask)
    inputs = [torch.from_numpy(view) for view in views]

    def loss() -> Any:
        both = nn.functional.normalize(torch.cat([peer(x, where) for x in inputs]), dim=-1)
        logits = both @ both.T / 0.1
        logits.fill_diagonal_(-1e9)
        return nn.functional.cross_entropy(logits, (torch.arange(2 * b) + b) % (2 * b))

    return ours, peer_step(peer, loss)


def retriever(b: int = 8, c: int = 20, t: int = 48) -> tuple[Step, Step]:
    import jax
    import torch
    from torch import nn

    from pbr_jax.config import Distillation
    from pbr_jax.methods.retrieve import Tuned
    from pbr_jax.models import bert, dual_encoder
    from pbr_jax.text.encode import TextEncoder
    from pbr_jax.train import distillation as lessons
    from pbr_jax.train import retriever

    encoder = _encoder(TextEncoder)
    random = np.random.default_rng(0)
    options = Tuned()
    config = retriever.model_config(encoder, options.user_layers, encoder.dim)
    batch = {
        "query_ids": random.integers(1000, 20000, (b, t)).astype(np.int32),
        "query_mask": np.ones((b, t), bool),
        "document_ids": random.integers(1000, 20000, (b, c, t)).astype(np.int32),
        "document_mask": np.ones((b, c, t), bool),
        "users": random.normal(size=(b, encoder.dim)).astype(np.float32),
        **_values(random, b, c),
    }
    scorer = lessons.Scorer(dict, lambda questions: {}, retriever._scores(config, options.alpha))
    tower = bert.load(encoder.folder)[1]
    params = dual_encoder.from_bert(config, tower, jax.random.key(0))
    ours = our_step(lessons._loss(scorer, Distillation()), params, batch, options.training)

    peer = nn.ModuleDict({"bert": peer_bert(), "user": _mlp([encoder.dim] * 3)}).train()
    given = {name: torch.from_numpy(values) for name, values in batch.items()}
    unit = partial(nn.functional.normalize, dim=-1)

    def encode(ids: Any, mask: Any) -> Any:
        states = peer["bert"](input_ids=ids.long(), attention_mask=mask.long()).last_hidden_state
        return unit((states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))

    def loss() -> Any:
        queries = encode(given["query_ids"], given["query_mask"])
        flat = [given[f"document_{name}"].reshape(b * c, t) for name in ("ids", "mask")]
        documents = encode(*flat).reshape(b, c, -1)
        asked = 0.9 * queries + 0.1 * unit(peer["user"](given["users"]))
        return _reverse_kl(torch.einsum("bd,bcd->bc", asked, documents), given["values"])

    return ours, peer_step(peer, loss)


def reranker(b: int = 4, c: int = 20, t: int = 96) -> tuple[Step, Step]:
    import torch
    from torch import nn

    from pbr_jax.config import Distillation
    from pbr_jax.methods.select import Tuned
    from pbr_jax.models.pretrained import locate
    from pbr_jax.train import distillation as lessons
    from pbr_jax.train import reranker

    options, width = Tuned(), 384
    model, params, _ = reranker.load(locate(options.model), width, options.user_layers, 0)
    random = np.random.default_rng(0)
    types = np.zeros((b, c, t), np.int32)
    types[..., t // 2 :] = 1
    batch = {
        "ids": random.integers(1000, 20000, (b, c, t)).astype(np.int32),
        "mask": np.ones((b, c, t), bool),
        "types": types,
        "users": random.normal(size=(b, width)).astype(np.float32),
        **_values(random, b, c),
    }
    scorer = lessons.Scorer(dict, lambda questions: {}, reranker._scores(model))
    ours = our_step(lessons._loss(scorer, Distillation()), params, batch, options.training)

    parts = {"bert": peer_bert(), "user": _mlp([width] * 3), "score": _mlp([2 * width, width, width, 1])}
    peer = nn.ModuleDict(parts).train()
    given = {name: torch.from_numpy(values) for name, values in batch.items()}

    def loss() -> Any:
        ids, mask, types = (given[name].reshape(b * c, t).long() for name in ("ids", "mask", "types"))
        states = peer["bert"](input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state
        people = peer["user"](given["users"]).repeat_interleave(c, dim=0)
        scores = peer["score"](torch.cat([states[:, 0], people], -1)).reshape(b, c)
        return _reverse_kl(scores, given["values"])

    return ours, peer_step(peer, loss)


def generator(b: int = 8) -> tuple[Step, Step]:
    """The sides are made when they are first run, so that one alone takes its own memory only."""
    from pbr_jax.train.generator import Pair

    random = np.random.default_rng(0)
    pairs = []
    for length, target in zip(random.integers(170, 186, b), random.integers(16, 33, b)):
        ids = random.integers(1000, 20000, int(length)).tolist()
        pairs.append(Pair(tuple(ids[:-target]), tuple(ids[-target:]), "user"))
    return _later(partial(_our_generator, pairs)), _later(partial(_peer_reader, pairs))


def _later(make: Callable[[], Step]) -> Step:
    made: list[Step] = []

    def run() -> float:
        if not made:
            made.append(make())
        return made[0]()

    return run


def _our_generator(pairs: Any) -> Step:
    from pbr_jax.config import TunedGenerator
    from pbr_jax.models.pretrained import locate
    from pbr_jax.train import generator, sharding

    options = TunedGenerator(method="lora")
    mesh = sharding.data_mesh(options.training.devices)
    family = generator.causal_family(locate("SmolLM2-135M-Instruct"), options, mesh)
    start, frozen, scale = generator._begun(family, options, 0)
    batch = family.arrays(pairs) | {"where": np.ones(len(pairs), bool)}
    return our_step(generator._loss(family, scale), start, batch, options.training, frozen)


def _peer_reader(pairs: Any) -> Step:
    import peft
    import torch
    import transformers
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    from pbr_jax.models.pretrained import locate

    path = locate("SmolLM2-135M-Instruct")
    config: Any = transformers.AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    base: Any = transformers.LlamaForCausalLM(config)
    tensors = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=base)["tensors"]
    base.load_state_dict(tensors, strict=False)
    base.tie_weights()
    lora = peft.LoraConfig(r=8, lora_alpha=32, lora_dropout=0.05, target_modules=["q_proj", "v_proj"])
    model: Any = peft.get_peft_model(base, lora).train()
    width = max(len(pair.prompt) + len(pair.target) for pair in pairs)
    ids = torch.zeros(len(pairs), width, dtype=torch.long)
    mask, labels = torch.zeros_like(ids), torch.full_like(ids, -100)
    for row, pair in enumerate(pairs):
        end = len(pair.prompt) + len(pair.target)
        ids[row, :end] = torch.tensor(pair.prompt + pair.target)
        mask[row, :end] = 1
        labels[row, len(pair.prompt) : end] = torch.tensor(pair.target)
    return peer_step(model, lambda: model(input_ids=ids, attention_mask=mask, labels=labels).loss)


def policy(b: int = 16, n: int = 20, t: int = 64, d: int = 384, k: int = 5, m: int = 32) -> tuple[Step, Step]:
    import jax
    import torch
    from torch import nn

    from pbr_jax.methods.select import Purple
    from pbr_jax.methods.select import purple_training as purple
    from pbr_jax.models.set_policy import set_policy

    options = Purple(k=k, rollouts=m)
    random = np.random.default_rng(0)
    lengths = random.integers(t // 4, t + 1, (b, n))
    actions = np.argsort(random.random((b, m, n)), axis=-1)[..., :k].astype(np.int32)
    batch = {
        "query": random.normal(size=(b, t, d)).astype(np.float16),
        "query_mask": np.arange(t) < random.integers(t // 4, t + 1, (b, 1)),
        "records": random.normal(size=(b, n, t, d)).astype(np.float16),
        "token_mask": np.arange(t) < lengths[..., None],
        "record_mask": np.ones((b, n), bool),
        "where": np.ones(b, bool),
        "actions": actions,
        "old": np.zeros((b, m), np.float32),
        "rewards": random.normal(size=(b, m)).astype(np.float32),
        "counted": np.ones((b, m), bool),
    }
    model = set_policy(options.sizes(d))
    start = jax.jit(model.init)(jax.random.key(0))
    ours = our_step(purple._loss(model, options), start, batch, options.training)

    heads, wide, rate = options.num_heads, 4 * d, options.dropout
    layer = nn.TransformerEncoderLayer(d, heads, wide, dropout=rate, batch_first=True)
    peer = nn.ModuleDict(
        {
            "fusion": nn.MultiheadAttention(d, heads, batch_first=True),
            "norm": nn.LayerNorm(d),
            "layers": nn.TransformerEncoder(layer, options.num_layers, enable_nested_tensor=False),
            "score": nn.Sequential(nn.Linear(d, 256), nn.ReLU(), nn.Linear(256, 1)),
        }
    ).train()
    given = {name: torch.from_numpy(values) for name, values in batch.items()}
    order = given["actions"].long()

    def loss() -> Any:
        # Tokens of all records of a question at once: each attends to the query by itself.
        query, tokens = given["query"].float(), given["records"].float().flatten(1, 2)
        hidden = ~given["query_mask"]
        read, _ = peer["fusion"](tokens, query, query, key_padding_mask=hidden, need_weights=False)
        there = given["token_mask"][..., None]
        states = (read.reshape(b, n, t, d) * there).sum(2) / there.sum(2)
        states = peer["layers"](peer["norm"](states))
        weights = torch.sigmoid(peer["score"](states)[..., 0])
        drawn = weights[:, None].expand(-1, m, -1).gather(-1, order)
        rest = weights.sum(-1)[:, None, None] - (drawn.cumsum(-1) - drawn)
        rewards = given["rewards"]
        advantages = (rewards - rewards.mean(-1, keepdim=True)) / (rewards.std(-1, keepdim=True) + 1e-8)
        return -(advantages * (drawn.log() - rest.log()).sum(-1)).mean()

    return ours, peer_step(peer, loss)


def _encoder(cls: Any) -> Any:
    from pbr_jax.config import Encoder

    return cls(Encoder())


def _values(random: np.random.Generator, b: int, c: int) -> dict[str, np.ndarray]:
    values = random.uniform(size=(b, c)).astype(np.float32)
    return {"values": values, "present": np.ones((b, c), bool), "where": np.ones(b, bool)}


def _mlp(widths: list[int]) -> Any:
    from torch import nn

    parts: list[Any] = []
    for i, pair in enumerate(itertools.pairwise(widths)):
        parts += [nn.Linear(*pair)] + ([nn.Tanh()] if i + 2 < len(widths) else [])
    return nn.Sequential(*parts)


def _reverse_kl(scores: Any, values: Any) -> Any:
    q = scores.log_softmax(-1)
    return (q.exp() * (q - values.log_softmax(-1))).sum(-1).mean()


def compare(name: str, ours: Step, theirs: Step, repeats: int, steps: int) -> None:
    """Runs in turn after one that warms up, and the ratios of neighbouring runs."""
    seconds: dict[str, list[float]] = {"ours": [], "torch": []}
    for step in (ours, theirs):
        step()
    for _ in range(repeats):
        for who, step in (("ours", ours), ("torch", theirs)):
            start = time.perf_counter()
            for _ in range(steps):
                step()
            seconds[who].append((time.perf_counter() - start) / steps)
    ratios = [theirs / ours for ours, theirs in zip(seconds["ours"], seconds["torch"])]
    both = ", ".join(f"{who} {1000 * statistics.median(s):.0f} ms" for who, s in seconds.items())
    print(
        f"{name}: {both}; ours {statistics.median(ratios):.3f} times as fast "
        f"({min(ratios):.3f} to {max(ratios):.3f} of {repeats})",
        flush=True,
    )


def alone(name: str, step: Step, steps: int) -> None:
    for _ in range(steps):
        step()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{name}: most memory {peak / 2**20:.2f} GiB", flush=True)


def main() -> None:
    makers = {
        "users": users,
        "retriever": retriever,
        "reranker": reranker,
        "generator": generator,
        "policy": policy,
    }
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=list(makers), default=list(makers))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="steps of one timing")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--alone", choices=["ours", "torch"], help="one side, and the most memory it took")
    arguments = parser.parse_args()
    if arguments.alone != "ours":
        import torch

        torch.set_num_threads(arguments.threads)
    for name in arguments.parts:
        ours, theirs = makers[name]()
        if arguments.alone:
            alone(name, ours if arguments.alone == "ours" else theirs, arguments.steps)
            continue
        compare(name, ours, theirs, arguments.repeats, arguments.steps)


if __name__ == "__main__":
    main()
