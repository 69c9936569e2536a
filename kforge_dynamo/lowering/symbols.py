"""Symbolic sizes as nodes of the graph, so that an inserted call can take them as arguments.

Private API, read in torch 2.11.0, 2.13.0 and 2.14.1: `SymInt.node`, `utils._sympy.interp.sympy_interp`,
`utils._sympy.reference.PythonReferenceAnalysis`, `fx.proxy.GraphAppendingTracer`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sympy
import torch
from torch import fx
from torch.fx.proxy import GraphAppendingTracer
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis


class SizeNodes:
    """Finds, or inserts at the graph's insertion point, the node that computes a symbolic size.

    Only values defined before `before` are used, so that a result may be an argument of a node placed there.
    """

    def __init__(self, graph: fx.Graph, before: fx.Node) -> None:
        self._graph = graph
        self._known: dict[sympy.Expr, fx.Node] = {}
        self._tensors: list[fx.Node] = []
        for node in _until(graph, before):
            value = node.meta.get("val")
            if isinstance(value, torch.SymInt):
                self._known.setdefault(value.node.expr, node)
            elif isinstance(value, torch.Tensor):
                self._tensors.append(node)

    def of(self, size: int | torch.SymInt) -> int | fx.Node:
        """`size` as an argument. Raises: LookupError when a symbol of it cannot be read from any value of the graph."""
        if not isinstance(size, torch.SymInt):
            return size
        expression = size.node.expr
        if expression.is_number:
            return int(expression)
        if expression not in self._known:
            self._known[expression] = self._from_tensor(expression, size) or self._computed(expression, size)
        return self._known[expression]

    def _from_tensor(self, expression: sympy.Expr, size: torch.SymInt) -> fx.Node | None:
        for node in self._tensors:
            for dim, extent in enumerate(node.meta["val"].shape):
                if isinstance(extent, torch.SymInt) and extent.node.expr == expression:
                    found = self._graph.call_function(torch.ops.aten.sym_size.int, (node, dim))
                    found.meta["val"] = size
                    return found
        return None

    def _computed(self, expression: sympy.Expr, size: torch.SymInt) -> fx.Node:
        if expression.is_Symbol:
            raise LookupError(f"the symbolic size {expression} is the extent of no value before the region")
        env = size.node.shape_env
        symbols = {symbol: self.of(env.create_symintnode(symbol, hint=None)) for symbol in expression.free_symbols}
        tracer = GraphAppendingTracer(self._graph)
        proxies = {symbol: fx.Proxy(node, tracer) if isinstance(node, fx.Node) else node for symbol, node in symbols.items()}
        result: Any = sympy_interp(PythonReferenceAnalysis, proxies, expression)
        self._describe(result.node, env)
        found: fx.Node = result.node
        found.meta["val"] = size
        return found

    def _describe(self, node: fx.Node, env: Any) -> None:
        """Gives the nodes that the interpreter made their values, from the inside out."""
        for argument in node.all_input_nodes:
            if "val" not in argument.meta:
                self._describe(argument, env)
        if "val" not in node.meta:
            args = fx.map_arg(node.args, lambda item: item.meta["val"])
            node.meta["val"] = node.target(*args) if callable(node.target) else None


def _until(graph: fx.Graph, before: fx.Node) -> Iterator[fx.Node]:
    for node in graph.nodes:
        if node is before:
            return
        yield node
