"""A task taken apart: what depends on the product, the part before it and the part behind it, and tasks with one op less."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import cast

from kforge_dynamo.records.task import Const, InputRole, InputSpec, Node, Operand, Task
from kforge_dynamo.semantics.table import OPS, Kind

COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite"})
_STEPS = COMPARISONS | {"sign", "floor", "ceil", "round", "trunc", "argmax", "argmin", "any", "all", "logical_not"}
_HALF = frozenset({"float16", "bfloat16"})
_SWAPPED = {"sum": "amax", "mean": "amax", "amax": "amin", "amin": "amax", "var": "mean", "any": "all", "all": "any"}


def numbers(args: Sequence[Operand]) -> tuple[int, ...]:
    """The value numbers among operands."""
    return tuple(arg for arg in args if not isinstance(arg, Const))


def dependants(task: Task, roots: Iterable[int]) -> frozenset[int]:
    """`roots` and every value computed from one of them."""
    found = set(roots)
    for number, node in enumerate(task.nodes, len(task.inputs)):
        if found.intersection(numbers(node.args)):
            found.add(number)
    return frozenset(found)


def products(task: Task) -> tuple[int, ...]:
    """The value numbers of the GEMMs that no other GEMM feeds; of a task without a GEMM, its floating inputs."""
    fed: set[int] = set()
    found = []
    for number, node in enumerate(task.nodes, len(task.inputs)):
        behind = bool(fed.intersection(numbers(node.args)))
        if behind or node.op == "gemm":
            fed.add(number)
        if node.op == "gemm" and not behind:
            found.append(number)
    floating = tuple(number for number, item in enumerate(task.inputs) if "float" in item.value.dtype)
    return tuple(found) or floating


def row_local(task: Task) -> bool:
    """Whether no value of one row depends on another row."""
    return all(dict(node.attrs).get("axes") != "rows" for node in task.nodes)


def has_steps(task: Task) -> bool:
    """Whether a value may jump when the product moves by a rounding: comparisons, choices, roundings of all kinds."""
    moved = dependants(task, products(task))
    return any(number in moved and _is_step(task, node) for number, node in enumerate(task.nodes, len(task.inputs)))


def is_narrowed(task: Task, number: int) -> bool:
    """Whether a narrowing conversion of something that depends on the product lies on the way to the value `number`."""
    moved = dependants(task, products(task))
    narrow = [n for n, node in enumerate(task.nodes, len(task.inputs)) if n in moved and _narrows(task, node)]
    return number in dependants(task, narrow)


def _is_step(task: Task, node: Node) -> bool:
    return node.op in _STEPS or _narrows(task, node) or (node.op == "convert" and "float" not in node.out.dtype)


def _narrows(task: Task, node: Node) -> bool:
    if node.op != "convert" or node.out.dtype not in _HALF:
        return False
    source = task.value(numbers(node.args)[0]).dtype
    return "float" in source and source != node.out.dtype


def prune(task: Task, outputs: tuple[int, ...]) -> Task:
    """The task that returns `outputs`, without the nodes that these do not need. Inputs stay as they are."""
    needed = set(outputs)
    count = len(task.inputs)
    for number in range(count + len(task.nodes) - 1, count - 1, -1):
        if number in needed:
            needed.update(numbers(task.nodes[number - count].args))
    renamed = {number: number for number in range(count)}
    nodes: list[Node] = []
    for number, node in enumerate(task.nodes, count):
        if number in needed:
            renamed[number] = count + len(nodes)
            nodes.append(replace(node, args=_renamed(node.args, renamed)))
    return replace(task, nodes=tuple(nodes), outputs=tuple(renamed[number] for number in outputs))


def _renamed(args: Sequence[Operand], names: dict[int, int]) -> tuple[Operand, ...]:
    return tuple(arg if isinstance(arg, Const) else names[arg] for arg in args)


@dataclass(frozen=True, slots=True)
class Tail:
    """What follows the products, as a task whose inputs are the values `feeds` of the original."""

    task: Task
    feeds: tuple[int, ...]


def tail(task: Task, cut: tuple[int, ...]) -> Tail:
    """`task` behind the values `cut`, which become inputs."""
    count = len(task.inputs)
    needed = set(task.outputs)
    for number in range(count + len(task.nodes) - 1, count - 1, -1):
        if number in needed and number not in cut:
            needed.update(numbers(task.nodes[number - count].args))
    feeds = tuple(number for number in sorted(needed) if number < count or number in cut)
    feeds = feeds or cut[:1]
    renamed = {number: place for place, number in enumerate(feeds)}
    inputs = tuple(_as_input(task, number) for number in feeds)
    nodes: list[Node] = []
    for number, node in enumerate(task.nodes, count):
        if number in needed and number not in cut:
            renamed[number] = len(inputs) + len(nodes)
            nodes.append(replace(node, args=_renamed(node.args, renamed)))
    outputs = tuple(renamed[number] for number in task.outputs)
    return Tail(replace(task, inputs=inputs, nodes=tuple(nodes), outputs=outputs), feeds)


def _as_input(task: Task, number: int) -> InputSpec:
    if number < len(task.inputs):
        return task.inputs[number]
    spec = task.value(number)
    return InputSpec(spec, ("dense",) * len(spec.shape), InputRole.EXTRA)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A wrong version of a task: `name` says which op is missing."""

    name: str
    task: Task


def mutants(task: Task, roots: Iterable[int]) -> tuple[Mutant, ...]:
    """`task` with one op dropped, for every op that can be; of two operands the one that depends on `roots` stays.

    A pointwise op becomes its operand, a reduction over columns its first element, one over rows another reduction, a
    comparison always false and always true, a `where` one of its branches; of a GEMM the bias and the coefficients go.
    Conversions and views have no mutant: a dropped rounding shows only where the gate is finer than the rounding.
    """
    found: list[Mutant] = []
    moved = dependants(task, roots)
    for place, node in enumerate(task.nodes):
        for words, changed in _without(task, node, moved):
            name = f"{node.op} (value {len(task.inputs) + place}) {words}"
            found.append(Mutant(name, _replaced(task, place, changed)))
    return tuple(found)


def _without(task: Task, node: Node, moved: frozenset[int]) -> list[tuple[str, Node | int]]:
    """What may stand in the node's place: another node, or the number of a value."""
    kind = OPS[node.op].kind
    if kind is Kind.GEMM:
        return _plainer_gemm(node)
    if kind is Kind.REDUCTION:
        return _other_reduction(node)
    if kind is Kind.VIEW or node.op == "convert":
        return []
    if node.op in COMPARISONS:
        return [("never true", replace(node, op="never")), ("always true", replace(node, op="always"))]
    alike = [number for number in numbers(node.args) if task.value(number) == node.out]
    if node.op == "where":
        alike = [number for number in alike if number in numbers(node.args[1:])]
        return [(f"replaced by value {number}", number) for number in dict.fromkeys(alike)]
    alike.sort(key=lambda number: number not in moved)
    return [(f"dropped, value {alike[0]} instead", alike[0])] if alike else []


def _plainer_gemm(node: Node) -> list[tuple[str, Node | int]]:
    found: list[tuple[str, Node | int]] = []
    if len(node.args) == 3:
        found.append(("without bias", replace(node, args=node.args[:2])))
    for name in ("alpha", "beta"):
        if node.attr(name) != 1.0 and (name == "alpha" or len(node.args) == 3):
            plain = tuple((key, 1.0 if key == name else value) for key, value in node.attrs)
            found.append((f"without {name}", replace(node, attrs=plain)))
    return found


def _other_reduction(node: Node) -> list[tuple[str, Node | int]]:
    axes = node.attr("axes")
    if node.op in ("argmax", "argmin"):
        return [("turned round", replace(node, op="argmin" if node.op == "argmax" else "argmax"))]
    if axes == "rows" or len(cast(tuple[int, ...], axes)) != 1 or node.op == "var":
        other = _SWAPPED[node.op]
        return [(f"turned into {other}", replace(node, op=other, attrs=(("axes", axes),)))]
    (axis,) = cast(tuple[int, ...], axes)
    attrs = (("axis", axis), ("start", 0), ("step", 1), ("stop", 1))
    return [("dropped, first element instead", Node("slice", node.args, attrs, node.out))]


def _replaced(task: Task, place: int, changed: Node | int) -> Task:
    """`task` with its node number `place` replaced. "never" and "always" are spelt out with the table's ops."""
    count = len(task.inputs)
    number = count + place
    if isinstance(changed, int):
        names = {old: old for old in range(count + len(task.nodes))}
        names[number] = changed
        nodes = tuple(replace(node, args=_renamed(node.args, names)) for node in task.nodes)
        return prune(replace(task, nodes=nodes), tuple(names[old] for old in task.outputs))
    if changed.op not in ("never", "always"):
        nodes = (*task.nodes[:place], changed, *task.nodes[place + 1 :])
        return prune(replace(task, nodes=nodes), task.outputs)
    original = task.nodes[place]
    negated = Node("logical_not", (number,), (), original.out)
    joined = Node("logical_and" if changed.op == "never" else "logical_or", (number, number + 1), (), original.out)
    names = {old: old if old < number else old + 2 for old in range(count + len(task.nodes))}
    rest = tuple(replace(node, args=_renamed(node.args, names)) for node in task.nodes[place + 1 :])
    nodes = (*task.nodes[:place], original, negated, joined, *rest)
    return prune(replace(task, nodes=nodes), tuple(names[old] for old in task.outputs))
