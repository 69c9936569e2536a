"""The loop over K: how a scheme's products are added up, and when the sum is promoted to a second accumulator.

Leaves the tile's sum in `product` of shape (BLOCK_M, BLOCK_N), given `first` and `last`, the texts of the part of K to add.
"""

from __future__ import annotations

from collections.abc import Sequence

from kforge_dynamo.codegen.triton.copies import part_lines, prepared_lines, scale_lines
from kforge_dynamo.codegen.triton.forms import Unsupported
from kforge_dynamo.codegen.triton.operands import Operands
from kforge_dynamo.codegen.triton.schedule import Schedule
from kforge_dynamo.codegen.triton.schemes import Scheme, scheme_of

_PROMOTED = "product += part"


class Loop:
    """Writes the loop of one schedule. `scales` are what the tile's rows and columns are multiplied by at the end; with
    `turned` the tile is computed with rows and columns exchanged."""

    def __init__(self, schedule: Schedule, operands: Operands, scales: Sequence[str]) -> None:
        self.schedule, self.operands, self.scales = schedule, operands, scales
        self.scheme: Scheme = scheme_of(schedule.scheme)
        self.turned = schedule.copies == "left"
        if schedule.promote and (schedule.promote % schedule.block_k or schedule.promote < schedule.block_k):
            raise Unsupported(f"K is promoted each {schedule.promote}, which holds no whole blocks of {schedule.block_k}")
        if schedule.copies == "both" and schedule.together != (schedule.together and self.scheme.parts > 1):
            raise Unsupported("the products of one part are one product")
        if (schedule.copies == "none" and schedule.together) or (self.turned and not schedule.together):
            raise Unsupported("products come together where both operands' parts are at hand")
        if schedule.sampled and not (self.turned and self.scheme.scaled):
            raise Unsupported("scales are sampled of a right operand that is split in registers")

    def lines(self, first: str, last: str) -> list[str]:
        """The loop."""
        start = [f"product = tl.zeros({self._shape}, dtype=tl.float32)"]
        end = ["product = tl.trans(product)"] if self.turned else []
        end += [f"product = product * {' * '.join(self.scales)}"] if self.scales else []
        if self.schedule.copies == "both" and not self.schedule.together and len(self.scheme.products) > 1:
            return [*start, *self._passes(first, last), *end]
        return [*start, *self._blocks(first, last), *end]

    @property
    def _shape(self) -> str:
        return "(BLOCK_N, BLOCK_M)" if self.turned else "(BLOCK_M, BLOCK_N)"

    @property
    def _zeros(self) -> str:
        return f"part = tl.zeros({self._shape}, dtype=tl.float32)"

    # one load of each block of K

    def _blocks(self, first: str, last: str) -> list[str]:
        promote, into = self.schedule.promote, "part" if self.schedule.promote and not self._each_block else "product"
        step = [*self._step(into), *self.operands.after]
        if into == "product":
            return _loop(f"k in range({first}, {last}, BLOCK_K)", step)
        if self.schedule.drain:
            inner = _loop(f"k in range(start, min(start + {promote}, {last}), BLOCK_K)", step)
            body = [self._zeros, *inner, _PROMOTED]
            return _loop(f"start in range({first}, {last}, {promote})", body)
        body = [*step, f"if (k + BLOCK_K - {first}) % {promote} == 0:", f"    {_PROMOTED}", f"    {self._zeros}"]
        rest = [_PROMOTED] if self.schedule.copies != "both" else []  # a copy's K is a multiple of what is promoted
        return [self._zeros, *_loop(f"k in range({first}, {last}, BLOCK_K)", body), *rest]

    @property
    def _each_block(self) -> bool:
        """Whether scales that are known for a block of K only make each block promote."""
        return self.turned and self.scheme.scaled and not self.schedule.sampled

    def _step(self, into: str) -> list[str]:
        if self.turned:
            return self._turned_step(into)
        if self.schedule.copies == "both":
            loads = [f"{name}{part} = {text}" for name, side in (("x", 0), ("y", 1)) for part, text in self._part_loads(side)]
            return loads + [f"{into} = tl.dot(x{a}, y{b}, {into})" for a, b in self.scheme.products]
        rounded = f".to(tl.{self.scheme.part})" if self.scheme.part is not None else ""
        if rounded and len(self.scheme.products) > 1:
            raise Unsupported(f"{self.scheme.name} needs copies of its operands")
        precision = f', input_precision="{self.scheme.dot}"' if self.scheme.dot is not None else ""
        loads = [f"{name} = {self.operands.loads[side]}{rounded}" for name, side in (("x", 0), ("y", 1))]
        nearest = [line for name in ("x", "y") for line in _to_tf32(name)] if self.scheme.name == "tf32" else []
        return [*loads, *nearest, f"{into} = tl.dot(x, y, {into}{precision})"]

    def _part_loads(self, side: int) -> list[tuple[int, str]]:
        return [(part, self.operands.loads[side].format(part=part)) for part in range(self.scheme.parts)]

    def _turned_step(self, into: str) -> list[str]:
        """The right operand comes as it is, one line a column, and is split in registers, which feed the tensor cores."""
        lines = [f"y = tl.trans({self.operands.loads[1]})"]
        if self.schedule.sampled:
            lines.append("y = y * scale[:, None]")
        else:
            lines += ["top = tl.max(tl.abs(y), axis=1)"] if self.scheme.redone else []
            lines += [*(scale_lines("top") if self.scheme.scaled else []), *prepared_lines("y", self.scheme)]
        lines += part_lines("y", "y", self.scheme)
        lines += [f"x{part} = tl.trans({text})" for part, text in self._part_loads(0)]
        sums = [f"{into} = tl.dot(y{b}, x{a}, {into})" for a, b in self.scheme.products]
        if not self._each_block:
            return lines + sums
        sums = [text.replace(f"{into} =", "part =").replace(f", {into})", ", part)") for text in sums]
        sums[0] = sums[0].replace(", part)", ")")
        return [*lines, *sums, "product += part * back[:, None]"]

    # a pass over K a product

    def _passes(self, first: str, last: str) -> list[str]:
        promote, count = self.schedule.promote, len(self.scheme.products)
        x, y = (self.operands.loads[side].format(part=f"(({self._code(side)} >> (turn * 2)) & 3)") for side in (0, 1))
        dot = [f"x = {x}", f"y = {y}"]
        if not promote:
            inner = _loop(f"k in range({first}, {last}, BLOCK_K)", [*dot, "product = tl.dot(x, y, product)"])
            return _loop(f"turn in range(0, {count})", inner)
        steps = promote // self.schedule.block_k
        place = [f"turn = at // {steps}", f"k = start + at % {steps} * BLOCK_K", *dot, "part = tl.dot(x, y, part)"]
        if self.schedule.drain:
            body = [self._zeros, *_loop(f"at in range(0, {count * steps})", place), _PROMOTED]
            return _loop(f"start in range({first}, {last}, {promote})", body)
        period = count * steps
        flush = [f"if at == {period - 1}:", f"    {_PROMOTED}", f"    {self._zeros}"]
        body = [f"at = step % {period}", f"start = step // {period} * {promote}", *place, *flush]
        return [self._zeros, *_loop(f"step in range({first} // BLOCK_K * {count}, {last} // BLOCK_K * {count})", body)]

    def _code(self, side: int) -> int:
        """Two bits a product: which part of the operand it takes."""
        return sum(pair[side] << (2 * turn) for turn, pair in enumerate(self.scheme.products))


def _to_tf32(name: str) -> list[str]:
    """Rounds to the nearest of 11 bits: tensor cores cut fp32 operands off, which errs up to twice as far, towards zero."""
    near = f"(({name}.to(tl.int32, bitcast=True) + 4096) & -8192).to(tl.float32, bitcast=True)"
    return [f'{name} = tl.where(tl.abs({name}) < float("inf"), {near}, {name})']  # a NaN's bits would overflow


def _loop(header: str, body: Sequence[str]) -> list[str]:
    return [f"for {header}:", *[f"    {line}" for line in body]]
