"""`kforge place`: which device should run which stage of a pipeline, for latency or for cost."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kforge_dynamo.cli.cache import AsJson, CacheDir, store_for
from kforge_dynamo.errors import SettingsError
from kforge_dynamo.placement import StageTime, best, stage_times
from kforge_dynamo.store.recorded import read


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(place)


def place(
    stages: Annotated[
        list[str], typer.Argument(metavar="STAGE=FILE...", help="a pipeline's stages, as KFORGE_RECORD wrote them")
    ],
    on: Annotated[list[str], typer.Option("--on", metavar="DEVICE[=PRICE]", help="a device's name, and its dollars an hour")],
    by: Annotated[str, typer.Option(help="latency or cost")] = "latency",
    as_json: AsJson = False,
    cache_dir: CacheDir = None,
) -> None:
    """Say which device should run which stage, by measured winners, and by the roofline where there are none."""
    if by not in ("latency", "cost"):
        raise SettingsError(f"--by {by!r}: expected latency or cost")
    devices = dict(map(_device, on))
    if by == "cost" and None in devices.values():
        raise SettingsError("--by cost needs the price of every device: --on 'NVIDIA H200=3.50'")
    rows = stage_times({name: read(path)[0] for name, path in map(_stage, stages)}, devices, store_for(cache_dir))
    chosen = [best(row, by == "cost") for row in rows]
    if as_json:
        cells = [[asdict(item) | {"total_us": item.total_us, "dollars": item.dollars} for item in row] for row in rows]
        picks = [None if item is None else item.device for item in chosen]
        typer.echo(json.dumps({"by": by, "stages": cells, "chosen": picks}, indent=1))
        return
    _print(rows, chosen, by)


def _print(rows: Sequence[Sequence[StageTime]], chosen: Sequence[StageTime | None], by: str) -> None:
    table = Table(box=None, pad_edge=False, title=f"us of each stage, chosen by {by}", title_justify="left")
    for head in ("stage", *(escape(item.device) for item in rows[0]), "chosen"):
        table.add_column(head, overflow="fold")
    for row, pick in zip(rows, chosen, strict=True):
        table.add_row(escape(row[0].stage), *map(_cell, row), escape(pick.device) if pick is not None else "nothing is known")
    console = Console()
    console.print(table)
    total = sum(item.total_us or 0.0 for item in chosen if item is not None)
    if all(item is not None for item in chosen):
        kind = "measured" if all(item is not None and item.measured for item in chosen) else "at least"
        console.print(f"one run after another: {total:,.1f} us, {kind}; moving data between devices is not counted")


def _cell(item: StageTime) -> str:
    """The time, and whether it was measured, is a bound, or a sum of both."""
    if item.total_us is None:
        return f"unknown ({item.unknown} regions)"
    kind = (
        "measured" if item.measured else "bound" if not item.measured_us else f"{item.measured_us / item.total_us:.0%} measured"
    )
    price = f", {item.dollars:.3g} USD" if item.dollars is not None else ""
    return f"{item.total_us:,.1f} ({kind}{price})"


def _stage(word: str) -> tuple[str, Path]:
    name, separator, path = word.partition("=")
    if not separator or not name or not path:
        raise SettingsError(f"stage {word!r}: expected NAME=FILE, as in decode=decode.jsonl")
    return name, Path(path)


def _device(word: str) -> tuple[str, float | None]:
    name, separator, price = word.rpartition("=")
    if not separator:
        return word, None
    try:
        dollars = float(price)
    except ValueError:
        dollars = math.nan
    if not name or not 0.0 <= dollars < math.inf:
        raise SettingsError(f"device {word!r}: expected NAME or NAME=DOLLARS, as in 'NVIDIA H200=3.50'")
    return name, dollars
