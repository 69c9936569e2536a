"""`kforge warm --recorded FILE`: the regions that a running job met, searched without its model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import typer

from kforge_dynamo import ledger
from kforge_dynamo.answers import Desk, Inquiry, Reply
from kforge_dynamo.cli.crews import crew
from kforge_dynamo.evaluation import rest
from kforge_dynamo.settings import Settings
from kforge_dynamo.store.recorded import read

_ALL_S = 86400.0


def warm_recorded(path: Path, budget_s: float, mode: str, address: str = "", all_devices: bool = False) -> None:
    """Searches each region for at most `budget_s` seconds, the most frequent first, and says how each ended.

    On the devices of a crew (`cli.crews`) several are searched at once, those of the largest estimated gain first.

    What has an answer already is not searched again, so that the command goes on where it was stopped. Raises: StoreError.
    """
    regions, damaged = read(path)
    if damaged:
        typer.echo(f"{damaged} lines of {path} are cut off or no regions, and are left out")
    options = {"on_miss": "search", "budget_s": _ALL_S, "region_budget_s": budget_s}
    settings, _ = Settings.parse(options)
    desk = Desk.open(settings, mode, torch._inductor.list_mode_options(mode))
    try:
        with crew(address, all_devices, [item.assignment.device for item in regions]) as together:
            questions = [desk.recorded(item.assignment, item.regime) for item in regions]
            known = _together(desk, [item for item in questions if not isinstance(item, str)]) if together else {}
            for number, (item, question) in enumerate(zip(regions, questions, strict=True), 1):
                head = f"{number}/{len(regions)} {item.count}x {item.assignment.title} {item.assignment.sizes}"
                if isinstance(question, str):
                    typer.echo(f"{head}: not searched, {question}")
                    continue
                reply = known[question.name] if together else desk.answer([question])[question.name]
                typer.echo(f"{head}: {reply.state}, {reply.reason}")
    finally:
        rest()


def _together(desk: Desk, questions: Sequence[Inquiry]) -> dict[str, Reply]:
    """Asks everything at once, and tells on stderr when a search ends."""

    def show(event: str, title: str, detail: str, more: str) -> None:
        if event == "settled":
            typer.echo(f"ended: {title}: {detail}, {more}", err=True)

    silence = ledger.listen(show)
    try:
        return desk.answer(questions)
    finally:
        silence()
