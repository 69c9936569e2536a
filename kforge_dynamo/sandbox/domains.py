"""What the uses of an input say about its values: positive under a root, nonzero as a divisor, a mask before a softmax."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from kforge_dynamo.records.task import Const, Node, Task
from kforge_dynamo.sandbox.dissect import dependants, numbers, products
from kforge_dynamo.semantics.table import OPS, Kind, Needs


class Values(Enum):
    """The domain of an input."""

    ANY = "any"
    POSITIVE = "positive"
    NONZERO = "nonzero"
    MASK = "mask"
    BOOLEAN = "boolean"
    INDEX = "index"


@dataclass(frozen=True, slots=True)
class Statistic:
    """Input `number` is a saved statistic: it is subtracted from the value `of` before an exponential."""

    number: int
    of: int


def domains(task: Task) -> tuple[Values, ...]:
    """The domain of each input, by a walk from the uses back to the inputs."""
    count = len(task.inputs)
    needs: dict[int, Values] = {}
    for number in range(count + len(task.nodes) - 1, count - 1, -1):
        node = task.nodes[number - count]
        for operand, need in _needs_of(node):
            _demand(needs, operand, need)
        if number in needs:
            need = Values.POSITIVE if node.op == "add" else needs[number]  # a sum of nonzero numbers may be zero
            for operand in _passed_to(node, needs[number]):
                _demand(needs, operand, need)
    masks = _masks(task)
    return tuple(_of_input(task, number, needs, masks) for number in range(count))


def _of_input(task: Task, number: int, needs: dict[int, Values], masks: frozenset[int]) -> Values:
    dtype = task.inputs[number].value.dtype
    if dtype == "bool":
        return Values.BOOLEAN
    if "float" not in dtype:
        return Values.INDEX
    if number in needs:
        return needs[number]
    return Values.MASK if number in masks else Values.ANY


def _demand(needs: dict[int, Values], number: int, need: Values) -> None:
    if needs.get(number) is not Values.POSITIVE:  # positive is the narrower one
        needs[number] = need


def _needs_of(node: Node) -> list[tuple[int, Values]]:
    found = []
    first = node.args[0]
    need = OPS[node.op].needs
    if need is not Needs.ANY and not isinstance(first, Const):
        found.append((first, Values.POSITIVE if need is Needs.POSITIVE else Values.NONZERO))
    if node.op == "div" and not isinstance(node.args[1], Const):
        found.append((node.args[1], Values.NONZERO))
    if node.op == "pow" and not isinstance(first, Const):
        power = node.args[1]
        if not isinstance(power, Const) or float(power.value) != int(power.value):
            found.append((first, Values.POSITIVE))
        elif power.value < 0:
            found.append((first, Values.NONZERO))
    return found


def _passed_to(node: Node, need: Values) -> tuple[int, ...]:
    """The operands that must be in the domain `need` so that the node's value is (enough for what real graphs write)."""
    if OPS[node.op].kind is Kind.VIEW or node.op in ("convert", "sqrt", "rsqrt", "reciprocal", "where", "maximum", "minimum"):
        return numbers(node.args[1:]) if node.op == "where" else numbers(node.args)
    if node.op == "neg":
        return numbers(node.args) if need is Values.NONZERO else ()
    if node.op in ("mul", "div"):
        return numbers(node.args)
    positive_rest = all(arg.value >= 0 for arg in node.args if isinstance(arg, Const))
    return numbers(node.args) if node.op == "add" and positive_rest else ()


def _masks(task: Task) -> frozenset[int]:
    """Floating inputs that are added to something that depends on the product and then meets `amax` (a softmax)."""
    count = len(task.inputs)
    moved = dependants(task, products(task)) if task.anchor is not None else frozenset(range(count))
    found = set()
    for number, node in enumerate(task.nodes, count):
        if node.op != "add" or not _meets_amax(task, number):
            continue
        for operand in numbers(node.args):
            source = _source(task, operand)
            if source is not None and source not in (*moved,) and _is_mask_shaped(task, source):
                found.add(source)
    return frozenset(found)


def _is_mask_shaped(task: Task, number: int) -> bool:
    cols = task.inputs[number].value.cols
    return bool(cols) and cols[-1] != 1


def _meets_amax(task: Task, number: int) -> bool:
    """Whether an `amax` over columns reads the value through views, conversions and additions or products."""
    reach = {number}
    for place, node in enumerate(task.nodes, len(task.inputs)):
        if not reach.intersection(numbers(node.args)):
            continue
        if node.op == "amax":
            return True
        if OPS[node.op].kind is Kind.VIEW or node.op in ("convert", "add", "mul", "div", "where"):
            reach.add(place)
    return False


def _source(task: Task, number: int) -> int | None:
    """The input that the value is, seen through views and conversions; None when it is computed."""
    count = len(task.inputs)
    while number >= count:
        node = task.nodes[number - count]
        if OPS[node.op].kind is not Kind.VIEW and node.op != "convert":
            return None
        (number,) = numbers(node.args)
    return number


def statistics(task: Task) -> tuple[Statistic, ...]:
    """Inputs of one column that are subtracted before an exponential: a saved maximum or logsumexp."""
    count = len(task.inputs)
    exponents = {arg for node in task.nodes if node.op in ("exp", "exp2") for arg in numbers(node.args)}
    found = []
    for number, node in enumerate(task.nodes, count):
        if number not in exponents or node.op != "sub" or any(isinstance(arg, Const) for arg in node.args):
            continue
        minuend, subtrahend = numbers(node.args)
        source = _source(task, subtrahend)
        if source is not None and source not in dependants(task, [minuend]) and _is_saved(task, source, minuend):
            found.append(Statistic(source, minuend))
    return tuple(found)


def _is_saved(task: Task, source: int, minuend: int) -> bool:
    item = task.inputs[source].value
    moved = dependants(task, products(task))
    return item.cols != () and all(extent == 1 for extent in item.cols) and minuend in moved and item.varies_by_row
