"""Which answer the store gives for which sizes, software and terms."""

from __future__ import annotations

import dataclasses
import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_records import KEY, MADE_WITH, domain, standing, winner

from kforge_dynamo.records.codec import digest
from kforge_dynamo.records.outcome import State, Terms
from kforge_dynamo.store import Found, close_stores, open_store, state_text


def same_software(language):
    return dataclasses.replace(MADE_WITH, language=language, created="2027-01-01T00:00:00+00:00")


def test_lookup_in_an_empty_store_finds_nothing(store):
    assert store.lookup(KEY, (8,)) is None


def test_lookup_of_sizes_inside_the_ranges_returns_the_winner_as_it_was(store, reopen):
    stored = winner((1, 64), (8, 8))
    assert store.put_winner(stored)
    for place in (store, reopen()):
        found = place.lookup(KEY, (64, 8), same_software)
        assert found.state is State.WINNER and found.winner == stored and found.layer == "user"


@pytest.mark.parametrize("sizes", [(0,), (65,), (1, 1), ()])
def test_lookup_of_sizes_outside_the_ranges_finds_nothing(store, sizes):
    store.put_winner(winner((1, 64)))
    assert store.lookup(KEY, sizes) is None


@pytest.mark.parametrize("field", ["task", "device", "numerics", "schema"])
def test_lookup_with_another_key_finds_nothing(store, field):
    store.put_winner(winner())
    other = dataclasses.replace(KEY, **{field: 2 if field == "schema" else "x"})
    assert store.lookup(other, (8,)) is None


def test_lookup_prefers_the_narrowest_range(store, reopen):
    narrow, wide = winner((8, 8), source="narrow"), winner((1, 64), source="wide")
    for record in (narrow, wide):
        store.put_winner(record)
    place = reopen()
    assert place.lookup(KEY, (8,)).winner == narrow
    assert place.lookup(KEY, (9,)).winner == wide


def test_put_of_a_winner_for_the_same_range_replaces_the_old_one(store, reopen):
    store.put_winner(winner(source="old"))
    store.put_winner(winner(source="new"))
    assert [entry.record.trial.candidate.source for _, entry in reopen().entries()] == ["new"]


@pytest.mark.parametrize("field", ["torch", "compiler", "driver", "kforge"])
def test_lookup_under_other_software_returns_a_seed_and_says_what_differs(store, field):
    store.put_winner(winner())
    found = store.lookup(KEY, (8,), lambda language: dataclasses.replace(MADE_WITH, **{field: "newer"}))
    assert found.state is State.STALE and found.winner is not None
    assert field in found.reason and "newer" in found.reason


def test_lookup_without_the_language_returns_a_seed(store):
    store.put_winner(winner())
    assert store.lookup(KEY, (8,), lambda language: None).state is State.STALE


def test_lookup_prefers_a_present_winner_to_a_narrower_stale_one(store):
    present, stale = winner((1, 64)), winner((8, 8), made=dataclasses.replace(MADE_WITH, torch="2.12.0"))
    store.put_winner(present)
    store.put_winner(stale)
    assert store.lookup(KEY, (8,), same_software).winner == present


@pytest.mark.parametrize(
    ("terms", "state"),
    [
        (None, State.NO_WINNER),
        (Terms("builtin 1", ("cpp",), 10.0, 0), State.NO_WINNER),
        (Terms("builtin 1", (), 5.0, 0), State.NO_WINNER),
        (Terms("builtin 1", ("cpp",), 11.0, 0), State.NOT_SEARCHED),
        (Terms("builtin 2", ("cpp",), 10.0, 0), State.NOT_SEARCHED),
        (Terms("builtin 1", ("cpp", "triton"), 10.0, 0), State.NOT_SEARCHED),
    ],
)
def test_no_winner_stands_until_more_can_be_tried(store, terms, state):
    store.put_standing(standing())
    found = store.lookup(KEY, (8,), terms=terms)
    assert found.state is state
    assert found.standing.state is State.NO_WINNER


def test_not_searched_never_hides_another_answer(store):
    store.put_winner(winner((1, 64)))
    store.put_standing(standing((8, 8), state=State.NOT_SEARCHED))
    assert store.lookup(KEY, (8,)).state is State.WINNER
    store.put_standing(standing((100, 100)))
    store.put_standing(standing((100, 100), state=State.NOT_SEARCHED))
    assert store.lookup(KEY, (100,)).state is State.NO_WINNER


def test_no_winner_found_after_an_upgrade_is_the_answer_instead_of_the_stale_winner(store):
    store.put_winner(winner(made=dataclasses.replace(MADE_WITH, torch="2.12.0")))
    assert store.lookup(KEY, (8,), same_software).state is State.STALE
    store.put_standing(standing())
    assert store.lookup(KEY, (8,), same_software).state is State.NO_WINNER


def test_winner_takes_the_place_of_standings_inside_its_range(store, reopen):
    for record in (standing((8, 8)), standing((9, 9), state=State.NOT_SEARCHED)):
        store.put_standing(record)
    store.put_winner(winner((1, 64)))
    assert [entry.kind for _, entry in reopen().entries()] == ["winner"]


def test_put_of_the_same_standing_again_changes_nothing(store):
    store.put_standing(standing())
    before = store._version()
    store.put_standing(standing())
    assert store._version() == before
    store.put_standing(standing(budget_s=20.0))
    assert store._version() != before


def test_standings_put_together_are_one_change(store, reopen):
    standings = [standing((size, size), state=State.NOT_SEARCHED) for size in range(1, 51)]
    assert store.put_standing(*standings)
    place = reopen()
    assert all(place.lookup(KEY, (size,)).state is State.NOT_SEARCHED for size in range(1, 51))
    before = place._version()
    assert place.put_standing(*standings) and place._version() == before


def test_put_standing_of_a_winner_state_is_refused(store):
    with pytest.raises(ValueError, match="no_winner or not_searched"):
        store.put_standing(dataclasses.replace(standing(), state=State.STALE))


def test_found_with_both_a_winner_and_a_standing_cannot_be_built():
    with pytest.raises(ValueError, match="winner"):
        Found(State.WINNER, "user", winner(), standing(), "")
    with pytest.raises(ValueError, match="winner"):
        Found(State.NO_WINNER, "user", winner(), None, "")


def test_winner_of_a_candidate_is_found_whatever_its_sizes(store, reopen):
    records = [winner((low, low), source=f"kernel {low}") for low in (1, 2, 3)]
    for record in records:
        store.put_winner(record)
    place = reopen()
    for record in records:
        assert place.winner_of(KEY, digest(record.trial.candidate)) == record
    assert place.winner_of(KEY, "0" * 64) is None


def test_evict_removes_what_was_named_and_nothing_else(store, reopen):
    first, second = winner((1, 1)), winner((2, 2))
    store.put_winner(first)
    store.put_winner(second)
    assert store.evict(digest(first)[:12]) == 1
    assert store.lookup(KEY, (1,)) is None and store.lookup(KEY, (2,)).winner == second
    assert reopen().evict_key(KEY, (2,)) == 1
    assert reopen().lookup(KEY, (2,)) is None


def test_clear_removes_every_entry_and_the_store_stays_usable(store, reopen, tmp_path):
    for size in range(1, 6):
        store.put_winner(winner((size, size)))
    (tmp_path / "cache" / "v1" / "index.damaged-1").mkdir()
    store.epochs.record("graph", "epoch", {"task": "not_searched"})
    assert store.clear() == (5, 0)
    assert list(reopen().entries()) == []
    assert {path.name for path in (tmp_path / "cache" / "v1").iterdir()} <= {"key", "lock", "index", "artifacts"}
    assert store.put_winner(winner()) and reopen().lookup(KEY, (8,)) is not None


def test_state_text_identifies_the_answer(store):
    texts = set()
    for record in (winner(source="one"), winner(source="two")):
        store.put_winner(record)
        texts.add(state_text(store.lookup(KEY, (8,))))
    store.evict_key(KEY)
    assert state_text(store.lookup(KEY, (8,))) == "not_searched"
    for budget_s in (1.0, 2.0):
        store.put_standing(standing(budget_s=budget_s))
        texts.add(state_text(store.lookup(KEY, (8,))))
    store.put_standing(standing((9, 9), state=State.NOT_SEARCHED))
    found = store.lookup(KEY, (8,))
    assert state_text(found) == state_text(dataclasses.replace(found, name="")), "the same before and after it was stored"
    assert len(texts) == 4 and all(text.startswith(("winner:", "no_winner:")) for text in texts)


def test_entries_of_a_key_are_bounded_and_the_newest_stay(store, monkeypatch):
    monkeypatch.setattr("kforge_dynamo.store.entries._PER_KEY", 8)
    for size in range(1, 21):
        store.put_winner(winner((size, size)))
    assert store.lookup(KEY, (20,)) is not None and store.lookup(KEY, (1,)) is None
    assert sum(1 for _ in store.entries()) == 8


@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 12), st.integers(0, 6), st.sampled_from(["winner", "no_winner", "not_searched"])),
        min_size=1,
        max_size=8,
    )
)
def test_lookup_equals_a_search_of_all_that_was_put(tmp_path_factory, steps):
    close_stores()
    place = open_store(str(tmp_path_factory.mktemp("cache")))
    alive: list[tuple[str, object]] = []
    for number, (low, width, kind) in enumerate(steps):
        span = (low, low + width)
        record = (
            winner(span, source=str(number)) if kind == "winner" else standing(span, state=State(kind), budget_s=float(number))
        )
        place.put_winner(record) if kind == "winner" else place.put_standing(record)
        alive.append((kind, record))
    for size in range(1, 20):
        held = [(kind, record) for kind, record in alive if record.domain.holds((size,))]
        found = place.lookup(KEY, (size,))
        if not held:
            assert found is None
            continue
        assert found is not None
        assert found.state.value == min((kind for kind, _ in held), key=["winner", "no_winner", "not_searched"].index)
        if found.winner is not None:
            spans = [record.domain for kind, record in held if kind == "winner"]
            narrowest = min(item.ranges[0].high - item.ranges[0].low for item in spans)
            assert found.winner.domain.ranges[0].high - found.winner.domain.ranges[0].low == narrowest


@pytest.mark.alone
def test_hit_in_a_full_store_takes_less_than_a_millisecond(store, reopen):
    for name in range(200):
        key = dataclasses.replace(KEY, task=f"{name:064d}")
        store.put_winner(winner(source="x" * 12000, key=key))
    place = reopen()
    place.lookup(KEY, (8,), same_software)
    spent = []
    for name in itertools.chain(range(0, 200, 10)):
        key = dataclasses.replace(KEY, task=f"{name:064d}")
        place.lookup(key, (8,), same_software)
        started = time.perf_counter()
        assert place.lookup(key, (8,), same_software) is not None
        spent.append(time.perf_counter() - started)
    assert sorted(spent)[len(spent) // 2] < 1e-3


def test_domain_of_a_lookup_is_checked_in_the_entry_and_not_in_its_listing(store):
    """A line of the listing that claims more than its entry does not widen the entry."""
    store.put_winner(winner((1, 4)))
    name = f"head:{digest(KEY)}"
    text = store._index.get(name)
    store._index.edit(lambda rows: rows.set(name, text.replace('"high":4', '"high":4000')))
    assert store.lookup(KEY, (100,)) is None
    assert store.lookup(KEY, (4,)).winner.domain == domain((1, 4))
