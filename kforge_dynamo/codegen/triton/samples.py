"""Scales of the right operand's columns from a sample of each, for a product that splits it in registers.

The scale of a column must keep its elements below 2^16 and its largest one far above fp16's smallest step. To know the
largest, all of the operand would be read once more. So a launch ahead of the product reads sectors of eight elements, at
least `_FEWEST` elements and one in 32 of a long column, and the scale brings the largest of those to [2^7, 2^8):

* The column's largest element is at least that, so what parts lose below 2^-24 is at most 2^-32 of it, and summed over K
  at most 2^-32 sqrt(K) |a_i| |b_j|: below what two parts miss of a term for K to 2^20.
* An element more than 256 times the largest of the sample becomes infinite, its tile is not finite and is computed again
  from the operands themselves. For normal deviates the column's largest is about 1.4 times that of the sample.

A column whose sample is zero, or too small to be split, is read as a whole. The scale depends on the operand alone, so
equal calls stay equal bit by bit. `right_scales` holds what undoes it.
"""

from __future__ import annotations

from kforge_dynamo.codegen.triton.copies import Copy, line_place, scale_lines
from kforge_dynamo.codegen.triton.forms import Unsupported
from kforge_dynamo.codegen.triton.kernel import Kernel
from kforge_dynamo.codegen.triton.operands import stride_text, times_text
from kforge_dynamo.codegen.triton.signature import Signature
from kforge_dynamo.codegen.triton.tiles import Product
from kforge_dynamo.records.candidate import Buffer, Launch
from kforge_dynamo.records.task import Task

_SECTOR = 8  # elements: 32 bytes, the least that a GPU's memory gives
_APART, _FEWEST = 256, 64  # elements between the starts of two sectors, and elements of the shortest sample
_HEADROOM = 127 + 127 + 7  # biased exponents: of a scale that brings 2^e to 2^7, less the biased e
_ALONG_K, _ALONG_N = 16, 64  # columns of a program, by how the operand lies
_WALKED = 256  # elements of a column that is read as a whole


def sample_kernel(task: Task, product: Product, copy: Copy) -> Kernel:
    """The launch that fills `right_scales`. Raises: Unsupported where K is not known."""
    if not isinstance(product.depth, int):
        raise Unsupported("columns are sampled where K is known")
    signature, head = Signature(), list[str]()
    stride = stride_text(task, signature, product.rhs, len(task.row_axes))
    lines = _ALONG_K if stride == "1" else _ALONG_N
    apart = _apart(product.depth)
    sampled = _SECTOR * -(-product.depth // apart)
    block = 1 << max(sampled - 1, 1).bit_length()
    rows = copy.rows if copy.rows.isdigit() else signature.size(copy.rows)
    place = line_place(task, product, copy, signature, head)
    base, mask = " + ".join([signature.input(product.rhs), *place]), f"line_ok[:, None] & ({{0}} < {product.depth})[None, :]"
    pointer = f"{base} + {times_text('{0}', stride)}[None, :]"
    read = f"tl.max(tl.abs(tl.load({pointer}, mask={mask}, other=0.0)), axis=1)"
    body = [
        f"line = tl.program_id(0) * {lines} + tl.arange(0, {lines})",
        f"line_ok = line < {rows}",
        *head,
        f"number = tl.arange(0, {block})",
        # sectors are staggered, so that no regular pattern of zeros hides from them
        f"sector = number // {_SECTOR}",
        f"k = sector * {apart} + sector * 5 % {apart // _SECTOR} * {_SECTOR} + number % {_SECTOR}",
        f"top = {read.format('k')}",
        f"if tl.max(tl.where(line_ok & (top < {copy.scheme.smallest!r}), 1, 0), axis=0) != 0:",
        f"    for start in range(0, {product.depth}, {_WALKED}):",
        f"        each = start + tl.arange(0, {_WALKED})",
        f"        top = tl.maximum(top, {read.format('each')})",
        *scale_lines("top", _HEADROOM),
        f'back = tl.where((top > 0.0) & (top < {copy.scheme.smallest!r}), float("nan"), back)',
        f"tl.store({signature.buffer(copy.scales)} + line, back, mask=line_ok)",
    ]
    source = f"@triton.jit\ndef sample_right({', '.join(signature.parameters)}):\n"
    source += "\n".join(f"    {text}" for text in body) + "\n"
    launch = Launch("sample_right", (f"cdiv({copy.rows}, {lines})",), signature.arguments, (), 4, 1)
    return Kernel(source, launch, (Buffer(copy.scales, "float32", copy.rows),))


def _apart(depth: int) -> int:
    """Elements between the starts of two sectors: a power of two."""
    wanted = min(_APART, depth * _SECTOR // _FEWEST)
    return max(_SECTOR, 1 << max(wanted, 1).bit_length() - 1)


def scaled_lines(copy: Copy, signature: Signature) -> list[str]:
    """`scale` for the columns of the tile, whose lines are `right_line`."""
    back = f"tl.load({signature.buffer(copy.scales)} + right_line)"
    return [f"scale = ({254 << 23} - {back}.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)"]
