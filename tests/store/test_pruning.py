"""A cache that outgrows its limit: the longest unused goes first, and nothing that a living process uses."""

from __future__ import annotations

import dataclasses
import os
import signal
import time

import pytest
from store_records import KEY, candidate, in_a_child, winner

from kforge_dynamo.records.codec import digest
from kforge_dynamo.store import Access, close_stores, open_store, usage

LIMIT = 2_000_000


def numbered(number: int, size: int = 20_000):
    return winner(source=f"{number:06d}" + "x" * size, key=dataclasses.replace(KEY, task=f"{number:064d}"))


def numbers(place) -> set[int]:
    return {int(entry.record.trial.candidate.source[:6]) for layer, entry in place.entries() if layer == "user"}


@pytest.fixture
def aged(store):
    """Fifty entries, of which each was used a day after the one before."""
    for number in range(50):
        store.put_winner(numbered(number))
    days = {f"used:entry:{digest(numbered(number))}": repr(time.time() + 86400.0 * number) for number in range(50)}
    store._index.edit(lambda rows: [rows.set(name, text) for name, text in days.items()])
    return store


def test_prune_removes_the_longest_unused_down_to_the_size(aged):
    before = aged.prune(1e12)
    assert (before.entries, before.kernels) == (0, 0) and before.after_bytes > 1_000_000
    done = aged.prune(before.after_bytes * 0.6)
    kept = numbers(aged)
    assert done.entries == 50 - len(kept) > 10 and kept == set(range(50 - len(kept), 50))
    assert done.after_bytes < before.after_bytes * 0.7 and aged.health() is None
    assert aged.lookup(dataclasses.replace(KEY, task=f"{49:064d}"), (8,)).winner == numbered(49)


def test_prune_spares_what_a_living_process_uses_and_takes_it_when_that_has_ended(aged, tmp_path):
    """The child uses the three that would go first."""
    ready, told = os.pipe()
    go_on, may_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            close_stores()
            place = open_store(str(tmp_path / "cache"))
            for number in (0, 1, 2):
                place.use(numbered(number))
            os.write(told, b"x")
            os.read(go_on, 1)
        finally:
            os._exit(0)
    os.read(ready, 1)
    done = aged.prune(0.0)
    assert done.in_use == 3 and numbers(aged) == {0, 1, 2} and done.entries == 47
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(may_end)
    assert aged.prune(0.0).entries == 3 and numbers(aged) == set()
    assert list((tmp_path / "cache" / "v1" / "use").glob("*.use")) == []


def test_use_makes_an_entry_recent_after_its_process_has_ended(store, tmp_path):
    for number in range(20):
        store.put_winner(numbered(number))
    time.sleep(0.01)
    assert in_a_child(lambda: open_store(str(tmp_path / "cache")).use(numbered(3))) == 0
    for _ in range(2):  # the second time the note is a row
        store.prune(1e12)
    half = store.prune(1e12).after_bytes * 0.5
    store.prune(half)
    assert 3 in numbers(store) and 4 not in numbers(store)


def test_entry_removed_between_lookup_and_use_is_put_back(store, reopen):
    store.put_winner(numbered(1))
    other = reopen()
    assert other.prune(0.0).entries == 1
    store.use(numbered(1))
    assert numbers(reopen()) == {1}


def test_cache_beyond_its_limit_prunes_itself_and_says_so_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("kforge_dynamo.store.layers._PUTS_A_LOOK", 10)
    place = open_store(str(tmp_path / "cache"), Access(limit_bytes=LIMIT))
    for number in range(150):
        place.put_winner(numbered(number))
    assert place._home is not None and 149 in numbers(place) and 0 not in numbers(place)
    assert len(numbers(place)) * 20_000 < LIMIT * 1.3
    assert len(caplog.messages) < 20 and all("KFORGE_CACHE_MIB" in line for line in caplog.messages)


def test_prune_takes_kernels_and_what_was_put_aside_too(store, tmp_path):
    def build(folder):
        (folder / "a.so").write_bytes(b"x" * 100_000)
        return folder / "a.so"

    store._artifacts = None
    assert in_a_child(lambda: open_store(str(tmp_path / "cache")).artifact(candidate(), build)) == 0
    store._index.edit(lambda rows: rows.set("aside:x", "y" * 1000))
    (tmp_path / "cache" / "v1" / "index.damaged-1").mkdir()
    done = store.prune(0.0)
    assert done.kernels == 1 and store.artifacts().size_bytes() == 0
    assert store._index.names("aside:") == [] and not (tmp_path / "cache" / "v1" / "index.damaged-1").exists()
    held = store.artifact(candidate(), build)
    assert store.prune(0.0).in_use == 1 and held.exists()


def test_unused_for_so_long_goes_whatever_the_size(store):
    for number in range(5):
        store.put_winner(numbered(number))
    old = f"used:entry:{digest(numbered(0))}"
    assert store.prune(1e12, unused_s=3600.0).entries == 0
    names = {f"entry:{digest(numbered(number))}" for number in range(5)}
    assert set(store._index.sizes("entry:")) == names and old.removeprefix("used:") in names
    assert store.prune(1e12, unused_s=0.0).entries == 5


def test_prune_beside_writers_loses_nothing_that_is_new(store, tmp_path):
    """Four processes write while this one prunes without end: what was written last is there."""

    def write(first: int) -> None:
        place = open_store(str(tmp_path / "cache"))
        for number in range(first, first + 15):
            assert place.put_winner(numbered(number, 2000))
            place.use(numbered(number, 2000))

    children = []
    for number in range(4):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                close_stores()
                write(number * 100)
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    ended: list[int] = []
    while len(ended) < 4:
        store.prune(100_000.0)
        for child in set(children) - set(ended):
            if os.waitpid(child, os.WNOHANG)[0]:
                ended.append(child)
    assert store.health() is None
    assert all(entry.problem is None for _, entry in store.entries())


def test_file_system_without_locks_counts_a_file_as_held_while_it_is_young(store, monkeypatch, tmp_path):
    def none(*words):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(usage.fcntl, "flock", none)
    store.put_winner(numbered(1))
    store.use(numbered(1))
    assert store.prune(0.0).in_use == 1 and numbers(store) == {1}
    path = next((tmp_path / "cache" / "v1" / "use").glob("*.use"))
    os.utime(path, (1.0, 1.0))
    assert store.prune(0.0).entries == 1


def test_line_of_use_that_was_cut_off_names_nothing(store, tmp_path):
    store.put_winner(numbered(1))
    folder = tmp_path / "cache" / "v1" / "use"
    folder.mkdir()
    (folder / "1-a.use").write_bytes(b"entry:abc\nentry:" + b"\xff" * 5)
    assert store._usage.last_used().keys() == {"entry:abc"} and store._usage.held() == set()
