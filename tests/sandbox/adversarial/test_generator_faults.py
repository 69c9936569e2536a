"""Faults planted in what the C++ generator writes: the judge catches each, at every size and with every schedule tried."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch

from kforge_dynamo.codegen import cpp
from kforge_dynamo.records.outcome import Status
from kforge_dynamo.records.task import Const, InputRole, Task, ValueSpec
from kforge_dynamo.targets import detect
from tests.sandbox.adversarial.cases import Case
from tests.sandbox.adversarial.court import Court
from tests.sandbox.sandbox_tasks import HIGHEST, Builder, linear

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
SCHEDULES = 2


def grouped(axis: int = 1) -> Task:
    """A linear layer minus the mean of groups of 8 by 8."""
    builder, product = linear(48, 64)
    shaped = builder.node("reshape", product, out=ValueSpec("float32", ("m",), (8, 8)))
    centred = builder.op("sub", shaped, builder.reduce("mean", shaped, (axis,)))
    return builder.done(builder.node("reshape", centred, out=ValueSpec("float32", ("m",), (64,))))


def softmax(maximum: bool = True) -> Task:
    builder, product = linear(48, 64)
    scaled = builder.op("mul", product, Const(0.5))
    power = builder.op("exp", builder.op("sub", scaled, builder.reduce("amax", scaled)) if maximum else scaled)
    return builder.done(builder.op("div", power, builder.reduce("sum", power)))


def square(strides=(0, 1, "dense")) -> Task:
    builder = Builder()
    x = builder.input(("m",), (48,), InputRole.LHS)
    w = builder.input((1,), (48, 48), InputRole.RHS, strides=strides)
    return builder.done(builder.op("relu", builder.gemm(x, w)))


def scaled(number: int = 3) -> Task:
    """A linear layer times one of two columns of row scales, plus the other."""
    builder, product = linear(48, 64, extras=((("m",), (1,)), (("m",), (1,))))
    return builder.done(builder.op("add", builder.op("mul", product, number), 7 - number))


def masked(open_: bool = False) -> Task:
    builder = Builder()
    x = builder.input(("m",), (48,), InputRole.LHS)
    w = builder.input((1,), (48, 64), InputRole.RHS)
    keep = builder.input(("m",), (64,), dtype="bool")
    product = builder.gemm(x, w)
    if open_:
        return builder.done(builder.op("mul", product, Const(1.0)))
    return builder.done(builder.node("where", keep, product, Const(0.0), out=ValueSpec("float32", ("m",), (64,))))


@dataclass(frozen=True)
class Fault:
    """`meant` is what the generator is asked for; `written` what it writes; `edit` what it changes in the text."""

    meant: Task
    written: Task
    edit: Callable[[str], str] = lambda text: text


ROWS = "c.rows = sizes[0];"
FAULTS = {
    "wrong axis": Fault(grouped(1), grouped(0)),
    "missing mask": Fault(masked(), masked(open_=True)),
    "missing mask of the tail": Fault(square(), square(), lambda text: text.replace(ROWS, "c.rows = (sizes[0] + 7) / 8 * 8;")),
    "off by one at a ragged edge": Fault(
        square(), square(), lambda text: text.replace(ROWS, "c.rows = sizes[0] - sizes[0] % 2;")
    ),
    "missing max-subtraction": Fault(softmax(), softmax(maximum=False)),
    "swapped stride": Fault(square(), square((0, "dense", 1))),
    "wrong row scale": Fault(scaled(3), scaled(4)),
}


@pytest.fixture(scope="module")
def court():
    return Court()


@pytest.mark.parametrize("name", FAULTS)
def test_generator_fault_is_caught_in_every_case(court, name):
    fault = FAULTS[name]
    target = detect(torch.device("cpu"))
    space = cpp.space(fault.written, (37,), target, HIGHEST)
    for rows in (37, 5):
        for schedule in (space[0], space[len(space) // 2])[:SCHEDULES]:
            right = cpp.emit(fault.written, schedule, (rows,), target, HIGHEST)
            wrong = replace(right, source=fault.edit(right.source))
            assert (wrong != right) is (fault.meant == fault.written), "the fault is not in the text"
            verdict = court.judge(Case(name, fault.meant, wrong, (), rows=rows, target=target))
            assert verdict.status in (Status.INACCURATE, Status.NON_DETERMINISTIC, Status.STRAY_WRITE), (schedule, verdict)


def test_generator_without_a_fault_passes(court):
    target = detect(torch.device("cpu"))
    for fault in (FAULTS["wrong axis"], FAULTS["swapped stride"]):
        right = cpp.emit(fault.meant, cpp.space(fault.meant, (37,), target, HIGHEST)[0], (37,), target, HIGHEST)
        verdict = court.judge(Case("right", fault.meant, right, (), target=target))
        assert verdict.status is Status.PASSED, verdict
