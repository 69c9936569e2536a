"""The product by every way of computing it: sizes around every tile edge, strides, types, batches, threads."""

from __future__ import annotations

import pytest
import torch

from kforge_dynamo.codegen.cpp import Schedule
from kforge_dynamo.records.task import InputRole, Task
from tests.codegen.cpp.building import Building
from tests.codegen.cpp.running import check, judge, launcher, random_inputs, run, target
from tests.codegen.cpp.test_epilogues import gelu, softmax

COLUMNS = Schedule("own", 24, 0, "columns", 8, 2, 64)
COLUMN_UNITS = Schedule("own", 24, 32, "columns", 8, 2, 64)
FRESH = Schedule("own", 24, 48, "columns", 8, 3, 64, fresh=True)
ROWS = Schedule("own", 40, 0, "rows", 6, 2, 64)
ROW_UNITS = Schedule("own", 40, 48, "rows", 6, 2, 64)
PHASED = Schedule("own", 40, 48, "rows", 6, 1, 64, phased=True)
DOT = Schedule("dot", 12, 24, "", 4)
LIBRARY = Schedule("library", 24)
WHOLE = Schedule("library_whole", 24)
ALL = (COLUMNS, COLUMN_UNITS, FRESH, ROWS, ROW_UNITS, PHASED, DOT, LIBRARY, WHOLE)
OWN = (COLUMNS, COLUMN_UNITS, FRESH, ROWS, ROW_UNITS, PHASED, DOT)


def name(schedule: Schedule) -> str:
    return f"{schedule.product}-{schedule.side}-{schedule.cols}{'-phased' if schedule.phased else ''}"


def pointwise_task(k: int, n: int, dtype: str = "float32", weight: str = "nk") -> Task:
    b = Building()
    x = b.linear(k, n, dtype=dtype, weight=weight)
    return b.task(gelu(b, x), x)


@pytest.mark.parametrize("schedule", ALL, ids=name)
def test_sizes_around_every_edge_match(schedule):
    """One kernel serves every M; K and N lie around tile, vector and block edges."""
    for k, n in ((70, 100), (1, 1)) if schedule in (COLUMNS, ROWS, DOT) else ((70, 100),):
        task = pointwise_task(k, n)
        launch = launcher(task, schedule)
        for m in (1, 2, 3, 7, 12, 13, 23, 24, 25, 39, 40, 41, 97):
            inputs = random_inputs(task, {"m": m}, seed=m)
            judge(task, {"m": m}, inputs, run(task, launch, {"m": m}, inputs))


@pytest.mark.parametrize("schedule", (COLUMN_UNITS, FRESH, ROWS, ROW_UNITS, DOT), ids=name)
def test_whole_rows_after_units_of_the_product_match(schedule):
    b = Building()
    x = b.linear(130, 67)
    task = b.task(softmax(b, x), x)
    launch = launcher(task, schedule)
    for m in (1, 29, 64):
        inputs = random_inputs(task, {"m": m}, seed=m)
        judge(task, {"m": m}, inputs, run(task, launch, {"m": m}, inputs))


def strided_task(dtype: str) -> Task:
    """All strides are known at the call only."""
    b = Building()
    x = b.input((45,), dtype=dtype, role=InputRole.LHS, strides=("pitch", "pitch"))
    w = b.fixed((45, 37), dtype=dtype, role=InputRole.RHS, strides=(0, "pitch", "pitch"))
    return b.task(b.gemm((x, w), 37, dtype))


def matrix(rows: int, cols: int, strides: tuple[int, int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """A matrix inside a storage that is NaN in its gaps."""
    reach = (rows - 1) * strides[0] + (cols - 1) * strides[1] + 1
    storage = torch.full((reach + 64,), float("nan"), dtype=dtype)
    view = storage.as_strided((rows, cols), strides, 32)
    values = torch.randn(rows, cols, generator=torch.Generator().manual_seed(seed)).to(dtype)
    for d, stride in enumerate(strides):
        view, values = (view.narrow(d, 0, 1), values.narrow(d, 0, 1)) if stride == 0 else (view, values)
    view.copy_(values)
    return storage.as_strided((rows, cols), strides, 32)


@pytest.mark.parametrize("schedule", (COLUMNS, ROWS, LIBRARY), ids=name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_operands_of_any_stride_match(schedule, dtype):
    task = strided_task(str(dtype).removeprefix("torch."))
    launch = launcher(task, schedule)
    for left in ((45, 1), (1, 29), (53, 1), (1, 31), (90, 2), (0, 1), (1, 0), (0, 0), (1, 1), (3, 1)):
        for right in ((1, 45), (37, 1), (40, 1), (1, 47), (2, 101), (0, 1), (1, 0)):
            inputs = [matrix(29, 45, left, dtype, 1), matrix(45, 37, right, dtype, 2)[None]]
            if left in ((1, 1), (3, 1)):  # overlapping rows
                inputs[0] = torch.randn(29 * 3 + 45).to(dtype).as_strided((29, 45), left)
            judge(task, {"m": 29}, inputs, run(task, launch, {"m": 29}, inputs))


@pytest.mark.parametrize(
    ("schedule", "dtype"),
    [(COLUMNS, "bfloat16"), (FRESH, "float16"), (ROW_UNITS, "bfloat16"), (ROWS, "float16"), (DOT, "bfloat16"), (DOT, "float16")],
)
def test_half_precision_operands_match(schedule, dtype):
    check(pointwise_task(131, 70, dtype), {"m": 33}, schedule)


@pytest.mark.parametrize(("schedule", "dtype"), [(FRESH, "bfloat16"), (ROWS, "bfloat16"), (COLUMNS, "float16")])
def test_half_precision_weights_along_n_match(schedule, dtype):
    check(pointwise_task(67, 70, dtype, "kn"), {"m": 33}, schedule)


@pytest.mark.parametrize("schedule", (COLUMNS, ROWS, PHASED, DOT, LIBRARY, WHOLE), ids=name)
def test_batched_products_match(schedule):
    b = Building(("b", "m"))
    x = b.input((20,), role=InputRole.LHS)
    w = b.input((20, 35), rows=("b", 1), role=InputRole.RHS, strides=("dense", 0, 1, "dense"))
    mask = b.input((35,), rows=(1, "m"))
    task = b.task(softmax(b, b.op("add", b.gemm((x, w), 35), mask)))
    launch = launcher(task, schedule)
    for batch, m in ((1, 1), (3, 17), (5, 40)):
        sizes = {"b": batch, "m": m}
        inputs = random_inputs(task, sizes, seed=m)
        judge(task, sizes, inputs, run(task, launch, sizes, inputs))


@pytest.mark.parametrize("schedule", (COLUMNS, ROW_UNITS, LIBRARY), ids=name)
def test_row_axes_collapse_only_where_the_strides_allow(schedule):
    b = Building(("a", "b", "m"))
    x = b.input((20,), role=InputRole.LHS, strides=("pitch", "pitch", "pitch", 1))
    w = b.fixed((20, 35), role=InputRole.RHS, strides=(0, 0, 0, 1, "dense"))
    task = b.task(b.op("relu", b.gemm((x, w), 35)))
    launch = launcher(task, schedule)
    for strides in ((660, 220, 20), (700, 220, 20), (660, 230, 20), (0, 220, 20), (660, 0, 20), (660, 220, 0), (20, 40, 120)):
        storage = torch.randn(2000)
        inputs = [storage.as_strided((2, 3, 11, 20), (*strides, 1)), random_inputs(task, {"a": 2, "b": 3, "m": 11})[1]]
        judge(task, {"a": 2, "b": 3, "m": 11}, inputs, run(task, launch, {"a": 2, "b": 3, "m": 11}, inputs))


@pytest.mark.parametrize("schedule", (COLUMNS, FRESH, ROW_UNITS, DOT, LIBRARY), ids=name)
def test_a_k_known_at_the_call_only_matches(schedule):
    b = Building(col_axes=("k",))
    task = b.task(gelu(b, b.linear("k", 100)))
    launch = launcher(task, schedule)
    for k in (1, 5, 64, 200):
        sizes = {"m": 19, "k": k}
        inputs = random_inputs(task, sizes, seed=k)
        judge(task, sizes, inputs, run(task, launch, sizes, inputs))


@pytest.mark.parametrize("schedule", ALL, ids=name)
def test_bits_are_the_same_in_every_run(schedule):
    task = pointwise_task(70, 100)
    launch = launcher(task, schedule)
    inputs = random_inputs(task, {"m": 61})
    first = [run(task, launch, {"m": 61}, inputs, threads)[0] for threads in (1, 2)]
    for _ in range(5):
        for threads in (1, 2):
            assert torch.equal(run(task, launch, {"m": 61}, inputs, threads)[0], first[threads - 1])


def test_own_products_do_not_depend_on_the_number_of_threads():
    task = pointwise_task(70, 100)
    inputs = random_inputs(task, {"m": 61})
    for schedule in (COLUMNS, ROWS, ROW_UNITS, DOT):
        launch = launcher(task, schedule)
        assert torch.equal(run(task, launch, {"m": 61}, inputs, 1)[0], run(task, launch, {"m": 61}, inputs, 2)[0])


def test_rows_with_nan_or_infinity_do_not_touch_others():
    task = pointwise_task(70, 100)
    for schedule in OWN:
        launch = launcher(task, schedule)
        inputs = random_inputs(task, {"m": 30})
        inputs[0][3, 5], inputs[0][17, 0] = float("nan"), float("inf")
        judge(task, {"m": 30}, inputs, run(task, launch, {"m": 30}, inputs))


def test_integer_valued_operands_give_exact_products():
    task = pointwise_task(70, 100)
    for schedule in ALL:
        inputs = [tensor.copy_(tensor.mul(20).round()) for tensor in random_inputs(task, {"m": 30})]
        found = run(task, launcher(task, schedule), {"m": 30}, inputs)[1]
        wanted = (inputs[0].double() @ inputs[1][0].double() + inputs[2][0].double()).float()
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("arch", ["avx2", "sse2"])
def test_narrower_instruction_sets_match(arch):
    if target().arch not in ("avx512", "avx2"):
        pytest.skip("an x86 machine with AVX2 builds for narrower ones")
    on = target(arch=arch)
    b = Building()
    x = b.linear(70, 37)
    task = b.task(softmax(b, gelu(b, x)), b.op("convert", b.op("tanh", x), dtype="float16"), b.op("convert", x, dtype="bfloat16"))
    for schedule in (COLUMNS, ROWS, DOT):
        check(task, {"m": 29}, schedule, on=on)
    check(pointwise_task(67, 70, "bfloat16"), {"m": 33}, ROWS, on=on)
    check(pointwise_task(67, 70, "float16"), {"m": 33}, COLUMNS, on=on)


def test_long_sums_are_as_accurate_as_the_library():
    b = Building()
    task = b.task(b.linear(4096, 24, bias=False))
    for schedule in (Schedule("own", 24, 0, "columns", 8, 2, 1024), Schedule("own", 32, 0, "rows", 6, 1, 512), DOT):
        check(task, {"m": 24}, schedule)
