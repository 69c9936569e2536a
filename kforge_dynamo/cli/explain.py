"""`kforge explain TARGET`: which parts of a model are regions, what each computes, and why the rest is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import typer

from kforge_dynamo import inductor_entry, ledger
from kforge_dynamo.cli.compare import tensors_of
from kforge_dynamo.cli.loading import Device, Dtype, Function, Shapes, TargetWord, Train, load_target, make_inputs


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(explain)


def explain(
    target: TargetWord,
    shapes: Shapes,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    train: Train = False,
    function: Function = False,
) -> None:
    """Print the partition of a model's graphs as text. Nothing is searched."""
    model = load_target(target, function=function)
    if isinstance(model, torch.nn.Module):
        model = model.to(device=device, dtype=getattr(torch, dtype)).train(train)
    silence = ledger.listen(_print_partition)
    try:
        with inductor_entry.without_caches():
            for call in shapes:
                torch.compiler.reset()
                compiled = torch.compile(model, backend="kforge", options={"on_miss": "fallback"})
                run_once(compiled, make_inputs(call.split(","), dtype=dtype, device=device), train=train)
    finally:
        silence()


def run_once(compiled: Callable[..., Any], inputs: Sequence[torch.Tensor], *, train: bool) -> None:
    """One call, and with `train` one backward of a scalar that every floating output takes part in."""
    with torch.set_grad_enabled(train):
        result = compiled(*inputs)
    if train:
        losses = [value.float().square().mean() for value in tensors_of(result) if value.requires_grad]
        torch.autograd.backward(torch.stack(losses).sum())


def _print_partition(event: str, title: str, detail: str, more: str) -> None:
    if event == "partition":
        typer.echo(f"# {title}\n{detail}\n")
