"""What other people wrote and nobody agreed to share changes nothing: over all configs, with made-up users.

With collaboration none, replacing every other user's texts leaves a user's rankings, scores, prompts and
trained parameters as they were; a part that learns from others is refused instead. With signals no text of
others is in a prompt.
"""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from pbr_jax import config as c
from pbr_jax.base.types import Example, UserError
from pbr_jax.config import Config, override
from pbr_jax.experiment.plan import Plan
from pbr_jax.pipeline import Ranking
from pbr_jax.stages import language_model

CONFIGS = Path(__file__).parents[1] / "configs"
NAMES = sorted(p.stem for p in CONFIGS.glob("*.py") if p.stem != "quickstart")
WORDS = ("tea", "cats", "football", "violins", "love", "about", "that", "day", *"0123456789")
READING = ("lamp_ipa", "tuned", "tuned_memory")  # whose generator learns
LEARNING = (
    "cfrag", "cfrag_as_released", "cfrag_small", "ropg", "ropg_as_released", "ropg_small",
    "luf", "luf_as_paper", "luf_small", "purple", "purple_as_released", "purple_match", "purple_small",
    "cfrag_memory", "purple_memory", "ropg_memory", *READING,
)  # fmt: skip
CLUSTERING = (
    "clusterrag", "clusterrag_as_released", "clusterrag_pooled_as_released", "clusterrag_small",
)  # fmt: skip
COLLABORATING = (*LEARNING, "others_random", *CLUSTERING)
ASKING = (  # the model before they rank
    "cot", "hyde", "mill", "pbr", "query2doc", "query2term", "rafe", "rewrite", "thinkqe",
    "icr", "pointwise", "query_likelihood", "rankgpt",
)  # fmt: skip
SMALL = {
    "prompt.max_tokens": 200, "generate.method": "none", "feedback.max_new_tokens": 2, "llm.batch_size": 8,
    "eval.resamples": 20,
    "encoder.max_length": 32, "retrieve.k": 2, "seed": 1,
}  # fmt: skip
TRAINING = {"epochs": 1, "batch_size": 4, "devices": 1, "selection": 0.2}
ME = "me"

pytestmark = pytest.mark.usefixtures("fresh_cache")


def histories(seed: int, prefix: str, users: int) -> dict[str, list[str]]:
    """Made-up users; texts of very different lengths, as what is batched together must not matter."""
    draw = random.Random(seed)
    return {
        f"{prefix}{i}": [
            f"CANARY{prefix}{i}x " + " ".join(draw.choices(WORDS, k=draw.randint(1, 24)))
            for _ in range(draw.randint(0, 6))
        ]
        for i in range(users)
    }


def data(write_tweets, seed: int) -> Path:
    """The same "me" among other people, whose number, texts and lengths the seed draws."""
    own = [f"CANARYmex i love {word} {day}" for day, word in enumerate(WORDS[:5])]
    draw = random.Random(seed)
    write_tweets(histories(seed, "t", 8), "train")
    return write_tweets(
        {**histories(seed + 1, "o", draw.randint(2, 5)), ME: own, **histories(seed + 2, "p", 2)}
    )


def config(name: str, models: dict[str, str], root: Path, **fields: object) -> Config:
    base = c.load(CONFIGS / f"{name}.py").config
    place = {"benchmark.name": "lamp_7", "benchmark.root": str(root)}
    place |= {"encoder.model": models["encoder.model"], "llm.model": models["llm.model"]}
    known = set(c.names(base))
    wanted = {**place, **SMALL, "select.model": models["encoder.model"], "expand.max_new_tokens": 4}
    wanted |= {"expand.history_tokens": 64, "neighbours.m": min(3, base.neighbours.m)}
    wanted |= {
        f"{part}.training.{n}": v
        for part in ("user_encoder", "retrieve", "select", "generator")
        for n, v in TRAINING.items()
    }
    return override(base, {**{n: v for n, v in wanted.items() if n in known}, **fields})


def prompts(plan: Plan, examples: list[Example], rankings: list[Ranking]) -> list[object]:
    write = language_model.writer(plan.run).value
    return [written.messages for written in write(examples, rankings)]


def mine(plan: Plan) -> tuple[list[str], np.ndarray, object]:
    """The documents, their scores and the prompt of my own question."""
    store = plan.data.value
    examples = list(store.examples())
    place = next(i for i, example in enumerate(examples) if example.user_id == ME)
    ranking = list(plan.ranked.value.read(store, store.examples()))[place]
    written = prompts(plan, [examples[place]], [ranking])[0]
    return [x.document.id for x in ranking], np.array([x.score for x in ranking]), written


def each(names: list[str]) -> list[object]:
    """Methods that ask the model take long."""
    return [pytest.param(name, marks=pytest.mark.long) if name in ASKING else name for name in names]


def unmoved(tiny_models, write_tweets, name: str, **fields: object) -> str:
    """My prompt: it, my ranking and its scores stay as they are when others' texts are other ones."""
    seen = [
        mine(Plan(config(name, tiny_models, data(write_tweets, seed), collaboration="none", **fields)))
        for seed in (0, 10)
    ]
    for ids, scores, prompt in seen[1:]:
        assert ids == seen[0][0]
        # The tiny encoder's vectors are not of unit length, so it is the scores' scale that rounding has.
        np.testing.assert_allclose(scores, seen[0][1], rtol=0, atol=1e-6 * max(1.0, *np.abs(scores), 0.0))
        assert prompt == seen[0][2]
    assert name == "zero_shot" or seen[0][0]
    return json.dumps(seen[0][2])


@pytest.mark.parametrize("name", each([name for name in NAMES if name not in COLLABORATING]))
def test_without_collaboration_others_texts_change_nothing(tiny_models, write_tweets, name: str):
    unmoved(tiny_models, write_tweets, name)


@pytest.mark.parametrize("fields", [
    {"corpus.chunk": "words", "corpus.words": 3, "corpus.stride": 2, "prompt.show": "around"},
    {"prompt.profile": "summary", "prompt.profile_tokens": 8, "prompt.profile_read": 64},
], ids=["passages", "profile"])  # fmt: skip
def test_neither_do_they_where_documents_are_cut_or_the_user_is_put_in_words(
    tiny_models, write_tweets, fields: dict[str, object]
):
    prompt = unmoved(tiny_models, write_tweets, "fused", **{"prompt.max_tokens": 900, **fields})
    assert (">>>" if "corpus.chunk" in fields else "About this user:") in prompt


@pytest.mark.parametrize("name", COLLABORATING)
def test_what_learns_from_others_or_shows_their_texts_is_refused_when_told_not_to(
    tiny_models, write_tweets, name: str
):
    root = data(write_tweets, 0)
    scored = (
        {"eval.likelihood": "on"} if name in READING else {}
    )  # a generator that reads nothing learns nothing
    with pytest.raises(UserError, match="say so with collaboration"):
        Plan(config(name, tiny_models, root, collaboration="none", **scored))


@pytest.mark.parametrize("name", [pytest.param("cfrag", marks=pytest.mark.long), "ropg"])
def test_with_signals_no_text_of_others_is_in_a_prompt(tiny_models, write_tweets, name: str):
    """What others wrote shapes parameters here; documents and prompts are the user's own all the same."""
    fields = {"collaboration": "signals", "neighbours.m": 1}
    plan = Plan(config(name, tiny_models, data(write_tweets, 0), **fields))
    store = plan.data.value
    examples, rankings = list(store.examples()), list(plan.ranked.value.read(store, store.examples()))
    for example, ranking, written in zip(examples, rankings, prompts(plan, examples, rankings), strict=True):
        assert {x.document.user_id for x in ranking} <= {example.user_id}
        text = json.dumps(written)
        assert text.count("CANARY") == text.count(f"CANARY{example.user_id}x")
    with pytest.raises(UserError, match="say so with collaboration text"):
        config(
            name, tiny_models, Path("nowhere"), collaboration="signals",
            **{"neighbours.method": "mean", "neighbours.m": 2},
        )  # fmt: skip


def test_every_part_that_learns_from_others_says_so(tiny_models, write_tweets):
    root = data(write_tweets, 0)
    for fields, who in (
        ({"retrieve.method": "tuned", "retrieve.alpha": 0.0}, "retriever"),
        ({"retrieve.method": "tuned"}, "retriever|user encoder"),
        ({"select.method": "tuned", "select.users": False}, "reranker"),
        ({"retrieve.method": "fused", "retrieve.how": "weighted"}, r"retrieve\.how weighted"),
    ):
        with pytest.raises(UserError, match=rf"({who}).* learns from other users' histories.*signals"):
            Plan(config("dense", tiny_models, root, **fields))
    for profile in ("features", "difference"):
        with pytest.raises(UserError, match="say so with collaboration text"):
            config("dense", tiny_models, root, collaboration="signals", **{"prompt.profile": profile})
