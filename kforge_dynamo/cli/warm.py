"""`kforge warm TARGET`: search the regions of a model offline, so that later processes find their winners."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from kforge_dynamo import ledger
from kforge_dynamo.cli.explain import run_once
from kforge_dynamo.cli.loading import Device, Dtype, Function, Shapes, TargetWord, Train, load_target, make_inputs
from kforge_dynamo.cli.measure import own_code
from kforge_dynamo.cli.recorded import warm_recorded
from kforge_dynamo.errors import SettingsError

_ALL_S = 86400.0
_NO_SHAPES: list[str] = []
_ROUNDS = 15
"""Rounds of the comparison of whole models; the two take turns in each."""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(warm)


def warm(
    target: TargetWord = "",
    shapes: Shapes = _NO_SHAPES,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    precision: Annotated[str, typer.Option(help="auto, strict or mixed")] = "auto",
    budget: Annotated[float, typer.Option(help="seconds a region")] = 30.0,
    mode: Annotated[str, typer.Option(help="the torch.compile mode the model will run under")] = "default",
    train: Train = False,
    function: Function = False,
    recorded: Annotated[Path | None, typer.Option(metavar="FILE", help="regions that KFORGE_RECORD met, not a TARGET")] = None,
) -> None:
    """Search kernels for the regions of a model, keep the winners, and compare the whole model with Inductor."""
    if recorded is not None:
        warm_recorded(recorded, budget, mode)
        return
    if not target or not shapes:
        raise SettingsError("warm needs a TARGET and its --shapes, or --recorded with a file that KFORGE_RECORD wrote")
    model = load_target(target, function=function)
    if isinstance(model, torch.nn.Module):
        model = model.to(device=device, dtype=getattr(torch, dtype)).train(train)
    console = Console()
    options: dict[str, Any] = {"on_miss": "search", "budget_s": _ALL_S, "region_budget_s": budget, "precision": precision}
    options |= torch._inductor.list_mode_options(mode)
    for call in shapes:
        inputs = make_inputs(call.split(","), dtype=dtype, device=device)
        ledger.reset()
        torch.compiler.reset()
        with _progress(console):
            compiled = torch.compile(model, backend="kforge", options=options)
            run_once(compiled, inputs, train=train)
        console.print(_table(call))
        other = own_code(model, "inductor") if isinstance(model, torch.nn.Module) else model
        baseline = torch.compile(other, options=torch._inductor.list_mode_options(mode))
        console.print(_comparison(compiled, baseline, inputs, train))


class _progress:
    """Shows the region being searched, its time limit, and how the last one ended."""

    def __init__(self, console: Console) -> None:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True)
        self._line = self._progress.add_task("compiling", total=None)

    def __enter__(self) -> None:
        self._progress.start()
        self._silence = ledger.listen(self._show)

    def __exit__(self, *_: object) -> None:
        self._silence()
        self._progress.stop()

    def _show(self, event: str, title: str, detail: str, more: str) -> None:
        if event == "search":
            self._progress.update(self._line, description=f"{title} (at most {float(detail):.0f} s)")
        elif event == "settled":
            self._progress.console.print(f"  {detail:12} {title}: {more}", highlight=False)


def _table(call: str) -> Table:
    table = Table(title=f"regions for {call}")
    for name in ("region", "sizes", "state", "kforge us", "inductor us", "speed-up", "error ratio", "scheme", "reason"):
        table.add_column(name, overflow="fold")
    for item in ledger.report():
        numbers = [item.candidate_us, item.region_us, item.speedup, item.error_ratio]
        texts = ["-" if number is None else f"{number:.2f}" for number in numbers]
        table.add_row(item.title, str(item.sizes), item.state, *texts, item.scheme or "-", item.reason)
    return table


def _comparison(compiled: Callable[..., Any], baseline: Callable[..., Any], inputs: list[torch.Tensor], train: bool) -> str:
    """Medians of whole calls, taken in turns, after both are compiled."""
    times: dict[str, list[float]] = {"kforge": [], "inductor": []}
    for function in (compiled, baseline):
        _timed(function, inputs, train)
    for _ in range(_ROUNDS):
        times["kforge"].append(_timed(compiled, inputs, train))
        times["inductor"].append(_timed(baseline, inputs, train))
    ours, theirs = (statistics.median(times[name]) for name in ("kforge", "inductor"))
    return f"whole model: kforge {ours:.3f} ms, inductor {theirs:.3f} ms, ratio {theirs / ours:.3f} ({torch.__version__})"


def _timed(function: Callable[..., Any], inputs: list[torch.Tensor], train: bool) -> float:
    """Wall time of one call in milliseconds, the device included."""
    if inputs[0].is_cuda:
        torch.cuda.synchronize()
    started = time.perf_counter()
    run_once(function, inputs, train=train)
    if inputs[0].is_cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - started) * 1e3
