"""The schedules proposed: enough, none twice, each right for sizes it was not made for."""

from __future__ import annotations

import sys

import pytest

from kforge_dynamo.codegen import cpp
from kforge_dynamo.codegen.cpp import Schedule
from kforge_dynamo.records.codec import from_text, to_text
from kforge_dynamo.records.expression import compile_sizes
from kforge_dynamo.records.target import Target
from kforge_dynamo.records.task import InputRole, Task
from tests.codegen.cpp.building import Building
from tests.codegen.cpp.running import NUMERICS, check, target
from tests.codegen.cpp.test_epilogues import gelu, softmax


def task_of(k: int, n: int, dtype: str = "float32", weight: str = "nk", whole: bool = False) -> Task:
    b = Building()
    x = b.linear(k, n, dtype=dtype, weight=weight)
    return b.task(softmax(b, x) if whole else gelu(b, x))


SIZES = [(1, 768, 768), (8, 1024, 1024), (16, 4096, 4096), (128, 1024, 1024), (197, 192, 768), (2048, 512, 512), (4096, 128, 512)]


@pytest.mark.parametrize(("m", "k", "n"), SIZES)
@pytest.mark.parametrize("weight", ["nk", "kn"])
def test_a_space_holds_six_to_sixteen_different_schedules(m, k, n, weight):
    for whole in (False, True):
        found = cpp.space(task_of(k, n, weight=weight, whole=whole), (m,), target(), NUMERICS)
        assert 6 <= len(found) <= 16 and len(set(found)) == len(found)


def test_the_first_guesses_are_of_different_kinds():
    found = cpp.space(task_of(1024, 1024), (128,), target(), NUMERICS)[:3]
    assert len({(schedule.product, schedule.side, schedule.cols > 0) for schedule in found}) == 3


def test_few_rows_start_with_dot_products_and_many_with_packed_columns():
    assert cpp.space(task_of(768, 768), (1,), target(), NUMERICS)[0].product == "dot"
    assert cpp.space(task_of(512, 512), (2048,), target(), NUMERICS)[0].side == "columns"


def test_without_the_library_none_of_its_schedules_is_proposed(monkeypatch):
    monkeypatch.setattr(sys.modules["kforge_dynamo.codegen.cpp.space"], "library_symbols", dict)
    found = cpp.space(task_of(64, 64), (64,), target(), NUMERICS)
    assert found and not any(schedule.product.startswith("library") for schedule in found)


def test_schedules_travel_as_text_inside_their_candidates():
    task = task_of(64, 64)
    for schedule in cpp.space(task, (64,), target(), NUMERICS):
        candidate = cpp.emit(task, schedule, (64,), target(), NUMERICS)
        assert from_text(Schedule, candidate.schedule) == schedule
        assert candidate.schedule == to_text(schedule) and candidate.scheme == "ieee"
        assert candidate.plan.library == schedule.product.startswith("library")
        sizes = compile_sizes([buffer.elements for buffer in candidate.plan.buffers], task.axes)(64)
        assert all(count >= 0 for count in sizes)


def test_neighbours_are_new_and_near():
    task = task_of(256, 256)
    for schedule in cpp.space(task, (128,), target(), NUMERICS):
        near = cpp.neighbours(schedule, task, (128,), target(), NUMERICS)
        assert schedule not in near and len(set(near)) == len(near)
        for other in near:
            assert other.product == schedule.product
            cpp.emit(task, other, (128,), target(), NUMERICS)


def test_gain_grows_with_the_epilogue():
    assert (
        cpp.gain_us(task_of(64, 2048, whole=True), (512,), target())
        > cpp.gain_us(task_of(64, 64, whole=True), (8,), target())
        > 0
    )


def test_every_schedule_of_a_small_space_is_right_for_other_sizes_too():
    task = task_of(40, 72, whole=True)
    for schedule in cpp.space(task, (16,), target(), NUMERICS)[::2]:
        check(task, {"m": 75}, schedule)


def test_a_pure_epilogue_has_a_space():
    b = Building()
    task = b.task(softmax(b, b.input((40,))))
    for schedule in cpp.space(task, (64,), target(), NUMERICS):
        check(task, {"m": 33}, schedule)


def test_half_precision_candidates_say_that_their_operands_are_native():
    task = task_of(64, 64, "bfloat16")
    schedule = cpp.space(task, (64,), target(), NUMERICS)[0]
    assert cpp.emit(task, schedule, (64,), target(), NUMERICS).scheme == "native"


def test_what_cannot_be_written_is_refused_in_words():
    gpu = Target("cuda", "nvidia", "x", "sm_90", 1, None, None, (), ())
    assert "CPUs" in (cpp.rejects(task_of(8, 8), gpu) or "")
    assert "float64" in (cpp.rejects(task_of(8, 8, "float64"), target()) or "")
    b = Building()
    lhs, one, two = b.input((8,), role=InputRole.LHS), b.fixed((8, 8)), b.fixed((8, 8))
    both = b.op("add", b.gemm((lhs, one), 8), b.gemm((lhs, two), 8))
    assert "more than one" in (cpp.rejects(b.task(both), target()) or "")
    b = Building()
    lhs, one = b.input((8,), role=InputRole.LHS), b.fixed((8, 8))
    assert "computed inside" in (cpp.rejects(b.task(b.gemm((b.op("relu", lhs), one), 8)), target()) or "")
    b = Building(col_axes=("k",))
    assert "not known before the call" in (cpp.rejects(b.task(b.op("relu", b.input(("k",)))), target()) or "")
    assert cpp.rejects(task_of(8, 8), target()) is None
