"""How much of the answers is copied out of the question and the documents."""

import json

import pytest
from test_report import answers

from pbr_jax.eval.overlap import copied, copies
from pbr_jax.eval.report import report
from pbr_jax.eval.run_files import sealed


@pytest.mark.parametrize(
    ("answer", "sources", "share"),
    [
        ("the cat sat on the mat", ["The cat sat on the mat!"], 1.0),
        ("so the cat sat on it", ["the cat sat on the mat"], 1 / 3),  # one run of three
        ("the cat sat on the mat", ["the cat sat", "on the mat"], 0.0),  # no run goes over two texts
        ("a b c d e", ["a b c d", "b c d e"], 1.0),
        ("hello", ["well, hello there"], 1.0),  # one word is a run of one
        ("hello you", ["you, hello"], 0.0),
        ("", ["anything"], 0.0),
        ("!?", ["!?"], 0.0),
        ("a b c d", [], 0.0),
        ("Äpfel und Birnen essen", ["wir äpfel und birnen essen"], 1.0),
    ],
)
def test_runs_of_four_words_that_stand_in_a_source(answer, sources, share):
    assert copied(answer, sources) == pytest.approx(share)


def test_means_are_over_the_questions_that_have_the_share():
    found = copies([{"question": 1.0, "target_question": 0.5}, {"question": 0.0}])
    assert found == {"question": 0.5, "target_question": 0.5}
    assert copies([]) == {}


def test_a_report_shows_them_beside_the_targets(tmp_path, write, tables):
    runs = [write(tmp_path / name, name, answers(seed, 0.6)) for seed, name in enumerate("ab")]
    values = json.loads((runs[0] / "results.json").read_text())
    told = {"question": 0.25, "documents": 0.5, "target_question": 0.125, "target_documents": 0.0}
    (runs[0] / "results.json").write_text(json.dumps(sealed(runs[0], values | {"copied": told})))
    found = next(table for table in tables(report(runs)) if table[0][1] == "answer: in the question")
    assert found[1:] == [["a", "25.0%", "50.0%", "12.5%", "0.0%"], ["b", "–", "–", "–", "–"]]
