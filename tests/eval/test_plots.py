"""Pictures hold the numbers that they were given."""

from dataclasses import replace

import numpy as np
import pytest

from pbr_jax.eval.plots import Point, against, available, lines, plane, svg

pytest.importorskip("matplotlib")

POINTS = [Point("zero_$hot", 0.2, 0.1, 0.25), Point("den<se$ " + "x" * 99, 0.5, 0.5, 0.5)]


def test_lines_are_sorted_and_single_points_are_levels():
    series = {
        "dense": [Point("dense", 0.3, 0.2, 0.5, x=4.0), Point("dense", 0.1, 0.1, 0.1, x=1.0)],
        "zero_shot": [Point("zero_shot", 0.05, 0.0, 0.1, x=9.0)],
    }
    (axes,) = lines(series, "rouge1", "retrieve.k").axes
    course = next(line for line in axes.lines if list(line.get_xdata()) == [1.0, 4.0])
    assert list(course.get_ydata()) == [0.1, 0.3]
    assert any(list(line.get_ydata()) == [0.05, 0.05] for line in axes.lines)
    assert list(axes.get_xticks()) == [1.0, 4.0]
    assert {text.get_text() for text in axes.get_legend().get_texts()} == {"dense", "zero_shot"}


def test_what_has_no_bound_stands_last_at_equal_distances():
    points = [
        Point("own", y, y, y, x=x) for x, y in ((float("inf"), 0.1), (0.0, 0.5), (8.0, 0.2), (1.0, 0.4))
    ]
    (axes,) = lines({"own": points}, "target_nll", "limit_history").axes
    assert list(axes.get_xticks()) == [0.0, 1.0, 2.0, 3.0]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0", "1", "8", "all"]
    course = next(line for line in axes.lines if len(line.get_xdata()) == 4)
    assert list(course.get_ydata()) == [0.5, 0.4, 0.2, 0.1]


def test_values_over_what_was_measured():
    points = [Point("dense", 0.3, 0.2, 0.5, x=400.0), Point("rankgpt", 0.4, 0.4, 0.4, x=0.5)]
    (axes,) = against(points, "rouge1", "questions a second").axes
    assert [tuple(line.get_xydata()[0]) for line in axes.lines if line.get_marker() == "o"] == [
        (400.0, 0.3),
        (0.5, 0.4),
    ]
    assert axes.get_xscale() == "log"
    segment = axes.collections[0].get_segments()[0]
    assert segment[:, 1] == pytest.approx([0.2, 0.5])


def test_svg_is_one_element_and_reproducible():
    points = [replace(point, x=1.0) for point in POINTS]
    first, second = (svg(against(points, "accuracy", "seconds")) for _ in range(2))
    assert first == second
    assert first.startswith("<svg")
    assert first.endswith("</svg>")
    assert "den<se" not in first
    assert available()


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
