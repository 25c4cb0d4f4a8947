"""Iterators side by side."""

import threading
import time

import pytest

from pbr_jax.llm.engine.workers import side_by_side


@pytest.mark.parametrize("lanes", [0, 1, 2, 5])
def test_all_items_come(lanes):
    works = [iter(range(10 * lane, 10 * lane + 3)) for lane in range(lanes)]
    assert sorted(side_by_side(works)) == sorted(10 * lane + i for lane in range(lanes) for i in range(3))


def test_works_run_at_the_same_time():
    barrier = threading.Barrier(2, timeout=30)  # breaks where one work waits for the other's end

    def work(name):
        barrier.wait()
        yield name

    assert sorted(side_by_side([work("a"), work("b")])) == ["a", "b"]


def test_an_error_is_raised_and_stops_the_others():
    steps = []

    def endless():
        while True:
            time.sleep(0.001)
            steps.append(1)
            yield 0

    def broken():
        yield 1
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        list(side_by_side([endless(), broken()]))
    count = len(steps)
    time.sleep(0.05)
    assert len(steps) == count


def test_a_reader_that_leaves_stops_the_works():
    steps = []

    def endless():
        while True:
            time.sleep(0.001)
            steps.append(1)
            yield 0

    for _ in side_by_side([endless(), endless()]):
        break  # the generator is closed with its last reference
    count = len(steps)
    time.sleep(0.05)
    assert len(steps) == count
