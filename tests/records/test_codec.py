"""Records to text and back."""

import math

import pytest

from kforge_dynamo.errors import RecordError
from kforge_dynamo.records.candidate import Buffer, Candidate, Launch, LaunchPlan
from kforge_dynamo.records.codec import digest, from_text, to_text
from kforge_dynamo.records.outcome import Measurement, Status, Timings, Trial, Verdict
from kforge_dynamo.records.task import Const, Domain, InputRole, InputSpec, Node, Task, ValueSpec, point


def small_task(bias: float = 0.1) -> Task:
    row, weight = ValueSpec("float32", ("m",), (3,)), ValueSpec("float32", (1,), (3, 2))
    out = ValueSpec("float32", ("m",), (2,))
    return Task(
        ("m",),
        (),
        (InputSpec(row, ("dense", 1), InputRole.LHS), InputSpec(weight, (0, 1, "dense"), InputRole.RHS)),
        (Node("gemm", (0, 1), (("alpha", 1.0), ("beta", 1.0)), out), Node("add", (2, Const(bias)), (), out)),
        (3,),
    )


def test_task_through_text_is_equal_and_has_the_same_digest():
    task = small_task()
    again = from_text(Task, to_text(task))
    assert again == task
    assert digest(again) == digest(task)


@pytest.mark.parametrize("value", [0.1, -0.0, math.inf, -math.inf, 5e-324, 1e308])
def test_float_through_text_keeps_every_bit(value):
    (_, node) = from_text(Task, to_text(small_task(value))).nodes
    found = node.args[1].value
    assert math.copysign(1.0, found) == math.copysign(1.0, value)
    assert found == value


def test_digest_with_one_other_bit_differs():
    assert digest(small_task(0.1)) != digest(small_task(math.nextafter(0.1, 1.0)))


def test_digest_of_integer_and_float_constant_differ():
    assert digest(small_task(1)) != digest(small_task(1.0)), "an integer constant does not promote, a float one may"
    assert digest(small_task(True)) != digest(small_task(1))


def test_trial_through_text_keeps_samples():
    measured = Measurement((1.5, 2.25), "wall")
    candidate = Candidate("cpp", "src", LaunchPlan((), (Launch("k", ("1",), ("in:0",)),)), "", "ieee", "builtin")
    trial = Trial(candidate, Verdict(Status.PASSED, 0.9, 1e-7, "", ""), (Timings("wall", "default", measured, measured, None),))
    assert from_text(Trial, to_text(trial)) == trial


def test_trial_that_failed_with_timings_cannot_be_built():
    measured = Measurement((1.0,), "wall")
    candidate = Candidate("cpp", "src", LaunchPlan((), ()), "", "ieee", "builtin")
    with pytest.raises(ValueError, match="inaccurate"):
        Trial(candidate, Verdict(Status.INACCURATE, 9.0, 1e-7, "", ""), (Timings("wall", "default", measured, measured, None),))


def test_measurement_without_samples_cannot_be_built():
    with pytest.raises(ValueError, match="at least one sample"):
        Measurement((), "wall")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON"),
        ("[]", "expected the fields"),
        ('{"ranges":[{"axis":"m","low":1,"high":2,"more":3}]}', "expected the fields"),
        ('{"ranges":[{"axis":"m","low":true,"high":2}]}', "expected int"),
        ('{"ranges":{"axis":"m"}}', "expected a list"),
        ('{"ranges":[{"axis":"m","low":1.5,"high":2}]}', "expected int"),
    ],
)
def test_text_of_another_shape_is_refused_with_the_reason(text, words):
    with pytest.raises(RecordError, match=words):
        from_text(Domain, text)


def test_unknown_type_in_a_record_is_refused():
    with pytest.raises(RecordError, match="object"):
        to_text(Const(object()))


def test_domain_holds_its_ends_and_nothing_beyond():
    domain = point(small_task(), (7,))
    assert domain.holds((7,))
    assert not domain.holds((6,))
    assert not domain.holds((8,))
    assert not domain.holds((7, 7))


def test_launch_that_prepares_no_weights_has_the_text_it_had_before_launches_could():
    launch = Launch("k", ("1",), ("in:0",))
    assert "weights_only" not in to_text(launch)
    assert from_text(Launch, to_text(launch)) == launch
    packing = Launch("k", ("1",), ("in:0",), weights_only=True)
    assert from_text(Launch, to_text(packing)) == packing and digest(packing) != digest(launch)


def test_plan_names_what_its_preparation_of_weights_reads_and_keeps():
    pack = Launch("pack", ("1",), ("desc:in:2:8:8:8:8:8", "in:1", "buf:panels"), weights_only=True)
    run = Launch("run", ("1",), ("in:0", "buf:panels", "buf:scratch", "out:0"))
    buffers = (Buffer("scratch", "float32", "m"), Buffer("panels", "float32", "64"))
    plan = LaunchPlan(buffers, (pack, run))
    assert (plan.prepack, plan.kept, plan.packed_inputs) == ((pack,), ("panels",), (1, 2))
    assert LaunchPlan(buffers, (run,)).kept == ()
    with pytest.raises(ValueError, match="ahead of all others"):
        LaunchPlan(buffers, (run, pack))
    with pytest.raises(ValueError, match="not outputs"):
        LaunchPlan(buffers, (Launch("pack", ("1",), ("in:1", "out:0"), weights_only=True),))
