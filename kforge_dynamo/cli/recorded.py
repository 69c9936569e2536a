"""`kforge warm --recorded FILE`: the regions that a running job met, searched without its model."""

from __future__ import annotations

from pathlib import Path

import torch
import typer

from kforge_dynamo.answers import Desk, rest
from kforge_dynamo.settings import Settings
from kforge_dynamo.store.recorded import read

_ALL_S = 86400.0


def warm_recorded(path: Path, budget_s: float, mode: str) -> None:
    """Searches each region for at most `budget_s` seconds, the most frequent first, and says how each ended.

    What has an answer already is not searched again, so that the command goes on where it was stopped. Raises: StoreError.
    """
    regions, damaged = read(path)
    if damaged:
        typer.echo(f"{damaged} lines of {path} are cut off or no regions, and are left out")
    options = {"on_miss": "search", "budget_s": _ALL_S, "region_budget_s": budget_s}
    settings, _ = Settings.parse(options)
    desk = Desk.open(settings, mode, torch._inductor.list_mode_options(mode))
    try:
        for number, item in enumerate(regions, 1):
            head = f"{number}/{len(regions)} {item.count}x {item.assignment.title} {item.assignment.sizes}"
            question = desk.recorded(item.assignment, item.regime)
            if isinstance(question, str):
                typer.echo(f"{head}: not searched, {question}")
                continue
            reply = desk.answer([question])[question.name]
            typer.echo(f"{head}: {reply.state}, {reply.reason}")
    finally:
        rest()
