"""Which device should run which stage of a pipeline: by measured winners where there are any, by the roofline elsewhere.

A stage is a file of recorded regions. Its time on a device is the sum of its regions' times, each as often as it was met. A
region's time is measured where the store has a winner that was timed on that device at exactly these sizes; else it is the
roofline's, which no kernel can beat: a bound, so a device that is known by bounds alone looks better than it is. What lies
between the regions, and moving data between devices, is not in these numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from kforge_dynamo.forge import floor_us
from kforge_dynamo.peaks import gpu_peaks
from kforge_dynamo.records.outcome import State
from kforge_dynamo.records.target import Peak, Target
from kforge_dynamo.store import Store, key_of
from kforge_dynamo.store.recorded import Recorded
from kforge_dynamo.targets import detect

_HOUR_US = 3600e6


@dataclass(frozen=True, slots=True)
class StageTime:
    """A stage on a device: microseconds of its measured regions and of those that are bounds; how many are neither."""

    stage: str
    device: str
    measured_us: float
    bound_us: float
    unknown: int
    dollars_an_hour: float | None

    @property
    def total_us(self) -> float | None:
        """The stage's time; None where a region of it is neither measured nor bounded."""
        return None if self.unknown else self.measured_us + self.bound_us

    @property
    def dollars(self) -> float | None:
        """What one run of the stage costs."""
        return None if self.total_us is None or self.dollars_an_hour is None else self.total_us / _HOUR_US * self.dollars_an_hour

    @property
    def measured(self) -> bool:
        """Whether every part of the time was measured."""
        return not self.unknown and not self.bound_us


def ceilings(device: str) -> tuple[Peak, ...]:
    """The ceilings of the device of this name: one that is here, else the datasheet's; none where neither is known."""
    return known_target(device).peaks


def known_target(device: str) -> Target:
    """The device of this name: one that is here, else as much of it as the datasheets say."""
    kinds = [torch.device("cpu"), *(torch.device("cuda", index) for index in range(torch.cuda.device_count()))]
    here = (target for target in map(detect, kinds) if target is not None and target.name == device)
    return next(here, None) or Target("", "", device, "", 1, None, None, (), gpu_peaks(device))


def stage_times(
    stages: Mapping[str, Sequence[Recorded]], devices: Mapping[str, float | None], store: Store
) -> list[list[StageTime]]:
    """One row a stage, one column a device; `devices` are names with dollars an hour, None where the price is not known."""
    targets = [known_target(name) for name in devices]
    return [
        [_stage_time(stage, regions, target, devices[target.name], store) for target in targets]
        for stage, regions in stages.items()
    ]


def best(row: Sequence[StageTime], by_cost: bool) -> StageTime | None:
    """The device of a stage with the least time, or the least cost; the first of equals; None where nothing is known."""

    def weight(item: StageTime) -> float | None:
        return item.dollars if by_cost else item.total_us

    known = [(value, item) for item in row if (value := weight(item)) is not None]
    return min(known, key=lambda pair: pair[0])[1] if known else None


def _stage_time(stage: str, regions: Sequence[Recorded], target: Target, price: float | None, store: Store) -> StageTime:
    measured = bound = 0.0
    unknown = 0
    for item in regions:
        timed = _measured_us(item, target, store)
        if timed is not None:
            measured += item.count * timed
            continue
        floor = floor_us(item.assignment.task, item.assignment.sizes, target)
        if floor is None:
            unknown += 1
        else:
            bound += item.count * floor
    return StageTime(stage, target.name, measured, bound, unknown, price)


def _measured_us(item: Recorded, target: Target, store: Store) -> float | None:
    """The winner's time on this device at these sizes; None where it was not taken there."""
    asked = item.assignment
    found = store.lookup(key_of(asked.task, target, asked.numerics), asked.sizes)
    if found is None or found.state is not State.WINNER or found.winner is None:
        return None
    if any(axis.low != axis.high for axis in found.winner.domain.ranges):
        return None  # which of its sizes was timed is not kept
    return next((t.candidate.median_us for t in found.winner.trial.timings if t.regime == item.regime), None)
