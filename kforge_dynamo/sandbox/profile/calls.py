"""A call of a candidate on inputs of one draw, for whoever watches it run."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kforge_dynamo.languages.base import Launcher
from kforge_dynamo.records.request import Request
from kforge_dynamo.sandbox.bench import Bench
from kforge_dynamo.sandbox.inputs import BY_NAME, full_shape
from kforge_dynamo.sandbox.layout import TIMED_PAD, place
from kforge_dynamo.semantics.evaluate import dtype_of, shape_of

Call = Callable[[], list[torch.Tensor]]


def bound_call(request: Request, launcher: Launcher, bench: Bench) -> Call:
    """One call at `request.sizes` on inputs of the class "unit", drawn when it is first called; outputs are new each time."""
    axes = dict(zip(request.task.axes, request.sizes, strict=True))
    specs = [request.task.value(number) for number in request.task.outputs]
    forms = [(tuple(int(extent) for extent in shape_of(spec.shape, axes)), dtype_of(spec.dtype)) for spec in specs]
    inputs: list[torch.Tensor] = []

    def call() -> list[torch.Tensor]:
        if not inputs:
            drawn = bench.draw(request.sizes, BY_NAME["unit"], 0)
            pairs = zip(drawn, request.task.inputs, strict=True)
            inputs.extend(place(values, item, full_shape(item, axes), TIMED_PAD).tensor for values, item in pairs)
        outputs = [torch.empty(shape, dtype=dtype, device=bench.device) for shape, dtype in forms]
        launcher(inputs, outputs, request.sizes)
        return outputs

    return call
