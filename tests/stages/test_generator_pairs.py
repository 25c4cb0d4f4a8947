"""Which training prompts a generator learns from: a function of the run's seed."""

from pathlib import Path
from typing import Any

import pytest

from pbr_jax.base.types import Document, Example
from pbr_jax.corpus.store import Store, build
from pbr_jax.llm.tokens import chat
from pbr_jax.options import TunedGenerator
from pbr_jax.stages import generator as generator
from pbr_jax.stages.rankings import Questions, Rankings
from pbr_jax.text.prompts import Written


@pytest.mark.parametrize("limit", [None, 30])
def test_the_kinds_of_prompts_are_drawn_by_the_runs_seed(tiny_models, tmp_path: Path, limit: int | None):
    """Also where all questions are taken, so that none of them is drawn."""
    own = (Document("d", "u", "football", {}),)
    examples = [Example(str(i), "u", "q", "i love tea day " * (1 + i), "tea", own) for i in range(30)]
    build(tmp_path / "store.sqlite", examples)
    store = Store(tmp_path / "store.sqlite")
    Rankings.keep(tmp_path, ((example.id, {"rows": [0], "scores": [1.0]}) for example in examples))
    codec = chat.load(Path(tiny_models["llm.model"]))
    options = TunedGenerator(method="lora", documents=("none", "own"), per_question=1, limit=limit)

    def write(some: Any, documents: Any) -> list[Written]:
        texts = [f"{'tea' if ranking else 'cats'} {e.input}" for e, ranking in zip(some, documents)]
        return [Written([{"role": "user", "content": text}], 0, (0, 1)) for text in texts]

    def drawn(seed: int) -> list[Any]:
        asked = Questions(sample=limit, seed=0 if limit is None else seed)
        found = {"own": Rankings(tmp_path)}
        made = generator._pairs(
            codec, options, asked, seed, store, write, found, lambda i, ids, n: ids, False
        )
        return sorted(pair.prompt for pair in made)

    assert len(drawn(1)) == 30
    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
