"""A cheap model of time: which schedules are worth measuring first, and which regions are worth searching first.

Ceilings come from the target's peaks; the shares of them that kernels reach are rounded from measurements on one H200
(Triton 3.6, torch 2.11): bf16 persistent with descriptors 788 of 989 TFLOP/s, pointer loads a fifth less, tf32x3 80 of 165.
Never shown as a measurement.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from kforge_dynamo.codegen.triton.expressions import ITEM_BYTES
from kforge_dynamo.codegen.triton.schedule import Schedule
from kforge_dynamo.codegen.triton.schemes import scheme_of
from kforge_dynamo.codegen.triton.tiles import Product
from kforge_dynamo.records.target import Numerics, Target
from kforge_dynamo.records.task import Extent, Task, ValueSpec

LAUNCH_US = 3.0
"""What one more launch costs in a graph replay, drain and fill of the device included."""

_DEFAULT_PEAKS = {"fp32_flops": 20e12, "tf32_flops": 80e12, "fp16_flops": 160e12, "memory_bytes_per_s": 1e12}
"""For a device whose peaks are unknown; only ratios of times are used then."""

_SHARES = ((128 * 256, 0.80), (128 * 128, 0.70), (64 * 128, 0.54), (64 * 64, 0.42), (32 * 64, 0.28), (16 * 64, 0.16), (0, 0.10))
"""Tile area to the share of the peak that a persistent kernel with descriptors reaches."""
_LIBRARY_SHARE = {"ieee": 0.76, "tf32": 0.84, "native": 0.80, "fp16": 0.80, "bf16": 0.80}
"""What the vendor's library reaches: fp32 51 of 67 TFLOP/s."""
_SPLIT_SHARE = 0.74
"""Of the memory's peak, what a split moves. Source: design, one H200: 537 MB in 151 us."""
_READ_SHARE = 0.85
"""Of it, what the look at a weight reads. Not measured yet: see `benchmarks/probes/proof_gpu.py`."""
_DRAINED, _PROMOTED = 140.0, 20.0
"""What a promotion costs, in elements of K: with and without a break of the loop. Source: `benchmarks/probes/schemes_gpu.py` on
one H200, fp16x3: with a break 1.7 to 5 % from each 1024 to each 512 of K at three shapes; without, at 1024 x 8192 x 8192,
743, 756, 824 and 848 us for each 512, 256, 128 and 64, which no one number fits."""
_L2_BYTES = 30e6
"""What of the L2 the running tiles may count on. Source: 50 MB on an H100, in two halves."""
_EAGER_ERROR, _EAGER_BIASED = 1.55e-8, 4.4e-9
"""Relative error of cuBLAS fp32 on operands of one sign, over the root of K, without and with a bias (which goes to another
library). Source: `benchmarks/probes/schemes_gpu.py` on one H200: 4.95e-7, 9.9e-7, 1.4e-6, 2.0e-6, 2.8e-6 at K = 1024, 4096, 8192,
16384, 32768; and what the judge allowed regions with a bias there."""
_CHAIN_ERROR = {"float16": 4.3e-9, "bfloat16": 1.6e-9}
"""Relative error that truncated additions leave, an element of K between promotions, on operands of one sign, where they all
point the same way. Source: as above; fp16x3 2.8e-6, 1.2e-6, 5.3e-7, 2.7e-7 at 512, 256, 128, 64, bf16x6 9.0e-7, 3.9e-7, 2.1e-7
at 512, 256, 128 (products of bf16 have fewer bits to lose)."""
_TOGETHER_ERROR = 1.4
"""What products of parts that alternate in one accumulator add to it. Source: as above, 1.6e-6 at 256."""
_REFUSED = ((1.7, 1.0), (2.2, 1.12), (math.inf, 1.6))
"""Error over the library's, and the factor on the time of a schedule up to there: the gate refuses at twice, and what it may
refuse is tried after what it hardly can."""
_AVERAGED = 0.5
"""Of a rounding scheme's error bound, what RMS it has over the root of K. Source: as above, fp16: 5e-6 at K = 8192."""
_L2_OVER_MEMORY = 2.5
"""What tiles get from the L2 over the bandwidth of the memory. Source: 128 x 256 tiles of bf16 at 788 TFLOP/s need 9.8 TB/s."""


Weights = Literal["prepared", "proven", "kept"]
"""What is done about the copy of a weight in each call: it is made; or the weight is read, to see that it has not changed; or
nothing."""


def weights_of(numerics: Numerics) -> Weights:
    """What calls under these settings do."""
    return "kept" if numerics.kept else "proven" if numerics.proven else "prepared"


def peak(target: Target, name: str) -> float:
    """A ceiling of the target, or a stand-in."""
    return target.peak(name) or _DEFAULT_PEAKS[name]


def rows_of(task: Task, product: Product, sizes: Mapping[str, int]) -> tuple[int, int, int]:
    """Batch, rows of one product, and K."""
    batch = math.prod(sizes[axis] for axis in task.row_axes[: product.batch])
    rows = math.prod(sizes[axis] for axis in task.row_axes[product.batch :])
    return batch, rows, extent(product.depth, sizes)


def extent(value: Extent, sizes: Mapping[str, int]) -> int:
    """A size as a number."""
    return sizes[value] if isinstance(value, str) else value


def bytes_of(spec: ValueSpec, sizes: Mapping[str, int]) -> int:
    """Memory of a value."""
    return math.prod(extent(item, sizes) for item in spec.shape) * ITEM_BYTES.get(spec.dtype, 8)


def product_us(task: Task, product: Product, schedule: Schedule, sizes: Mapping[str, int], target: Target) -> float:
    """Time of the product's kernel."""
    batch, rows, depth = rows_of(task, product, sizes)
    bm, bn = schedule.block_m, schedule.block_n
    tiles = batch * math.ceil(rows / bm) * math.ceil(product.columns / bn) * schedule.split
    unit = schedule.promote if schedule.copies == "both" and schedule.promote else schedule.block_k
    steps = math.ceil(depth / schedule.split / unit) * unit
    scheme = scheme_of(schedule.scheme)
    share = next(value for area, value in _SHARES if bm * bn >= area) * _manner(schedule)
    per_unit = peak(target, scheme.peak) / scheme.passes / target.units * share
    # small tiles share a multiprocessor, so only whole waves of large ones are lost
    waves = max(1.0, math.ceil(tiles / target.units) if bm * bn >= 128 * 128 else tiles / target.units)
    compute = waves * 2.0 * bm * bn * steps / per_unit
    left_item, right_item = _fed_items(task, product, schedule, min(tiles, target.units))
    moved = (rows * left_item[0] + product.columns * right_item[0]) * depth * batch
    fed = moved / peak(target, "memory_bytes_per_s") / min(1.0, 0.9 * min(1.0, tiles / target.units))
    cached = tiles * (bm * left_item[1] + bn * right_item[1]) * steps / (peak(target, "memory_bytes_per_s") * _L2_OVER_MEMORY)
    return 1e6 * max(compute, fed, cached) * _risk(schedule, depth, len(product.node.args) > 2) + LAUNCH_US


def _fed_items(task: Task, product: Product, schedule: Schedule, running: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """Bytes that an element of the left and of the right operand costs: from memory, and from the L2 by each tile."""
    item = float(ITEM_BYTES[task.value(product.lhs).dtype])
    scheme = scheme_of(schedule.scheme)
    if schedule.copies == "none":
        return (item, item), (item, item)
    parts = 2.0 * scheme.parts
    if schedule.copies == "left":
        return (parts, parts), (item, item)
    if schedule.together:
        return (parts, parts), (parts, parts)
    loads = 2.0 * len(scheme.products)
    live = running * (schedule.block_m + schedule.block_n) * schedule.promote * parts
    again = parts if schedule.promote and live <= _L2_BYTES else loads
    return (again, loads), (again, loads)


def split_us(
    task: Task,
    product: Product,
    schedule: Schedule,
    sizes: Mapping[str, int],
    target: Target,
    weights: Weights = "prepared",
) -> float:
    """Time of the launches that split operands before the product, or see that the right one need not be split."""
    if schedule.copies == "none":
        return 0.0
    batch, rows, depth = rows_of(task, product, sizes)
    bandwidth = peak(target, "memory_bytes_per_s")
    item = ITEM_BYTES[task.value(product.lhs).dtype]
    written = 2 * scheme_of(schedule.scheme).parts
    left_us = 1e6 * batch * depth * rows * (item + written) / (bandwidth * _SPLIT_SHARE) + LAUNCH_US
    if schedule.copies == "left":
        return left_us + schedule.sampled * LAUNCH_US
    elements = batch * depth * product.columns
    if weights == "prepared" or task.value(product.rhs).varies_by_row:
        return left_us + 1e6 * elements * (item + written) / (bandwidth * _SPLIT_SHARE) + LAUNCH_US
    return left_us + (0.0 if weights == "kept" else 1e6 * elements * item / (bandwidth * _READ_SHARE) + 2 * LAUNCH_US)


def scratch_bytes(task: Task, product: Product, schedule: Schedule, sizes: Mapping[str, int]) -> int:
    """Memory of the copies that a schedule reads."""
    if schedule.copies == "none":
        return 0
    batch, rows, depth = rows_of(task, product, sizes)
    lines = rows if schedule.copies == "left" else rows + product.columns
    return batch * depth * lines * 2 * scheme_of(schedule.scheme).parts


def _risk(schedule: Schedule, depth: int, biased: bool) -> float:
    """What it costs that a schedule may be refused for its error: the chain of truncated additions over what is measured with."""
    scheme = scheme_of(schedule.scheme)
    if scheme.dot is not None or scheme.name == "native":
        return 1.0  # the result is rounded coarser than the chain errs, or Triton promotes it at each block of K
    chain = min(schedule.promote or depth, depth)
    if schedule.copies == "left" and scheme.scaled and not schedule.sampled:
        chain = schedule.block_k
    own = _CHAIN_ERROR[scheme.part or "float16"] * chain * (_TOGETHER_ERROR if schedule.together else 1.0)
    if scheme.coarse:  # roundings of operands of one sign average out, a bias does not
        ratio = 1.0 + own * depth**0.5 / (_AVERAGED * scheme.error)
    else:
        ratio = (own + scheme.error / 8) / ((_EAGER_BIASED if biased else _EAGER_ERROR) * depth**0.5)
    return next(factor for limit, factor in _REFUSED if ratio <= limit)


def _manner(schedule: Schedule) -> float:
    """How near to the best the loads and stores come."""
    share = 1.0
    if not schedule.descriptors:
        share *= 0.8
    if not schedule.persistent:
        share *= 0.95
    passes = schedule.copies == "both" and schedule.promote > 0 and not schedule.together
    if passes:
        # a pass for each product of parts has a condition in its loop, which a flattened loop over tiles makes dearer
        share *= 0.75 if schedule.flatten and not schedule.drain else 1.02
    elif schedule.persistent and not schedule.flatten:
        share *= 0.97
    if schedule.specialize:
        share *= 0.9
    share *= {"pointer": 0.96, "descriptor": 1.0, "halves": 0.99}[schedule.store]
    if schedule.cuts > 1:
        # by ptxas for sm_90 a large tile in two pieces needs 184 to 203 registers where one piece spills; not yet measured
        share *= 0.988 if schedule.block_m * schedule.block_n >= 128 * 256 else 0.985
    large = schedule.block_m * schedule.block_n >= 128 * 256
    if large and schedule.cuts == 1 and schedule.scheme != "native":
        share *= 0.9  # by ptxas for sm_90 an fp32 tile that is stored whole spills; not measured
    if schedule.warps == 4 and schedule.block_m * schedule.block_n >= 128 * 128:
        share *= 0.5 if large else 0.97
    if schedule.scheme == "tf32x3":
        share *= 0.7 * (0.8 if large else 1.0)  # the parts of 128 x 256 operands do not fit the registers
        share *= 0.64 if schedule.block_m == 64 and schedule.warps == 8 else 1.0
    if schedule.copies == "left":
        # the split is made again for each block of rows, between the products; two stages leave nothing to load meanwhile
        share *= (0.6 if schedule.stages > 2 else 0.48) * (0.86 if schedule.block_m < 128 and schedule.warps == 8 else 1.0)
        # of 2,328 instructions in the loop 625 are left without scales to find (Triton for sm_90, 128 x 128 x 64); not measured
        share *= 1.25 if schedule.sampled or not scheme_of(schedule.scheme).scaled else 1.0
    elif schedule.copies == "none" and (scheme_of(schedule.scheme).part is not None or schedule.scheme == "tf32"):
        # the right operand is rounded on its way through registers and goes back to shared memory; one H200, fp16 of
        # 1024 x 8192 x 8192: 463 us against 194
        share *= 0.5
    elif schedule.together:
        share *= 0.85  # products of one accumulator wait for one another
    if schedule.promote and schedule.scheme != "tf32x3":
        length = scheme_of(schedule.scheme).passes * schedule.promote
        share *= length / (length + (_DRAINED if schedule.drain else _PROMOTED))
    if schedule.scheme == "ieee" and schedule.block_m * schedule.block_n > 128 * 128:
        share *= 0.5
    if schedule.block_m > schedule.block_n:
        share *= 0.99
    if passes and (schedule.block_m, schedule.block_n) == (64, 256):
        share *= 0.94
    if schedule.scheme == "fp16x4":
        share *= 0.85  # the fourth product hardly shows beside the chain's error: fp16x3 goes first
    return share * {1: 0.5, 2: 0.9, 3: 0.99}.get(schedule.stages, 1.0)


def library_us(task: Task, product: Product, scheme: str, sizes: Mapping[str, int], target: Target) -> float:
    """What the bare product takes in the vendor's library, and one kernel for all that follows it."""
    batch, rows, depth = rows_of(task, product, sizes)
    name = scheme_of(scheme).peak
    flops = 2.0 * batch * rows * depth * product.columns
    tiles = batch * math.ceil(rows / 128) * math.ceil(product.columns / 128)
    busy = min(1.0, tiles / target.units)
    compute = flops / (peak(target, name) * _LIBRARY_SHARE.get(scheme, 0.8) * max(busy, 0.25))
    item = ITEM_BYTES[task.value(product.lhs).dtype]
    bandwidth = peak(target, "memory_bytes_per_s") * 0.9
    fed = (rows * depth + depth * product.columns) * batch * item / bandwidth
    total = 1e6 * max(compute, fed) + LAUNCH_US
    if len(task.nodes) > 1 or task.outputs != (product.number,):
        written = sum(bytes_of(task.value(number), sizes) for number in task.outputs)
        extra = sum(
            bytes_of(item.value, sizes) for number, item in enumerate(task.inputs) if number not in (product.lhs, product.rhs)
        )
        total += 1e6 * (bytes_of(product.node.out, sizes) + written + extra) / bandwidth + LAUNCH_US
    return total


def traffic_us(specs: Sequence[ValueSpec], sizes: Mapping[str, int], target: Target) -> float:
    """Time to move these values once."""
    return 1e6 * sum(bytes_of(spec, sizes) for spec in specs) / (peak(target, "memory_bytes_per_s") * 0.9)
