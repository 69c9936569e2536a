"""Recorded regions: counted, shared by processes, read in spite of damage."""

from __future__ import annotations

import os

import pytest
from store_records import in_a_child

from kforge_dynamo.errors import StoreError
from kforge_dynamo.records.assignment import Assignment
from kforge_dynamo.records.target import Numerics
from kforge_dynamo.records.task import InputRole, InputSpec, Node, Task, ValueSpec, point
from kforge_dynamo.store.recorded import Recorded, append, read


def region(rows: int, width: int = 8) -> Assignment:
    lhs, rhs = ValueSpec("float32", ("m",), (16,)), ValueSpec("float32", (1,), (16, width))
    product = Node("gemm", (0, 1), (("alpha", 1.0), ("beta", 1.0)), ValueSpec("float32", ("m",), (width,)))
    inputs = (InputSpec(lhs, ("dense", 1), InputRole.LHS), InputSpec(rhs, (0, "dense", 1), InputRole.RHS))
    task = Task(("m",), (), inputs, (product,), (2,))
    return Assignment("gemm", "cpu", task, (rows,), point(task, (rows,)), Numerics("highest", False, False, False))


def test_regions_come_back_with_their_counts_the_most_frequent_first(tmp_path):
    path = tmp_path / "regions.jsonl"
    append(path, [(region(4), "wall"), (region(8), "wall"), (region(8), "wall")])
    append(path, [(region(8), "wall"), (region(8), "replay")])
    assert read(path) == ([Recorded(region(8), "wall", 3), Recorded(region(4), "wall", 1), Recorded(region(8), "replay", 1)], 0)
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("cut", [1, 10, 200])
def test_line_that_was_cut_off_costs_that_line_alone(tmp_path, cut):
    path = tmp_path / "regions.jsonl"
    append(path, [(region(4), "wall"), (region(8), "wall")])
    path.write_bytes(path.read_bytes()[:-cut] + b"\n")
    append(path, [(region(16), "wall")])
    regions, damaged = read(path)
    assert {item.assignment.sizes for item in regions} >= {(4,), (16,)} and damaged == (cut > 1)


def test_line_with_a_changed_task_is_left_out(tmp_path):
    path = tmp_path / "regions.jsonl"
    append(path, [(region(4), "wall"), (region(8, width=12), "wall")])
    path.write_text(path.read_text().replace("12", "13") + "null\n[]\n{}\n\xff\n")
    regions, damaged = read(path)
    assert [item.assignment for item in regions] == [region(4)] and damaged == 5


def test_processes_that_share_a_file_lose_no_line(tmp_path):
    path = tmp_path / "regions.jsonl"

    def work(number: int) -> None:
        for step in range(20):
            append(path, [(region(1 + step), "wall")])

    children = []
    for number in range(4):
        child = os.fork()
        if child == 0:
            try:
                work(number)
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    regions, damaged = read(path)
    assert damaged == 0 and len(regions) == 20 and {item.count for item in regions} == {4}
    assert in_a_child(lambda: None) == 0


@pytest.mark.parametrize(("content", "words"), [(None, "cannot be read"), ("", "holds no region"), ("x\n", "holds no region")])
def test_file_without_regions_is_one_sentence(tmp_path, content, words):
    path = tmp_path / "regions.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(StoreError, match=f"{words}.*KFORGE_RECORD"):
        read(path)


def test_file_that_cannot_be_written_is_said_once_and_costs_nothing_else(tmp_path, caplog):
    for _ in range(2):
        append(tmp_path / "nowhere" / "regions.jsonl", [(region(4), "wall")])
    assert len(caplog.messages) == 1 and "KFORGE_RECORD" in caplog.text
