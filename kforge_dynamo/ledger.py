"""What kforge did in this process: counters, one report a region, and each logged fact at most once.

The counters are torch's own `torch._dynamo.utils.counters["kforge"]`, so that tools which print those show ours too.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch._dynamo.utils import counters  # read in torch 2.11 to 2.14: a defaultdict of Counter

COUNTERS = ("regions", "hits", "misses", "winners", "spliced", "calls", "fallback_calls", "rejected", "fallbacks", "repacks")
Gauge = Callable[[], int]

Listener = Callable[[str, str, str, str], None]

_log = logging.getLogger("kforge")
_lock = threading.Lock()
_said: set[str] = set()
_reports: list[RegionReport] = []
_listeners: list[Listener] = []
_gauges: dict[str, Gauge] = {}


@dataclass(frozen=True, slots=True)
class RegionReport:
    """One region of one compiled graph and what became of it.

    `state` is "winner", "no_winner", "not_searched", "stale", "rejected" or "pending"; `reason` says why in one sentence.
    Numbers are None where they were not measured. `place` is the digest under which the graph keeps what it does without,
    `splice` the name of this splice there, empty where nothing could be spliced. `schedule` holds the choices of the generator
    that made the kernel, `floor_us` the roofline's time: no kernel can take less.
    """

    graph: str
    title: str
    task: str
    sizes: tuple[int, ...] | None
    state: str
    reason: str
    speedup: float | None = None
    error_ratio: float | None = None
    scheme: str | None = None
    candidate_us: float | None = None
    region_us: float | None = None
    place: str = ""
    splice: str = ""
    schedule: str | None = None
    floor_us: float | None = None


def count(name: str, amount: int = 1) -> None:
    """Adds to the counter `name`."""
    counters["kforge"][name] += amount


def stats() -> dict[str, int]:
    """All counters of this process; see the README for their meaning."""
    live: Counter[str] = counters["kforge"]
    counted = {name: live[name] for name in COUNTERS} | {name: live[name] for name in live if name not in COUNTERS}
    return counted | {name: gauge() for name, gauge in _gauges.items()}


def measure(name: str, gauge: Gauge) -> None:
    """`stats` asks `gauge` for the number `name` from now on: a state of now, not a count."""
    _gauges[name] = gauge


def add_report(report: RegionReport) -> None:
    """Keeps what became of a region."""
    with _lock:
        _reports.append(report)


def update_reports(task: str, state: str, reason: str) -> None:
    """Changes the reports of the task with this digest: a background search ended."""
    with _lock:
        _reports[:] = [replace(item, state=state, reason=reason) if item.task == task else item for item in _reports]


def report() -> tuple[RegionReport, ...]:
    """The reports of all regions met since the start or the last `reset`."""
    with _lock:
        return tuple(_reports)


def reset() -> None:
    """Forgets counters, reports and what was already logged."""
    with _lock:
        counters["kforge"].clear()
        _reports.clear()
        _said.clear()


def tell(event: str, title: str, detail: object, more: str = "") -> None:
    """Passes an event ("partition", "region", "search", "settled") to whoever listens: a command, a progress display."""
    for listener in tuple(_listeners):
        listener(event, title, str(detail), more)


def heard() -> bool:
    """Whether anybody listens: what is dear to say need not be said to nobody."""
    return bool(_listeners)


def listen(listener: Listener) -> Callable[[], None]:
    """Calls `listener` for each event from now on, until the function that is returned is called."""
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)


def say_once(message: str, level: int = logging.WARNING) -> None:
    """Logs `message` unless this process has already said it."""
    with _lock:
        if message in _said:
            return
        _said.add(message)
    _log.log(level, message)
