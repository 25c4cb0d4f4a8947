"""Answers that end before a stop string, against whole answers that are cut."""

import itertools
from typing import Any

import pytest
from test_jax_backend import PROMPTS, write_pair

from pbr_jax.llm.engine import decoding
from pbr_jax.llm.engine.jax_backend import JaxLLM
from pbr_jax.llm.protocol import Sampling

NEW = 48
MANY = [f"{prompt} {i}" for i in range(4) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_pair(tmp_path_factory.mktemp("tiny"))[0]


def partitioned(text: str, stop: tuple[str, ...]) -> str:
    return min((text.partition(one)[0] for one in stop), key=len)


def pieces(texts: list[str], length: int) -> list[str]:
    """Substrings of the texts, one of a place in the first half of each; without halves of characters."""
    places = ((text, len(text) // 4 + 3) for text in texts)
    found = [text[start : start + length] for text, start in places]
    return [piece for piece in found if len(piece) == length and "\ufffd" not in piece]


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"temperature": 1.0, "top_p": 0.9, "seed": 3}, marks=pytest.mark.long),
        pytest.param({"num_beams": 2}, marks=pytest.mark.long),
    ],
)
def test_answers_are_whole_ones_cut_whatever_the_batches(tiny, options: dict[str, Any]):
    """The vocabulary has bytes alone, so every stop string of two characters lies across tokens."""
    one, many = JaxLLM(tiny, batch_size=2), JaxLLM(tiny, batch_size=8)
    whole = many.generate(MANY, Sampling(NEW, **options))
    stops = [tuple(pieces(whole, 2)[:3]), tuple(pieces(whole, 4)), (whole[0][:2],)]
    for llm, stop in itertools.product((one, many), filter(None, stops)):
        found = llm.generate(MANY, Sampling(NEW, **options, stop=stop))
        assert found == [partitioned(text, stop) for text in whole]
        assert found != whole
        assert not found[0] or stop != stops[-1]  # it begins with the last one


@pytest.mark.long
def test_a_stop_string_may_be_of_characters_of_several_tokens(tiny):
    llm = JaxLLM(tiny, batch_size=8)
    whole = llm.generate(MANY, Sampling(NEW))
    stop = next(c for text in whole for c in text if len(c.encode()) > 1 and c != "\ufffd")
    found = llm.generate(MANY, Sampling(NEW, stop=(stop,)))
    assert found == [partitioned(text, (stop,)) for text in whole] != whole


@pytest.mark.long
def test_an_interrupted_call_goes_on_to_the_same_answers(tiny):
    llm, kept = JaxLLM(tiny, batch_size=2), {}
    stop = tuple(pieces(llm.generate(MANY, Sampling(NEW)), 1)[:2])
    whole = llm.generate(MANY, Sampling(NEW, stop=stop))

    def interrupt(places: Any, texts: Any) -> None:
        kept.update(zip(places, texts))
        if len(kept) >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        llm.generate(MANY, Sampling(NEW, stop=stop), on_batch=interrupt)
    assert all(whole[place] == text for place, text in kept.items())
    assert llm.generate(MANY, Sampling(NEW, stop=stop), done=kept) == whole


def test_a_row_ends_with_its_answer_and_compiles_nothing_new(tiny, monkeypatch):
    made, decode = [], decoding.decode

    def watched(*arguments: Any, **named: Any) -> Any:
        for batch in decode(*arguments, **named):
            made.extend(len(tokens) for _, tokens in batch)
            yield batch

    monkeypatch.setattr(decoding, "decode", watched)
    llm = JaxLLM(tiny, batch_size=8)
    whole = llm.generate(MANY, Sampling(NEW))
    before, stop = sum(made), tuple({text[:1] for text in whole if text} - {"\ufffd"})
    made.clear()
    programs = decoding.advance(llm._engine.apply, None, llm._engine.one_core)._cache_size()
    found = llm.generate(MANY, Sampling(NEW, stop=stop))
    assert found == [partitioned(text, stop) for text in whole]
    assert sum(made) < before / 2
    assert decoding.advance(llm._engine.apply, None, llm._engine.one_core)._cache_size() == programs
