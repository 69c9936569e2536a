"""`kforge demo`: small real models with random weights, compiled by torch.compile's default and by kforge, side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from kforge_dynamo.cli import trial_run
from kforge_dynamo.cli.measure import Ratio, geomean
from kforge_dynamo.cli.models import Entry, choose
from kforge_dynamo.cli.trial_run import Run

LINES = 6
"""Regions that are listed for one model."""
PLAIN_WIDTH = 140
"""Columns of the output where it is not a terminal."""


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("demo")(demo)


def demo(
    everything: Annotated[bool, typer.Option("--all", help="Every model instead of three.")] = False,
    only: Annotated[str, typer.Option("--models", help="Names of models, by commas.")] = "",
    budget_s: Annotated[float, typer.Option("--budget", min=0.0, help="Seconds of search for one model.")] = 20.0,
    seconds: Annotated[float, typer.Option("--time", min=0.0, help="Seconds of timing for one model.")] = 2.0,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda, or auto: cuda where there is one.")] = "auto",
) -> None:
    """Compile small models with random weights with kforge, check each result against fp64 and time it.

    Exit status 1 if a result is wrong or a model does not run.
    """
    console = Console()
    if not console.is_terminal:  # a file has no width of its own
        console = Console(width=PLAIN_WIDTH)
    device = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    entries, notes = choose(everything or bool(only))
    if only:
        entries = [entry for entry in entries if entry.name in only.split(",")]
        if not entries:
            raise typer.BadParameter(f"no model is called {only!r}; there are {', '.join(e.name for e in choose(True)[0])}")
    for note in notes:
        console.print(f"[dim]{note}[/dim]")
    console.print(
        f"{len(entries)} models on {device}; compiled by torch.compile and by kforge, which may search up to "
        f"{budget_s:g} s for each."
    )
    runs = run_all(console, entries, device, budget_s, seconds)
    summary(console, runs)
    if not all(run.right for run in runs):
        raise typer.Exit(1)


def run_all(console: Console, entries: Sequence[Entry], device: str, budget_s: float, seconds: float) -> list[Run]:
    """The models in turn, under a progress display with the time left."""
    runs: list[Run] = []
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    weights = dict(trial_run.STEPS)
    weights["kforge"] += budget_s
    with Progress(*columns, console=console, refresh_per_second=2, transient=True) as progress:
        task = progress.add_task("", total=len(entries) * sum(weights.values()))
        for index, entry in enumerate(entries):
            progress.update(task, description=f"{entry.name}: {trial_run.STEPS[0][0]}")

            def step(done: str, entry: Entry = entry, task: TaskID = task) -> None:
                names = [*weights]
                following = names[(names.index(done) + 1) % len(names)]
                progress.update(task, advance=weights[done], description=f"{entry.name}: {following}")

            # the budget is one of the process: each model may use what those before it left
            options = {"budget_s": (index + 1) * budget_s, "region_budget_s": max(1.0, budget_s / 2)}
            run = trial_run.run(entry, device, options, seconds, step)
            runs.append(run)
            progress.update(task, completed=(index + 1) * sum(weights.values()))
            show(progress.console, run)
    return runs


def show(console: Console, run: Run) -> None:
    """One model in a few lines."""
    console.print(f"\n[bold]{run.entry.name}[/bold] ({run.entry.about})", highlight=False)
    if run.failure:
        console.print(f"  [red]failed[/red]: {escape(run.failure)}", highlight=False)
        return
    word = "right" if run.right else "[red]WRONG[/red]"
    console.print(
        f"  {word}: error {run.kforge_error:.1e} against eager's {run.eager_error:.1e} and torch.compile's "
        f"{run.default_error:.1e} ({error_text(run)})",
        highlight=False,
    )
    console.print(
        f"  {run.kforge_us:.0f} us a call: {ratio_text(run.over_default)} over torch.compile, {ratio_text(run.over_eager)} over "
        "eager",
        highlight=False,
    )
    counted = run.counted
    console.print(
        f"  regions {counted.get('regions', 0)}, winners {counted.get('winners', 0)}, spliced {counted.get('spliced', 0)}",
        highlight=False,
    )
    for label, found in (("spliced", run.winners()), ("left to Inductor", run.others())):
        listing(console, label, found)


def listing(console: Console, label: str, found: Counter[str]) -> None:
    """A few regions, the most frequent first."""
    for text, count in found.most_common(LINES):
        console.print(f"    {label}: {f'{count} x ' if count > 1 else ''}{text}", highlight=False, markup=False)
    if len(found) > LINES:
        console.print(f"    {label}: and {len(found) - LINES} more kinds", highlight=False)


def error_text(run: Run) -> str:
    """kforge's error over the larger of eager's and torch.compile's."""
    ratio = run.judgement.ratio if run.judgement else None
    return "eager is exact" if ratio is None else f"ratio {ratio:.2f}"


def ratio_text(ratio: Ratio | None) -> str:
    """A speed-up with its interval."""
    return "-" if ratio is None else f"{ratio.value:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}]"


def summary(console: Console, runs: Sequence[Run]) -> None:
    """One line a model, and what it comes to."""
    table = Table(box=None, pad_edge=False)
    for head in ("model", "result", "error ratio", "over torch.compile", "over eager", "spliced"):
        table.add_column(head)
    for run in runs:
        table.add_row(
            run.entry.name,
            "right" if run.right else "FAILED" if run.failure else "WRONG",
            "-" if run.failure else error_text(run).removeprefix("ratio "),
            ratio_text(run.over_default),
            ratio_text(run.over_eager),
            str(run.counted.get("spliced", 0)),
        )
    console.print()
    console.print(table)
    ratios = [run.over_default.value for run in runs if run.over_default is not None]
    mean = geomean(ratios)
    total = sum(run.counted.get("spliced", 0) for run in runs)
    right = sum(run.right for run in runs)
    console.print(
        f"\n{right} of {len(runs)} models right, {total} regions spliced"
        + ("" if mean is None else f", {mean:.2f}x over torch.compile on the geometric mean.")
    )
