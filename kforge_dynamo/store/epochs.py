"""Graph epochs: what makes Inductor compile a graph again when the answers for its regions have changed.

Inductor's caches replay the day of compilation: on a hit our pass does not run. So the epoch is part of Inductor's key.
For each graph the store keeps the epochs it was compiled under, each with the states that the tasks of its forward and
backward passes had then. `begin` gives out an epoch whose states are those of now, so that Inductor hits; else a fresh one.

A state is a text that identifies the answer: "winner:<digest>", "stale:<digest>", "no_winner:<digest>", "not_searched".
Where a process may search, a graph with "not_searched" or "stale" states always gets a fresh epoch.

Beside its epochs a graph keeps the splices that made it slower: `left_out` names them, with the reason.

A process that does not search gets its fresh epoch from the graph, the version of the store's entries and the epochs
recorded so far, not from chance: all ranks that read one snapshot, and all processes where nothing can be recorded, agree on
it, and while no entry changes it names the same answers.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

from kforge_dynamo.store.database import Change, Rows
from kforge_dynamo.store.rows import Index

CurrentState = Callable[[str], str]
"""The state of a task now, by the name under which it was recorded."""

UNSETTLED = ("not_searched", "stale")
"""What a state begins with where a search may change it."""

_PER_GRAPH = 8
_GRAPHS = 4096
_DAY_S = 86400
_COUNT = "epochs"


class Epochs:
    """The epochs in `index`; `version` is that of the entries beside them."""

    def __init__(self, index: Index, version: Callable[[], str | None]) -> None:
        self._index = index
        self._version = version

    def begin(self, graph: str, current: CurrentState, searching: bool) -> str:
        """The epoch to compile the graph with this digest under. `searching` says whether a miss would be searched now."""
        recorded = _parse(self._index.get(_name(graph)))["epochs"]
        for epoch, states in reversed(recorded):
            if _holds(states, current, searching):
                self._touch(graph)
                return str(epoch)
        if searching:
            return secrets.token_hex(16)
        facts = json.dumps([graph, self._version(), recorded], sort_keys=True)
        return hashlib.sha256(facts.encode()).hexdigest()[:32]

    def record(self, graph: str, epoch: str, states: Mapping[str, str]) -> bool:
        """Adds the states that one pass of the graph saw under `epoch`; True when they are on disk.

        A graph without regions records no states and keeps its epoch for ever.
        """
        return self._index.edit(_record(graph, epoch, dict(states), int(time.time())))

    def leave_out(self, place: str, splices: Mapping[str, str]) -> bool:
        """Sets which splices the graph with this digest does without, each with the reason; True when that is on disk."""
        return self._index.edit(lambda rows: rows.set(f"left_out:{place}", json.dumps(dict(splices), sort_keys=True)))

    def left_out(self, place: str) -> dict[str, str]:
        """What `leave_out` has set; nothing where the row is damaged."""
        try:
            found = json.loads(self._index.get(f"left_out:{place}") or "{}")
            return {str(name): str(reason) for name, reason in found.items()}
        except (ValueError, AttributeError):
            return {}

    def _touch(self, graph: str) -> None:
        """Notes once a day that the graph is in use."""
        now = int(time.time())
        if now - _parse(self._index.get(_name(graph)))["used"] > _DAY_S:
            self._index.edit(_mark(graph, now))


def _holds(states: Mapping[str, str], current: CurrentState, searching: bool) -> bool:
    if searching and any(state.startswith(UNSETTLED) for state in states.values()):
        return False
    return all(current(task) == state for task, state in states.items())


def _record(graph: str, epoch: str, states: dict[str, str], now: int) -> Change:
    def change(rows: Rows) -> None:
        text = rows.get(_name(graph))
        data = _parse(text)
        before = dict(data["epochs"]).get(epoch, {})
        others = [item for item in data["epochs"] if item[0] != epoch]
        data = {"used": now, "epochs": [*others[1 - _PER_GRAPH :], [epoch, before | states]]}
        rows.set(_name(graph), json.dumps(data, sort_keys=True))
        if text is None:
            _bound(rows, graph, now)

    return change


def _mark(graph: str, now: int) -> Change:
    def change(rows: Rows) -> None:
        data = _parse(rows.get(_name(graph)))
        if data["epochs"]:
            rows.set(_name(graph), json.dumps(data | {"used": now}, sort_keys=True))

    return change


def _bound(rows: Rows, graph: str, now: int) -> None:
    """Keeps the list of graphs in order of first use, and drops from its older half those not used for longest."""
    try:
        graphs = [str(item) for item in json.loads(rows.get(_COUNT) or "[]")]
    except (ValueError, TypeError):
        graphs = []
    graphs = [item for item in graphs if item != graph] + [graph]
    if len(graphs) > _GRAPHS:
        by_use = sorted(graphs[:-1], key=lambda item: int(_parse(rows.get(_name(item)))["used"]))
        gone = set(by_use[: _GRAPHS // 4])
        for item in gone:
            rows.delete(_name(item))
        graphs = [item for item in graphs if item not in gone]
    rows.set(_COUNT, json.dumps(graphs))


def _name(graph: str) -> str:
    return f"epoch:{graph}"


def _parse(text: str | None) -> dict[str, Any]:
    """The row as `{"used": seconds, "epochs": [[epoch, states], ...]}`, oldest epoch first; empty where it is damaged."""
    nothing: dict[str, Any] = {"used": 0, "epochs": []}
    if text is None:
        return nothing
    try:
        data = json.loads(text)
        epochs = [(str(epoch), {str(task): str(state) for task, state in states.items()}) for epoch, states in data["epochs"]]
        return {"used": int(data["used"]), "epochs": epochs}
    except (ValueError, TypeError, KeyError, AttributeError):
        return nothing
