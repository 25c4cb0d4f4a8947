"""Pictures hold the numbers that they were given."""

import numpy as np
import pytest

from pbr_jax.eval.plots import available, course, plane, svg

pytest.importorskip("matplotlib")


@pytest.mark.parametrize("label", ["_baseline", "__", "_a_ $x$", "plain"])
def test_every_label_is_in_the_legend(label: str):
    blocks = {label: [(1, 0.1, 0.2)], "other": [(1, 0.1, 0.2)]}
    for figure in (course(blocks, "rouge1"), plane({label: np.eye(3), "other": np.ones((2, 3))})):
        texts = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
        assert texts == [label.replace("$", r"\$"), "other"]
        assert "\u200b" not in svg(figure, title="A title")


def test_svg_is_one_element_and_reproducible():
    series = {"den<se$ " + "x" * 99: [(4, 0.5, 0.5), (8, 0.25, 0.375)]}
    first, second = (svg(course(series, "accuracy")) for _ in range(2))
    assert first == second
    assert first.startswith("<svg")
    assert first.endswith("</svg>")
    assert "den<se" not in first
    assert available()


def test_a_course_has_a_dot_for_each_block_and_a_line_for_all_so_far():
    (axes,) = course({"luf": [(4, 0.5, 0.5), (8, 0.25, 0.375)], "dense": [(4, 0.1, 0.1)]}, "accuracy").axes
    drawn = [(line.get_xdata().tolist(), line.get_ydata().tolist()) for line in axes.lines[:2]]
    assert drawn == [([4, 8], [0.5, 0.25]), ([4, 8], [0.5, 0.375])]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["luf", "dense"]


def test_the_plane_keeps_the_distances_of_vectors_that_lie_in_one():
    rng = np.random.default_rng(0)
    flat = rng.normal(size=(9, 2)) * [3, 1]
    vectors = flat @ np.linalg.qr(rng.normal(size=(6, 2)))[0].T + 5  # a plane in six dimensions
    groups = {"documents": vectors[:6], "query": vectors[6:7], "answers": vectors[7:]}
    (axes,) = plane(groups).axes
    shown = np.concatenate([np.asarray(points.get_offsets()) for points in axes.collections])
    assert [len(points.get_offsets()) for points in axes.collections] == [6, 1, 2]
    distances = np.linalg.norm(shown[:, None] - shown, axis=-1)
    np.testing.assert_allclose(distances, np.linalg.norm(flat[:, None] - flat, axis=-1), atol=1e-9)
    assert shown[:, 0].var() > shown[:, 1].var()
    assert [text.get_text() for text in axes.get_legend().get_texts()] == list(groups)


def test_a_group_has_its_colour_also_where_another_one_is_empty():
    vectors = np.random.default_rng(0).normal(size=(4, 3))
    groups = {"documents": vectors[:2], "added texts": vectors[2:3], "query": vectors[3:]}
    (whole,), (less,) = (plane(given).axes for given in (groups, {**groups, "added texts": vectors[:0]}))
    colours = [[tuple(points.get_facecolor()[0]) for points in axes.collections] for axes in (whole, less)]
    assert colours[1] == [colours[0][0], colours[0][2]]
    assert [text.get_text() for text in less.get_legend().get_texts()] == ["documents", "query"]
