"""`--ray` and `--all-devices` of `kforge warm`: searches on several devices or machines at once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Annotated

import torch
import typer

from kforge_dynamo.answers import spread
from kforge_dynamo.errors import SettingsError
from kforge_dynamo.scale.cluster import cluster_seats
from kforge_dynamo.scale.crew import Crew
from kforge_dynamo.scale.seats import Seat, local_seats, place_of

RayAddress = Annotated[
    str, typer.Option("--ray", metavar="ADDRESS", help="search on this Ray cluster; auto: the one of this machine")
]
AllDevices = Annotated[bool, typer.Option("--all-devices", help="search on every device of this machine at once")]


@contextlib.contextmanager
def crew(address: str, all_devices: bool, devices: Iterable[str], asked: str = "") -> Iterator[bool]:
    """Within it misses are searched by the crew that the words ask for; gives whether they ask for one.

    `devices` are torch's device types to search for, `asked` is the language model that is asked, if any.

    Raises: SettingsError; ToolchainError where no evaluator can be had.
    """
    if address and all_devices:
        raise SettingsError("--ray ADDRESS takes the devices of the cluster, --all-devices those of this machine: choose one")
    if not address and not all_devices:
        yield False
        return
    if asked:
        raise SettingsError(f"--ray and --all-devices spread searches without a language model; leave {asked} out")
    kinds = sorted(set(devices))
    seats: list[Seat] = []
    for kind in kinds:
        seats += cluster_seats(address, kind) if address else local_seats(kind)
    crew = Crew(seats, [place_of(torch.device(kind)) for kind in kinds])
    try:
        typer.echo(f"{crew.size} evaluators: {', '.join(seat.name for seat in seats)}", err=True)
        with spread(crew):
            yield True
        for words in crew.losses:
            typer.echo(f"lost on the way: {words}", err=True)
    finally:
        crew.close()
