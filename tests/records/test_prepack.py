"""Plans in two: what passes between the halves, and what forbids it."""

from dataclasses import replace

import pytest

from kforge_dynamo.records.candidate import Buffer, Launch, LaunchPlan
from kforge_dynamo.records.codec import digest, to_text
from kforge_dynamo.records.prepack import fault, halves
from kforge_dynamo.records.target import Numerics
from kforge_dynamo.records.task import InputRole, InputSpec, Task, ValueSpec

BUFFERS = (Buffer("sums", "float32", "64"), Buffer("panels", "float16", "4 * 8", zeroed=True), Buffer("own", "float32", "m"))
SUM = Launch("sum", ("1",), ("in:1", "buf:sums"), weights_only=True)
PACK = Launch("pack", ("cdiv(8, 4)",), ("in:1", "buf:sums", "buf:panels", "size:8"), weights_only=True)
MULTIPLY = Launch("multiply", ("m",), ("in:0", "desc:buf:panels:4:8:8:4:8", "buf:own", "out:0", "size:m"))
PLAN = LaunchPlan(BUFFERS, (SUM, PACK, MULTIPLY))


def task():
    specs = [ValueSpec("float32", ("m",), (8,)), ValueSpec("float32", (1,), (8, 4))]
    return Task(("m",), (), tuple(InputSpec(spec, (), InputRole.LHS) for spec in specs), (), (0,))


def test_buffers_between_the_halves_become_outputs_of_both():
    found = halves(PLAN, 1)
    assert [buffer.name for buffer in found.kept] == ["panels"]
    assert [launch.args for launch in found.pack.launches] == [("in:1", "buf:sums"), ("in:1", "buf:sums", "out:0", "size:8")]
    assert [buffer.name for buffer in found.pack.buffers] == ["sums"]
    assert found.rest.launches[0].args == ("in:0", "desc:out:1:4:8:8:4:8", "buf:own", "out:0", "size:m")
    assert [buffer.name for buffer in found.rest.buffers] == ["own"]
    assert not any(launch.weights_only for launch in (*found.pack.launches, *found.rest.launches))


def test_plan_that_prepares_nothing_has_no_halves():
    assert halves(LaunchPlan(BUFFERS, (MULTIPLY,)), 1) is None
    assert halves(LaunchPlan(BUFFERS, (SUM, replace(MULTIPLY, args=("in:0", "out:0")))), 1) is None


@pytest.mark.parametrize(
    ("args", "grid", "words"),
    [
        (("in:0", "buf:panels"), "1", "varies by row"),
        (("in:1", "buf:panels", "size:m"), "1", "size of the call"),
        (("in:1", "buf:panels"), "m", "size of the call"),
        (("desc:in:1:m:8:8:4:8", "buf:panels"), "1", "size of the call"),
        (("in:1", "buf:own"), "1", "size of the call"),
    ],
)
def test_what_follows_from_a_call_may_not_outlive_it(args, grid, words):
    assert fault(PLAN, task()) is None
    plan = LaunchPlan(BUFFERS, (replace(PACK, args=args, grid=(grid,)), MULTIPLY))
    assert words in fault(plan, task())


def test_numerics_without_kept_weights_are_those_of_stored_winners():
    usual = Numerics("highest", False, False, False)
    assert "kept" not in to_text(usual) and digest(usual) != digest(replace(usual, kept=True))
