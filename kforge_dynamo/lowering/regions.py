"""What the lowering hands on: regions of a graph, how their tasks are fed, and what was left out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.fx

from kforge_dynamo.languages.base import RawDims
from kforge_dynamo.lowering.sizes import SymSize
from kforge_dynamo.lowering.titles import title
from kforge_dynamo.records.region import Rejection
from kforge_dynamo.records.task import Task


@dataclass(frozen=True, slots=True)
class Feed:
    """The graph value behind one task input.

    With `view` it must first be seen in that shape, which splits dimensions and is a view of the traced strides. For each
    dimension of the input's `rows + cols`, `dims` has the dimension (of the node, or of its `view`) whose stride it has,
    None where the stride is 0 or the extent 1.
    """

    node: torch.fx.Node
    view: tuple[SymSize, ...] | None
    dims: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class AxisSize:
    """The size of a task axis in this graph, and where a call finds it.

    `size` is an int or a SymInt of the graph's shape environment; `hint` what it was when the graph was traced (None if
    that depends on data). The product over `factors` (input number, dimension of its fed tensor) is the size; it is empty
    only where no input has it, and then `size` is all there is.
    """

    axis: str
    size: SymSize
    hint: int | None
    factors: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Binding:
    """How a task sits in a graph: one feed an input, one size an axis (in the order of `Task.axes`), and for each output
    the shape the graph expects, as which the dense output is to be viewed."""

    feeds: tuple[Feed, ...]
    axes: tuple[AxisSize, ...]
    shapes: tuple[tuple[SymSize, ...], ...]

    @property
    def raw_dims(self) -> RawDims:
        """What a language's `load` needs to read strides from the tensors that are really passed."""
        return tuple(feed.dims for feed in self.feeds)

    @property
    def hints(self) -> tuple[int, ...] | None:
        """Sizes as traced, for searching; None where one depends on data."""
        found = tuple(axis.hint for axis in self.axes)
        return None if None in found else tuple(hint for hint in found if hint is not None)


@dataclass(frozen=True, slots=True)
class Facts:
    """What the cost model asks; bytes and FLOP at the traced sizes, None where those depend on data.

    `fused_consumer` says that a reader of an output is a node that Inductor would have fused with the epilogue. Then
    `removed_bytes` is what memory traffic the region saves against a bare product whose epilogue is fused further on:
    product and extra inputs read there, less the outputs that are read instead; negative where the region moves more.
    """

    bytes_read: int | None
    bytes_written: int | None
    flop: int | None
    fused_consumer: bool
    removed_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Region:
    """A GEMM with its epilogue.

    `nodes` are the graph nodes that the region replaces, in graph order: nothing outside reads them except through
    `outputs`, which are aligned with `task.outputs`. `absorbed` are views, paddings and constants through which the
    region reads its inputs; they stay, and are dead where nobody else reads them.
    """

    anchor: torch.fx.Node
    task: Task
    binding: Binding
    nodes: tuple[torch.fx.Node, ...]
    absorbed: tuple[torch.fx.Node, ...]
    outputs: tuple[torch.fx.Node, ...]
    facts: Facts

    @property
    def title(self) -> str:
        """One line for people: what it computes, its sizes, its dtype."""
        return title(self.task)

    @property
    def device(self) -> torch.device:
        """Where the product is computed."""
        device: torch.device = self.anchor.meta["val"].device
        return device


@dataclass(frozen=True, slots=True)
class Partition:
    """All regions of a graph, in the order of their anchors, and one rejection for each call that is in none of them."""

    regions: tuple[Region, ...]
    rejections: tuple[Rejection, ...]
