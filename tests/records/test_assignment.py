"""Task and candidate files: there and back, defaults, and what is said of a file that is none."""

import json

import pytest

from kforge_dynamo.errors import RecordError
from kforge_dynamo.records.assignment import (
    CANDIDATE_FORMAT,
    Assignment,
    candidate_of_source,
    candidate_text,
    read_candidate,
    read_task,
    task_text,
)
from kforge_dynamo.records.candidate import Buffer, Candidate, Launch, LaunchPlan
from kforge_dynamo.records.target import Numerics
from kforge_dynamo.records.task import Const, InputRole, InputSpec, Node, Task, ValueSpec, point

ROW = ValueSpec("float32", ("m",), (8,))
TASK = Task(("m",), (), (InputSpec(ROW, ("dense", 1), InputRole.EXTRA),), (Node("mul", (0, Const(0.1)), (), ROW),), (1,))
ASSIGNMENT = Assignment("mul", "cpu", TASK, (37,), point(TASK, (37,)), Numerics("highest", False, False, False))
PLAN = LaunchPlan((Buffer("part", "float32", "m * 8"),), (Launch("k", ("m",), ("in:0", "out:0"), (("N", 8),)),), atomics=True)
CANDIDATE = Candidate("triton", "import triton\n", PLAN, "", "ieee", "hand")


def test_files_there_and_back_are_equal():
    assert read_task(task_text(ASSIGNMENT), "t") == ASSIGNMENT
    assert read_candidate(candidate_text(CANDIDATE), "c") == CANDIDATE


def test_candidate_leaves_out_what_has_a_default():
    launch = {"kernel": "k", "grid": ["m"], "args": ["in:0", "out:0"]}
    plan = {"buffers": [{"name": "part", "dtype": "float32", "elements": "m"}], "launches": [launch]}
    found = read_candidate(json.dumps({"format": CANDIDATE_FORMAT, "language": "triton", "source": "s", "plan": plan}), "c")
    assert found.plan == LaunchPlan((Buffer("part", "float32", "m"),), (Launch("k", ("m",), ("in:0", "out:0")),))
    assert (found.scheme, found.author, found.parent) == ("ieee", "hand", None)


def test_cpp_source_needs_no_plan_and_triton_does():
    assert candidate_of_source("int x;", "cpp", None, "k.cpp").plan.launches[0].kernel == "kforge_entry"
    with pytest.raises(RecordError, match=r"plan\.json"):
        candidate_of_source("import triton", "triton", None, "k.py")
    beside = candidate_of_source("s", "triton", json.dumps({"launches": [], "buffers": [], "atomics": True}), "k.py")
    assert beside.plan.atomics


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data.__setitem__("title", "add"), "changed after it was written"),
        (lambda data: data.pop("task"), "is no task"),
        (lambda data: data.__setitem__("format", "kforge-task-9"), '"kforge-task-1"'),
        (lambda data: data["domain"]["ranges"][0].__setitem__("low", 40), "outside the domain"),
    ],
)
def test_task_file_changed_or_incomplete_says_what_and_the_next_step(change, words):
    data = json.loads(task_text(ASSIGNMENT))
    change(data)
    with pytest.raises(RecordError, match=words) as caught:
        read_task(json.dumps(data), "here.json")
    assert "here.json" in str(caught.value)
    assert "export" in str(caught.value)


def test_task_file_without_digest_is_believed():
    data = json.loads(task_text(ASSIGNMENT))
    del data["digest"]
    data["sizes"], data["domain"]["ranges"][0]["low"] = [36], 36
    assert read_task(json.dumps(data), "t").sizes == (36,)


@pytest.mark.parametrize(
    "text", ["{", "[1]", '"x"', "{}", '{"format": "kforge-candidate-1", "plan": 7, "language": "cpp", "source": ""}']
)
def test_candidate_file_of_wrong_json_says_so(text):
    with pytest.raises(RecordError, match=r"c\.json") as caught:
        read_candidate(text, "c.json")
    assert "export" in str(caught.value)
