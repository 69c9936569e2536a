"""One graph node into a region's draft: finds the rule, aligns the operands, makes type promotion explicit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from kforge_dynamo.lowering.align import Frame, frame
from kforge_dynamo.lowering.calls import GETITEM, arguments, dtype_name, is_barrier, is_random, makes_size, name_of, tensor_of
from kforge_dynamo.lowering.composites import COMPOSITES
from kforge_dynamo.lowering.constants import constant_of
from kforge_dynamo.lowering.pointwise import RULES, Computes, Rule
from kforge_dynamo.lowering.reductions import REDUCTIONS
from kforge_dynamo.lowering.refusal import Refused
from kforge_dynamo.lowering.scope import Bound, Scope, Value
from kforge_dynamo.lowering.sizes import sizes_of
from kforge_dynamo.lowering.softmax import plain_branch
from kforge_dynamo.lowering.space import Row, covers
from kforge_dynamo.lowering.spec import FLOATS
from kforge_dynamo.lowering.views import VIEWS
from kforge_dynamo.records.region import Reason
from kforge_dynamo.records.task import Const

_GEMMS = ("aten.mm.default", "aten.addmm.default", "aten.bmm.default", "aten.baddbmm.default")
_CONVERSIONS = ("prims.convert_element_type.default", "aten._to_copy.default")
_IDENTITIES = ("aten.clone.default", "aten.alias.default", "aten.detach.default", "aten.lift_fresh_copy.default")


def translate(scope: Scope, node: torch.fx.Node) -> Bound:
    """What `node`, which reads a value of the region, is in the region's draft. Raises: Refused with the reason."""
    refuse_kind(node)
    name = name_of(node)
    if name == GETITEM:
        return _part(scope, node)
    if name in _IDENTITIES:
        return _inside(scope, node, node.args[0])
    if name in _CONVERSIONS:
        return _convert(scope, node)
    if name in VIEWS:
        return VIEWS[name](scope, _inside(scope, node, node.args[0]), node)
    if name in REDUCTIONS:
        return _whole(node, REDUCTIONS[name](scope, _inside(scope, node, node.args[0]), arguments(node)))
    if name in COMPOSITES:
        return _whole(node, COMPOSITES[name](scope, _inside(scope, node, node.args[0]), node))
    plain = scope.value(plain_branch(node))
    if plain is not None:
        return plain
    if name in RULES:
        return _pointwise(scope, node, RULES[name])
    raise Refused(Reason.UNSUPPORTED_OP, f"{name} is not in the op table; it stays with Inductor")


def is_pointwise(node: torch.fx.Node) -> bool:
    """Whether `translate` knows the node as a pointwise op, which may also be computed from inputs alone."""
    name = name_of(node)
    return name in RULES or name == _CONVERSIONS[0]


def is_view(node: torch.fx.Node) -> bool:
    """Whether the node only shows memory in another way, or copies it unchanged."""
    name = name_of(node)
    if name == GETITEM:
        source = node.args[0]
        return isinstance(source, torch.fx.Node) and is_view(source)
    return name in VIEWS or name in _IDENTITIES


def refuse_kind(node: torch.fx.Node) -> None:
    """Raises: Refused for the kinds of nodes that never stand in a region."""
    name = name_of(node)
    if name.startswith("aten._scaled_dot_product"):
        raise Refused(Reason.UNSUPPORTED_OP, f"{name} is one opaque kernel of torch's; it stays with Inductor")
    if is_random(node):
        raise Refused(Reason.RANDOM, f"{name} draws random numbers; its result can be an input of a region, itself it stays out")
    if is_barrier(node):
        raise Refused(Reason.MUTATION, f"{name} writes to memory that others may read")
    if name in _GEMMS:
        raise Refused(Reason.NOT_EXPRESSIBLE, f"{name} is a product of its own, with a region of its own")
    if makes_size(node):
        raise Refused(Reason.NOT_EXPRESSIBLE, f"{name} computes a size, not a tensor")


def _inside(scope: Scope, node: torch.fx.Node, source: object) -> Value:
    value = scope.value(source)
    if value is None:
        raise Refused(Reason.NOT_EXPRESSIBLE, f"{name_of(node)} reads the region's value as something else than its subject")
    return value


def _part(scope: Scope, node: torch.fx.Node) -> Bound:
    source, index = node.args
    bound = scope.bound.get(source) if isinstance(source, torch.fx.Node) else None
    part = bound[index] if isinstance(bound, tuple) and isinstance(index, int) and index < len(bound) else None
    if part is None and not node.users:
        return ()  # nobody reads it: it leaves the graph with its source
    if part is None:
        raise Refused(Reason.NOT_EXPRESSIBLE, f"part {index} of {source} has no value in the region")
    return part


def _whole(node: torch.fx.Node, bound: Bound) -> Bound:
    """A node with several results joins only if the region has every result that is used."""
    if isinstance(bound, tuple):
        for user in (user for user in node.users if user.users or name_of(user) != GETITEM):
            index = user.args[1] if name_of(user) == GETITEM else None
            if not isinstance(index, int) or index >= len(bound) or bound[index] is None:
                raise Refused(
                    Reason.NOT_EXPRESSIBLE, f"{name_of(node)}: its result number {index} is used and has no counterpart"
                )
    return bound


def _convert(scope: Scope, node: torch.fx.Node) -> Bound:
    value = _inside(scope, node, node.args[0])
    target, _ = _conversion(node)
    return Value(convert(scope, value.number, target), value.layout)


def _conversion(node: torch.fx.Node) -> tuple[str, object]:
    args = arguments(node)
    if name_of(node) == _CONVERSIONS[0]:
        return dtype_name(args["dtype"]), args["a"]
    source, shown = tensor_of(args["self"]), tensor_of(node)
    if source is None or shown is None or source.device != shown.device:
        raise Refused(Reason.DEVICE, f"{name_of(node)} moves its tensor to another device")
    return dtype_name(shown.dtype), args["self"]


def convert(scope: Scope, number: int, target: str) -> int:
    """The value in another dtype. Raises: Refused for conversions outside the language."""
    source = scope.draft.dtype(number)
    if source == target:
        return number
    if target in FLOATS:
        return scope.emit.convert(number, target)
    if target == "bool" and source in FLOATS:
        return scope.emit("ne", number, 0.0)
    raise Refused(Reason.UNSUPPORTED_DTYPE, f"a conversion from {source} to {target} is left to Inductor")


def _pointwise(scope: Scope, node: torch.fx.Node, rule: Rule) -> Value:
    out = tensor_of(node)
    if out is None:
        raise Refused(Reason.UNSUPPORTED_LAYOUT, f"{name_of(node)} does not return one plain tensor")
    args = arguments(node)
    insiders = [value.layout for value in (scope.value(args[name]) for name in rule.operands) if value is not None]
    aligned = frame(sizes_of(out), insiders, scope.space.total)
    number = _apply(scope, node, rule, aligned)
    return Value(number, aligned.layout(tuple(int(extent) for extent in scope.draft.extents(number))))


def _apply(scope: Scope, node: torch.fx.Node, rule: Rule, aligned: Frame) -> int:
    """The pointwise `node` in the columns of `aligned`."""
    args = arguments(node)
    out = tensor_of(node)
    assert out is not None  # callers have looked
    result = dtype_name(out.dtype)
    dtype = _computing_dtype(rule, args, result)
    operands: list[int | Const | None] = []
    for name in rule.operands:
        operand = _operand(scope, args[name], aligned)
        if isinstance(operand, int):
            operand = convert(scope, operand, "bool" if name == rule.condition else dtype)
        operands.append(operand)
    number = _build(scope, rule, operands, {**args, "result_dtype": result}, dtype)
    if scope.draft.dtype(number) != result:
        raise Refused(
            Reason.UNSUPPORTED_DTYPE, f"{name_of(node)} returns {result} here, the op table {scope.draft.dtype(number)}"
        )
    return _filled(scope, node, number, aligned)


def _build(scope: Scope, rule: Rule, operands: Sequence[int | Const | None], args: dict[str, Any], dtype: str) -> int:
    """Arithmetic on booleans is logic: torch's `mul` of two masks is their `and`, `add` their `or`."""
    if dtype == "bool" and rule.computes is Computes.RESULT and not rule.condition:
        logic = {RULES["aten.mul.Tensor"].build: "logical_and", RULES["aten.add.Tensor"].build: "logical_or"}.get(rule.build)
        if logic is None or len(operands) != 2 or None in operands:
            raise Refused(Reason.UNSUPPORTED_DTYPE, "arithmetic on booleans")
        return scope.emit(logic, *(operand for operand in operands if operand is not None))
    return rule.build(scope.emit, *operands, args=args)


def _computing_dtype(rule: Rule, args: dict[str, Any], result: str) -> str:
    if rule.computes is Computes.BOOL:
        return "bool"
    if rule.computes is Computes.RESULT:
        dtype = result
    else:
        found = [tensor_of(args[name]) if isinstance(args[name], torch.fx.Node) else args[name] for name in rule.operands]
        dtype = _common_dtype([item for item in found if item is not None])
    if dtype not in FLOATS and dtype != "bool":
        raise Refused(Reason.UNSUPPORTED_DTYPE, f"it computes in {dtype}; regions compute in {', '.join(FLOATS)}")
    if dtype == "bool" and rule.computes is Computes.COMMON:
        raise Refused(Reason.UNSUPPORTED_DTYPE, "a comparison of booleans is not in the op table")
    return dtype


def _common_dtype(found: Sequence[torch.Tensor | bool | int | float]) -> str:
    tensors = [item for item in found if isinstance(item, torch.Tensor)]
    if not tensors:
        raise Refused(Reason.NOT_EXPRESSIBLE, "it has no tensor operand")
    if len(found) == 1:
        return dtype_name(tensors[0].dtype)
    return dtype_name(torch.result_type(found[0], found[1]))


def _operand(scope: Scope, arg: object, aligned: Frame) -> int | Const | None:
    """An operand in the columns of `aligned`: a value of the region, a constant, something pulled in, or an input."""
    if arg is None or isinstance(arg, bool | int | float):
        return None if arg is None else Const(arg)
    value = scope.value(arg)
    if value is not None:
        return scope.emit.reshape(value.number, aligned.columns_of(value.layout.sizes))
    constant = constant_of(arg)
    if constant is not None:
        return constant
    if not isinstance(arg, torch.fx.Node) or makes_size(arg):
        raise Refused(Reason.SYMBOLIC_SIZE, f"its operand {arg} is a size of the graph, not a tensor")
    return tensor_operand(scope, arg, aligned)


def tensor_operand(scope: Scope, node: torch.fx.Node, aligned: Frame) -> int:
    """A graph tensor from outside the region in the columns of `aligned`, as a value. Raises: Refused."""
    return _pulled(scope, node, aligned) if node in scope.pulled else scope.leaf(node, aligned)


def _pulled(scope: Scope, node: torch.fx.Node, aligned: Frame) -> int:
    """A pointwise node before the region, computed inside it from its own operands."""
    sizes = sizes_of(scope.input_tensor(node))
    own = Frame(sizes, aligned.tags_of(sizes), aligned.rank)
    if name_of(node) in _CONVERSIONS:
        target, source = _conversion(node)
        operand = _operand(scope, source, own)
        if not isinstance(operand, int):
            raise Refused(Reason.NOT_EXPRESSIBLE, "a conversion of a constant")
        return convert(scope, operand, target)
    return _apply(scope, node, RULES[name_of(node)], own)


def _filled(scope: Scope, node: torch.fx.Node, number: int, aligned: Frame) -> int:
    """Constants have no shape in a task: where only a constant had a dimension, the result is repeated along it."""
    cols = aligned.columns_of(aligned.sizes)
    for tag, size in zip(aligned.tags, aligned.sizes, strict=True):
        if isinstance(tag, Row) and not any(covers(row, tag) or covers(tag, row) for row in scope.draft.rows(number)):
            raise Refused(Reason.NOT_EXPRESSIBLE, f"{name_of(node)}: its rows come from a constant of {size} rows")
    if any(found not in (1, wanted) for found, wanted in zip(scope.draft.extents(number), cols, strict=True)):
        raise Refused(Reason.NOT_EXPRESSIBLE, f"{name_of(node)} was traced with another shape than its operands broadcast to")
    return scope.emit.expand(number, cols)
