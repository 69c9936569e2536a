"""Which loops an epilogue becomes."""

from __future__ import annotations

from kforge_dynamo.codegen.cpp.memory import Memory
from kforge_dynamo.codegen.cpp.program import program_of
from kforge_dynamo.codegen.cpp.rows import plan_rows
from kforge_dynamo.codegen.cpp.source import one_range
from kforge_dynamo.codegen.cpp.stages import RowPlan
from kforge_dynamo.records.task import Task
from tests.codegen.cpp.building import Building
from tests.codegen.cpp.test_columns import batch_norm
from tests.codegen.cpp.test_epilogues import gelu, group_norm, softmax


def planned(task: Task) -> RowPlan:
    program = program_of(task)
    memory = Memory(task, program)
    return plan_rows(program, {i: memory.input_root(i) for i in range(len(task.inputs))}, program.outputs)


def loops(plan: RowPlan) -> list[tuple[tuple[int, bool], ...]]:
    return [stage.dims for stage in plan.stages if not stage.is_scalar]


def test_pointwise_nodes_share_one_loop_that_runs_over_any_columns():
    b = Building()
    plan = planned(b.task(gelu(b, b.input((40,)))))
    assert loops(plan) == [((40, False),)] and plan.single_pass and not plan.in_memory


def test_a_softmax_is_three_loops_with_one_value_between_them():
    b = Building()
    plan = planned(b.task(softmax(b, b.input((40,)))))
    assert loops(plan) == [((40, True),), ((40, True),), ((40, False),)]
    assert len(plan.in_memory) == 1


def test_groups_cut_the_loops_and_statistics_pass_through_memory():
    b = Building()
    plan = planned(b.task(group_norm(b, b.input((40,)), 5)))
    assert loops(plan)[:2] == [((5, False), (8, True)), ((5, False), (8, True))]
    assert loops(plan)[-1] == ((5, False), (8, False)) and len(loops(plan)) == 4


def test_reductions_of_one_value_share_a_loop():
    b = Building()
    x = b.input((40,))
    plan = planned(b.task(b.reduce("sum", x, (0,)), b.reduce("amax", x, (0,)), b.reduce("argmin", x, (0,))))
    assert loops(plan) == [((40, True),)]


def test_equal_nodes_are_computed_once_and_dead_ones_never():
    b = Building()
    x = b.input((40,))
    b.op("exp", x)
    task = b.task(b.op("add", b.op("tanh", x), b.op("tanh", x)))
    assert [node.op for node in program_of(task).nodes] == ["tanh", "add"]


def test_constants_that_compare_equal_are_not_the_same_node():
    b = Building()
    x = b.input((40,))
    task = b.task(b.op("mul", x, 0.0), b.op("mul", x, -0.0))
    assert len(program_of(task).nodes) == 2


def test_only_one_uncut_pass_may_follow_a_range_of_columns():
    def ranged(build) -> bool:
        b = Building()
        return one_range(b.task(build(b, b.linear(8, 40))), 16)

    assert ranged(gelu) and ranged(lambda b, x: x)
    assert not ranged(softmax) and not ranged(lambda b, x: batch_norm(b, x)[0])
