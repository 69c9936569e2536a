"""When a graph keeps its epoch, so that Inductor's caches hit, and when it gets a fresh one."""

from __future__ import annotations

import itertools
import types

import pytest
from store_records import KEY, standing, winner

from kforge_dynamo.records.outcome import State
from kforge_dynamo.store import epochs as module
from kforge_dynamo.store import state_text

GRAPH = "f" * 64


def nothing(name):
    return "not_searched"


def of(states):
    return lambda name: states.get(name, "not_searched")


def test_begin_of_an_unknown_graph_is_fresh_each_time_while_searching(store):
    assert store.epochs.begin(GRAPH, nothing, True) != store.epochs.begin(GRAPH, nothing, True)


def test_begin_of_an_unknown_graph_agrees_between_processes_that_do_not_search(store, reopen):
    store.put_winner(winner())
    first = store.epochs.begin(GRAPH, nothing, False)
    assert reopen().epochs.begin(GRAPH, nothing, False) == first
    assert reopen().epochs.begin("e" * 64, nothing, False) != first
    store.put_winner(winner((100, 100)))
    assert reopen().epochs.begin(GRAPH, nothing, False) != first


@pytest.mark.parametrize("searching", [True, False])
def test_same_states_keep_the_recorded_epoch(store, reopen, searching):
    states = {"a": "winner:1", "b": "no_winner:2"}
    epoch = store.epochs.begin(GRAPH, of(states), True)
    store.epochs.record(GRAPH, epoch, states)
    assert reopen().epochs.begin(GRAPH, of(states), searching) == epoch


@pytest.mark.parametrize("now", ["winner:2", "not_searched", "no_winner:1", "stale:1"])
@pytest.mark.parametrize("searching", [True, False])
def test_another_state_gives_a_fresh_epoch(store, reopen, now, searching):
    epoch = store.epochs.begin(GRAPH, nothing, searching)
    store.epochs.record(GRAPH, epoch, {"a": "winner:1", "b": "winner:9"})
    assert reopen().epochs.begin(GRAPH, of({"a": now, "b": "winner:9"}), searching) != epoch


@pytest.mark.parametrize("state", ["not_searched", "stale:1"])
def test_unsettled_states_keep_the_epoch_only_where_nothing_is_searched(store, state):
    store.epochs.record(GRAPH, "first", {"a": state})
    assert store.epochs.begin(GRAPH, of({"a": state}), False) == "first"
    assert store.epochs.begin(GRAPH, of({"a": state}), True) != "first"


def test_graph_without_regions_keeps_its_epoch(store, reopen):
    epoch = store.epochs.begin(GRAPH, nothing, True)
    store.epochs.record(GRAPH, epoch, {})
    store.put_winner(winner())
    for searching in (True, False):
        assert reopen().epochs.begin(GRAPH, nothing, searching) == epoch


def test_forward_and_backward_are_one_record(store, reopen):
    store.epochs.record(GRAPH, "epoch", {"forward": "winner:1"})
    reopen().epochs.record(GRAPH, "epoch", {"backward": "winner:2"})
    both = {"forward": "winner:1", "backward": "winner:2"}
    assert reopen().epochs.begin(GRAPH, of(both), True) == "epoch"
    assert reopen().epochs.begin(GRAPH, of(both | {"backward": "winner:3"}), True) != "epoch"
    assert reopen().epochs.begin(GRAPH, of(both | {"forward": "winner:3"}), True) != "epoch"


def test_two_processes_that_compile_at_once_keep_their_own_states(store):
    """Forward passes of both, then backward passes of both: neither mixes with the other."""
    for name in ("one", "two"):
        store.epochs.record(GRAPH, name, {"forward": f"winner:{name}"})
    for name in ("one", "two"):
        store.epochs.record(GRAPH, name, {"backward": f"winner:{name}"})
    assert store.epochs.begin(GRAPH, lambda name: "winner:one", True) == "one"
    assert store.epochs.begin(GRAPH, lambda name: "winner:two", True) == "two"
    assert store.epochs.begin(GRAPH, of({"forward": "winner:one", "backward": "winner:two"}), True) not in ("one", "two")


def test_old_epoch_is_found_again_when_its_states_are(store):
    store.epochs.record(GRAPH, "without", {"a": "not_searched"})
    store.epochs.record(GRAPH, "with", {"a": "winner:1"})
    assert store.epochs.begin(GRAPH, of({"a": "winner:1"}), False) == "with"
    assert store.epochs.begin(GRAPH, nothing, False) == "without"


def test_epoch_derived_from_the_store_is_not_one_that_was_recorded_with_other_states(store):
    """The compiler was upgraded: no entry changed, but the winner is stale now."""
    store.put_winner(winner())
    epoch = store.epochs.begin(GRAPH, of({"a": "winner:1"}), False)
    store.epochs.record(GRAPH, epoch, {"a": "winner:1"})
    assert store.epochs.begin(GRAPH, of({"a": "stale:1"}), False) != epoch


def test_six_steps_of_a_graph_s_life(store, reopen):
    """Compile cold with fallback; warm elsewhere; call winners; hit; an unrelated graph hits throughout; evict."""

    def state(name):
        return state_text(reopen().lookup(KEY, (8,)))

    def compiled(graph, searching, search=False):
        """As the backend does it: True when Inductor's cache would have hit."""
        place = reopen()
        epoch = place.epochs.begin(graph, state, searching)
        hit = (graph, epoch) in seen
        if not hit:
            if search and place.lookup(KEY, (8,)) is None:
                place.put_winner(winner())
            place.epochs.record(graph, epoch, {"region": state("region")} if graph == GRAPH else {})
            seen.add((graph, epoch))
        return hit

    seen: set[tuple[str, str]] = set()
    other = "0" * 64
    assert not compiled(GRAPH, False) and not compiled(other, False)
    assert compiled(GRAPH, False) and compiled(other, False)
    reopen().put_winner(winner())
    assert not compiled(GRAPH, False) and compiled(other, False)
    assert compiled(GRAPH, False) and compiled(GRAPH, True) and compiled(other, True)
    reopen().evict_key(KEY)
    assert compiled(GRAPH, False), "without a search, the graph of the first day is right again"
    assert not compiled(GRAPH, True, search=True) and compiled(other, True)
    assert compiled(GRAPH, True)


def test_replaced_winner_gives_a_fresh_epoch(store):
    def state(name):
        return state_text(store.lookup(KEY, (8,)))

    store.put_winner(winner(source="old"))
    store.epochs.record(GRAPH, "epoch", {"region": state("region")})
    assert store.epochs.begin(GRAPH, state, True) == "epoch"
    store.put_winner(winner(source="new"))
    assert store.epochs.begin(GRAPH, state, True) != "epoch"


def test_state_of_another_search_without_winner_gives_a_fresh_epoch(store):
    def state(name):
        return state_text(store.lookup(KEY, (8,)))

    store.put_standing(standing(budget_s=1.0))
    store.epochs.record(GRAPH, "epoch", {"region": state("region")})
    store.put_standing(standing(budget_s=2.0))
    assert store.lookup(KEY, (8,)).state is State.NO_WINNER
    assert store.epochs.begin(GRAPH, state, True) != "epoch"


def test_graphs_are_bounded_and_those_in_use_stay(store, monkeypatch):
    monkeypatch.setattr(module, "_GRAPHS", 20)
    clock = itertools.count(10**9, 100_000)
    monkeypatch.setattr(module, "time", types.SimpleNamespace(time=lambda: next(clock)))
    for number in range(60):
        store.epochs.record(f"graph {number}", "epoch", {"a": "winner:1"})
        assert store.epochs.begin("graph 0", of({"a": "winner:1"}), True) == "epoch", f"in use, dropped at {number}"
    assert len(store._index.names("epoch:")) <= 20


def test_epochs_of_a_graph_are_bounded(store):
    for number in range(30):
        store.epochs.record(GRAPH, f"epoch {number}", {"a": f"winner:{number}"})
    assert store.epochs.begin(GRAPH, of({"a": "winner:29"}), True) == "epoch 29"
    assert len(store._index.get(f"epoch:{GRAPH}")) < 2000


@pytest.mark.parametrize(
    "text", ["", "nonsense", "[]", '{"used": 1}', '{"epochs": [[1]], "used": 0}', '{"epochs": 3, "used": {}}']
)
def test_damaged_record_is_a_fresh_epoch_and_is_written_over(store, text):
    store._index.edit(lambda rows: rows.set(f"epoch:{GRAPH}", text))
    assert len(store.epochs.begin(GRAPH, nothing, True)) == 32
    store.epochs.record(GRAPH, "epoch", {"a": "winner:1"})
    assert store.epochs.begin(GRAPH, of({"a": "winner:1"}), True) == "epoch"
