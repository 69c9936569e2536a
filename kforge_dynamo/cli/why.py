"""`kforge why TARGET|TASK`: what the cache answers for each region of a model, and how the nearest winner differs on a miss."""

from __future__ import annotations

import json
from typing import Annotated, Any

import torch
import typer

from kforge_dynamo import rechecks
from kforge_dynamo.cli.cache import AsJson, CacheDir, store_for
from kforge_dynamo.cli.loading import Device, Dtype, Function, Shapes, Train
from kforge_dynamo.cli.show import assignment_of
from kforge_dynamo.cli.task import Precision, tasks_of
from kforge_dynamo.errors import SettingsError
from kforge_dynamo.records.assignment import Assignment
from kforge_dynamo.records.codec import plain
from kforge_dynamo.store import Store
from kforge_dynamo.targets import detect, unknown_reason

What = Annotated[
    str, typer.Argument(metavar="TARGET|TASK", help="a model as in kforge explain, a task file, or digits of a stored task")
]
_NO_SHAPES: list[str] = []


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(why)


def why(
    what: str = typer.Argument(
        metavar="TARGET|TASK", help="A model as in kforge explain, a task file, or digits of a stored task."
    ),
    shapes: Shapes = _NO_SHAPES,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    precision: Precision = "auto",
    train: Train = False,
    function: Function = False,
    as_json: AsJson = False,
    cache_dir: CacheDir = None,
) -> None:
    """Say for each region what is stored, and on a miss in which fields the nearest stored winner differs."""
    if ":" in what:
        if not shapes:
            raise SettingsError(f"{what} needs the --shapes of its inputs, as in 8x128,8x16:int64")
        asked = tasks_of(what, shapes, dtype, device, precision, train, function)
    else:
        asked = [assignment_of(what, cache_dir)]
    store = store_for(cache_dir)
    rows = [_row(store, item) for item in asked]
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    for row in rows:
        typer.echo(f"{row['title']} {tuple(row['sizes'])} on {row['device']}: {row['state']}{row['layer']}")
        for line in filter(None, (row["reason"], row["miss"])):
            typer.echo(f"    {line}")


def _row(store: Store, item: Assignment) -> dict[str, Any]:
    device = torch.device(item.device)
    target = detect(device)
    row: dict[str, Any] = {"title": item.title, "sizes": list(item.sizes), "device": str(device), "layer": "", "miss": ""}
    if target is None:
        return row | {"state": "unknown", "reason": unknown_reason(device), "differences": []}
    found, miss = rechecks.known(store, item, target)
    row |= {"device": target.name, "state": found.state.value if found is not None else "not_searched", "differences": []}
    row["reason"] = found.reason if found is not None else ""
    if found is not None:
        row["layer"] = f" ({found.layer})"
    if found is None or found.winner is None:
        row |= {"miss": str(miss), "differences": [plain(difference) for difference in miss.differences]}
    return row
