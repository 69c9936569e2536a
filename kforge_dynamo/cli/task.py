"""`kforge task`: the regions of a model as folders in which a kernel can be written by hand, and what was written handed in."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kforge_dynamo import inductor_entry, ledger
from kforge_dynamo.cli.dossier import write
from kforge_dynamo.cli.explain import run_once
from kforge_dynamo.cli.files import CandidatePath, TaskPath, device_of, load_candidate, load_task
from kforge_dynamo.cli.loading import Device, Dtype, Function, Shapes, TargetWord, Train, load_target, make_inputs
from kforge_dynamo.cli.verdicts import EXIT_CODES, NOT_STORED, as_data, exit_table
from kforge_dynamo.cli.verdicts import show as show_verdict
from kforge_dynamo.cli.verify import AsJson, Mode, OnDevice, Seconds
from kforge_dynamo.errors import SettingsError
from kforge_dynamo.evaluation import Evaluator
from kforge_dynamo.records.assignment import Assignment, read_task
from kforge_dynamo.records.codec import digest
from kforge_dynamo.semantics import pytorch
from kforge_dynamo.semantics.show import show as show_task
from kforge_dynamo.settings import Settings
from kforge_dynamo.sites import store_of
from kforge_dynamo.submission import submit as hand_in

Precision = Annotated[str, typer.Option(help="auto, strict or mixed")]
Region = Annotated[int | None, typer.Option(help="the number of one region, as the list shows it; else all")]
To = Annotated[Path, typer.Option("--to", metavar="DIR", help="where the folders are made")]

task = typer.Typer(help="List, show and export the tasks of a model; hand in kernels for them.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.add_typer(task, name="task")


@task.command("list")
def list_tasks(
    target: TargetWord,
    shapes: Shapes,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    precision: Precision = "auto",
    train: Train = False,
    function: Function = False,
    as_json: AsJson = False,
) -> None:
    """The regions of a model, each a task that a kernel can be written for."""
    found = tasks_of(target, shapes, dtype, device, precision, train, function)
    rows = [
        {
            "region": number,
            "title": item.title,
            "sizes": list(item.sizes),
            "axes": list(item.task.axes),
            "task": digest(item.task),
        }
        for number, item in enumerate(found, 1)
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    table = Table(box=None, pad_edge=False, title=f"{len(rows)} tasks of {escape(target)}", title_justify="left")
    for name in ("region", "title", "sizes", "precision", "task"):
        table.add_column(name, overflow="fold")
    for row, item in zip(rows, found, strict=True):
        sizes = ", ".join(f"{axis} = {size}" for axis, size in zip(item.task.axes, item.sizes, strict=True))
        table.add_row(str(row["region"]), escape(item.title), sizes, item.numerics.fp32, str(row["task"])[:12])
    Console().print(table)


@task.command()
def show(path: TaskPath) -> None:
    """One task file: sizes, precision, the operations, and the same as a PyTorch function."""
    item = load_task(path)
    typer.echo(f"{item.title}, for {item.device} at precision {item.numerics.fp32}")
    for axis, size in zip(item.domain.ranges, item.sizes, strict=True):
        typer.echo(f"  {axis.axis} = {size}" + ("" if axis.low == axis.high else f", right from {axis.low} to {axis.high}"))
    typer.echo(f"\n{show_task(item.task)}\n\n{pytorch.source(item.task)}")


@task.command()
def export(
    target: TargetWord,
    shapes: Shapes,
    to: To,
    region: Region = None,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    precision: Precision = "auto",
    train: Train = False,
    function: Function = False,
) -> None:
    """Write each task as a folder with all that a kernel's author needs: reference, inputs, rules, an example, the command."""
    found = tasks_of(target, shapes, dtype, device, precision, train, function)
    if region is not None and not 1 <= region <= len(found):
        raise SettingsError(f"region {region}: {target} has {len(found)}, numbered from 1; kforge task list shows them")
    for number, item in enumerate(found, 1):
        if region in (None, number):
            place = to / f"{number:02}-{_slug(item.title)}"
            try:
                write(item, place)
            except OSError as error:
                raise SettingsError(f"{place} cannot be written: {error.strerror}; name another folder with --to") from error
            typer.echo(str(place))


@task.command(epilog=f"{exit_table()} {NOT_STORED} for a kernel that is right and not stored.")
def submit(
    path: TaskPath,
    candidate: CandidatePath,
    as_json: AsJson = False,
    timeout: Seconds = 120.0,
    mode: Mode = "default",
    device: OnDevice = None,
) -> None:
    """Judge a kernel for a task and keep it where it beats Inductor and the stored winner; later compiles then use it."""
    assignment, proposed = load_task(path), load_candidate(candidate)
    place, target = device_of(assignment, device)
    evaluator = Evaluator(target, str(place))
    try:
        done = hand_in(assignment, proposed, evaluator, target, store_of(Settings.parse()[0]), timeout, mode)
    finally:
        evaluator.close()
    if as_json:
        typer.echo(json.dumps(as_data(assignment, done.trial) | {"stored": done.stored, "reason": done.reason}, indent=1))
    else:
        show_verdict(Console(), assignment, done.trial)
        typer.echo(done.reason)
    status = EXIT_CODES[done.trial.verdict.status]
    raise typer.Exit(status or (0 if done.stored else NOT_STORED))


def tasks_of(
    target: str, shapes: list[str], dtype: str, device: str, precision: str, train: bool, function: bool
) -> list[Assignment]:
    """The tasks of the model's graphs, each once. Raises: SettingsError where there is none."""
    model = load_target(target, function=function)
    if isinstance(model, torch.nn.Module):
        model = model.to(device=device, dtype=getattr(torch, dtype)).train(train)
    texts: dict[str, None] = {}

    def keep(event: str, title: str, detail: str, more: str) -> None:
        if event == "region":
            texts[detail] = None

    silence = ledger.listen(keep)
    try:
        with inductor_entry.without_caches():
            for call in shapes:
                torch.compiler.reset()
                compiled = torch.compile(model, backend="kforge", options={"on_miss": "fallback", "precision": precision})
                run_once(compiled, make_inputs(call.split(","), dtype=dtype, device=device), train=train)
    finally:
        silence()
    if not texts:
        raise SettingsError(f"{target} has no region that kforge takes; kforge explain says why")
    return [read_task(text, "a region") for text in texts]


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:48] or "task"
