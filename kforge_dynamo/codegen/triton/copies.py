"""Parts of an operand in scratch memory, and the small kernel that writes them: see `schemes` for what parts and scales are.

A copy of the left operand has one line a row of the task, one of the right operand one line a column (of each product of a
batch). A line holds its parts behind one another, each `depth` elements: K, filled up with zeros to a multiple of the unit in
which it is promoted, so that no load of the product needs a mask along K. `left_scales` and `right_scales` hold for each
line the number that undoes its scale.
"""

from __future__ import annotations

from dataclasses import dataclass

from kforge_dynamo.codegen.triton.forms import Unsupported
from kforge_dynamo.codegen.triton.kernel import Kernel
from kforge_dynamo.codegen.triton.operands import batch_terms, row_terms, stride_text, times_text
from kforge_dynamo.codegen.triton.schedule import Schedule
from kforge_dynamo.codegen.triton.schemes import Scheme, scheme_of
from kforge_dynamo.codegen.triton.signature import RowIndex, Signature, times
from kforge_dynamo.codegen.triton.tiles import Product
from kforge_dynamo.records.candidate import Buffer, Launch
from kforge_dynamo.records.task import Task

_HELD = 32768  # elements of a line up to which a program holds all of it: 64 registers of 512 threads
_LEAST = 4096  # elements of a program
_WALKED = (16, 512)  # lines and elements of a block where a program walks over its lines twice
_TARGET = 127 + 127 + 14  # biased exponents: of a scale that brings 2^e to 2^14, less the biased e
_LARGEST = 127 + 125  # of the largest scale
PROOF = Buffer("proven", "int32", "1", zeroed=True)
"""Of a plan whose copy of a weight may be proven to be right still: see `records.candidate.LaunchPlan`."""
_SHARED = 2  # programs a multiprocessor of a split that mostly finds nothing to do


@dataclass(frozen=True, slots=True)
class Copy:
    """The layout of one operand's parts. `rows`, `depth` and `pitch` are size expressions (numbers where they are known)."""

    side: str
    rows: str
    depth: str
    unit: int
    scheme: Scheme

    @property
    def parts(self) -> str:
        """Name of the buffer of the parts."""
        return f"{self.side}_parts"

    @property
    def scales(self) -> str:
        """Name of the buffer of the scales."""
        return f"{self.side}_scales"

    @property
    def pitch(self) -> str:
        """Elements of a line."""
        return _multiplied(self.depth, str(self.scheme.parts))

    def buffers(self) -> tuple[Buffer, ...]:
        """What the split fills."""
        assert self.scheme.part is not None
        parts = Buffer(self.parts, self.scheme.part, f"{self.rows}*{self.pitch}")
        scales = Buffer(self.scales, "float32", self.rows)
        return (parts, scales) if self.scheme.scaled else (parts,)


def copy_of(task: Task, product: Product, schedule: Schedule, side: str) -> Copy:
    """The copy of the operand at "left" or "right". Raises: Unsupported where the schedule's scheme makes none."""
    scheme = scheme_of(schedule.scheme)
    unit = schedule.promote or schedule.block_k
    if scheme.part is None:
        raise Unsupported(f"{scheme.name} multiplies operands as they are")
    if unit % schedule.block_k or unit & (unit - 1):
        raise Unsupported(f"K is promoted in powers of two that hold whole blocks, not each {unit}")
    rows = times(task.row_axes) if side == "left" else times((*task.row_axes[: product.batch], str(product.columns)))
    if isinstance(product.depth, int):
        return Copy(side, rows, str(-(-product.depth // unit) * unit), unit, scheme)
    return Copy(side, rows, f"(cdiv({product.depth}, {unit})*{unit})", unit, scheme)


def copies_of(task: Task, product: Product, schedule: Schedule) -> tuple[Copy, ...]:
    """The copies that a schedule reads, of the right operand first."""
    sides = {"none": (), "left": ("left",), "both": ("right", "left")}[schedule.copies]
    return tuple(copy_of(task, product, schedule, side) for side in sides)


def scaled_by_sample(task: Task, product: Product, schedule: Schedule) -> tuple[Copy, ...]:
    """The right operand, of which a schedule makes no copy but knows the scales."""
    return (copy_of(task, product, schedule, "right"),) if schedule.sampled else ()


def split_kernel(task: Task, product: Product, copy: Copy, watching_units: int = 0) -> Kernel:
    """The launch that fills a copy: a program holds whole lines, or walks over them twice where they are too long or lie
    side by side in memory. With the multiprocessors of a device that is watching weights, few programs do it all, unless the
    plan's proof tells them that there is nothing to do."""
    number = product.lhs if copy.side == "left" else product.rhs
    signature, head = Signature(), list[str]()
    stride = stride_text(task, signature, number, len(task.row_axes))
    block = 1 << max(int(copy.depth) - 1, 1).bit_length() if copy.depth.isdigit() else _HELD + 1
    held = stride == "1" and block <= _HELD
    lines, block = (max(1, _LEAST // block), block) if held else _WALKED
    rows = copy.rows if copy.rows.isdigit() else signature.size(copy.rows)
    depth = "K" if isinstance(product.depth, int) else signature.size(product.depth)
    whole = copy.depth if copy.depth.isdigit() else signature.size(copy.depth)
    place = line_place(task, product, copy, signature, head)
    pointer = " + ".join([signature.input(number), *place, f"{times_text('k', stride)}[None, :]"])
    cut = "" if isinstance(product.depth, int) and product.depth % block == 0 else f" & (k < {depth})[None, :]"
    load = f"x = tl.load({pointer}, mask=line_ok[:, None]{cut}, other=0.0)"
    blocks = f"cdiv({copy.rows}, {lines})"
    body = [
        f"line = {'work' if watching_units else 'tl.program_id(0)'} * {lines} + tl.arange(0, {lines})",
        f"line_ok = line < {rows}",
        *head,
        f"place = line.to(tl.int64)[:, None] * ({whole} * {copy.scheme.parts})",
        *(_held if held else _walked)(copy, signature, load, whole, block),
    ]
    grid, buffers = blocks, copy.buffers()
    if watching_units:
        end = f"tl.cdiv({rows}, {lines})"
        body = [
            f"todo = tl.where(tl.load({signature.buffer(PROOF.name)}) != 0, 0, {end})",
            "for work in range(tl.program_id(0), todo, tl.num_programs(0)):",
            *[f"    {text}" for text in body],
        ]
        grid, buffers = f"min({_SHARED * watching_units}, {blocks})", (*buffers, PROOF)
    constants = (("K", product.depth),) if isinstance(product.depth, int) else ()
    names = [*signature.parameters, *[f"{name}: tl.constexpr" for name, _ in constants]]
    source = f"@triton.jit\ndef split_{copy.side}({', '.join(names)}):\n" + "\n".join(f"    {text}" for text in body) + "\n"
    fixed = not any(argument.startswith("size:") for argument in signature.arguments)
    warps = max(4, min(16, lines * block // 1024))
    launch = Launch(f"split_{copy.side}", (grid,), signature.arguments, constants, warps, 1, fixed)
    return Kernel(source, launch, buffers)


def _held(copy: Copy, signature: Signature, load: str, whole: str, block: int) -> list[str]:
    top = ["top = tl.max(tl.abs(x), axis=1)"] if copy.scheme.redone else []
    return [
        f"k = tl.arange(0, {block})",
        load,
        *top,
        *_found_scale(copy, signature),
        *prepared_lines("x", copy.scheme),
        *_stored(copy, signature, whole, "" if whole == str(block) else f" & (k < {whole})[None, :]"),
    ]


def _walked(copy: Copy, signature: Signature, load: str, whole: str, block: int) -> list[str]:
    step = f"k = start + tl.arange(0, {block})"
    first = [
        f"top = tl.zeros(({_WALKED[0]},), tl.float32)",
        f"for start in range(0, {whole}, {block}):",
        f"    {step}",
        f"    {load}",
    ]
    first.append("    top = tl.maximum(top, tl.max(tl.abs(x), axis=1))")
    again = [step, load, *prepared_lines("x", copy.scheme), *_stored(copy, signature, whole, f" & (k < {whole})[None, :]")]
    looped = [f"for start in range(0, {whole}, {block}):", *[f"    {line}" for line in again]]
    return [*(first if copy.scheme.redone else []), *_found_scale(copy, signature), *looped]


def scale_lines(top: str, target: int = _TARGET) -> list[str]:
    """`scale` for lines whose largest magnitudes are `top`, and in `back` what undoes it. `target` is the sum of the biased
    exponents of the largest element and of the scale."""
    return [
        f"up = tl.minimum({target} - (({top}.to(tl.int32, bitcast=True) >> 23) & 255), {_LARGEST})",
        "scale = (up << 23).to(tl.float32, bitcast=True)",
        "back = ((254 - up) << 23).to(tl.float32, bitcast=True)",
    ]


def prepared_lines(name: str, scheme: Scheme) -> list[str]:
    """Scales the lines of the block `name`, and makes those NaN that the scheme cannot split: their tiles are computed again."""
    lines = [f"{name} = {name} * scale[:, None]"] if scheme.scaled else []
    if scheme.smallest:
        small = f"(top > 0.0) & (top < {scheme.smallest!r})"
        lines.append(f'{name} = tl.where(({small})[:, None], float("nan"), {name})')
    return lines


def part_lines(name: str, target: str, scheme: Scheme) -> list[str]:
    """The parts of the block `name` as `target` + number; `name` is what they leave."""
    lines = []
    for part in range(scheme.parts):
        lines.append(f"{target}{part} = {name}.to(tl.{scheme.part})")
        if part + 1 < scheme.parts:
            lines.append(f"{name} = {name} - {target}{part}.to(tl.float32)")
    return lines


def _found_scale(copy: Copy, signature: Signature) -> list[str]:
    if not copy.scheme.scaled:
        return []
    return [*scale_lines("top"), f"tl.store({signature.buffer(copy.scales)} + line, back, mask=line_ok)"]


def _stored(copy: Copy, signature: Signature, whole: str, cut: str) -> list[str]:
    pointer = f"{signature.buffer(copy.parts)} + place + k[None, :]"
    mask = f"line_ok[:, None]{cut}"
    stores = [f"tl.store({pointer} + {part} * {whole}, x{part}, mask={mask})" for part in range(copy.scheme.parts)]
    return [*part_lines("x", "x", copy.scheme), *stores]


def line_place(task: Task, product: Product, copy: Copy, signature: Signature, head: list[str]) -> list[str]:
    """Offsets in the operand of the lines `line`, a column of the block."""
    if copy.side == "left":
        rows = RowIndex(task, signature, head, 0, "line")
        terms = row_terms(task, signature, product.lhs)
        return [f"{rows.offset(product.lhs, terms)}[:, None]"] if terms else ["line[:, None] * 0"]
    found = []
    column = "line"
    if product.batch:
        head += [f"batch = line // {product.columns}", f"column = line % {product.columns}"]
        column = "column"
        terms = batch_terms(task, signature, product)
        rows = RowIndex(task, signature, head, product.batch, "line")
        found = [f"{rows.offset(product.rhs, terms)}[:, None]"] if terms else []
    step = stride_text(task, signature, product.rhs, len(task.row_axes) + 1)
    return [*found, f"{times_text(column, step)}[:, None]"]


def _multiplied(left: str, right: str) -> str:
    return str(int(left) * int(right)) if left.isdigit() and right.isdigit() else f"{left}*{right}"
