"""Broken, read-only, full and foreign folders: a miss, one line, and a store that can be used afterwards."""

from __future__ import annotations

import logging
import os
import pickle
import resource
import signal
import sqlite3
import stat

import diskcache
import pytest
from store_records import KEY, in_a_child, winner

from kforge_dynamo.records.codec import digest
from kforge_dynamo.store import open_store
from kforge_dynamo.store.database import TextDisk
from kforge_dynamo.store.rows import Index

DATABASE = "v1/index/cache.db"


def test_every_file_cut_in_half_is_a_miss_and_the_cache_heals(store, reopen, tmp_path, caplog):
    for size in range(1, 40):
        store.put_winner(winner((size, size), source="x" * 5000))
    store.artifact(winner().trial.candidate, lambda folder: _write(folder / "a.so"))
    store._index.close()
    for path in (tmp_path / "cache").rglob("*"):
        if path.is_file():
            os.truncate(path, path.stat().st_size // 2)
    with caplog.at_level(logging.WARNING, "kforge"):
        place = reopen()
        assert all(place.lookup(KEY, (size,)) is None for size in range(1, 40))
        assert place.put_winner(winner())
    assert 0 < len(caplog.messages) <= 4
    healed = reopen()
    assert healed.lookup(KEY, (8,)).winner == winner()
    assert healed.health() is None
    assert healed.artifact(winner().trial.candidate, lambda folder: _write(folder / "a.so")).read_bytes() == b"machine code"


def _write(path):
    path.write_bytes(b"machine code")
    return path


@pytest.mark.parametrize("harm", ["garbage", "empty", "header", "page", "folder", "no table", "other table", "text as bytes"])
def test_damaged_database_is_a_miss_and_a_new_one_is_made(store, reopen, tmp_path, harm):
    for size in range(1, 60):
        store.put_winner(winner((size, size), source="y" * 3000))
    store._index.close()
    path = tmp_path / "cache" / DATABASE
    for name in ("cache.db-wal", "cache.db-shm"):
        path.with_name(name).unlink(missing_ok=True)
    _harm(path, harm)
    place = reopen()
    for size in range(1, 60):
        found = place.lookup(KEY, (size,))
        assert found is None or found.winner == winner((size, size), source="y" * 3000)
    for size in range(1, 4):
        place.put_winner(winner((size, size), source="new"))
    healed = reopen()
    assert [healed.lookup(KEY, (size,)).winner.trial.candidate.source for size in range(1, 4)] == ["new"] * 3


def _harm(path, harm):
    if harm == "garbage":
        path.write_bytes(os.urandom(20000))
    elif harm == "empty":
        path.write_bytes(b"")
    elif harm == "header":
        path.write_bytes(b"\0" * 100 + path.read_bytes()[100:])
    elif harm == "page":
        data = path.read_bytes()
        path.write_bytes(data[:4096] + os.urandom(len(data) - 4096))
    elif harm == "folder":
        path.unlink()
        path.mkdir()
    else:
        with sqlite3.connect(path) as connection:
            connection.execute("DROP TABLE Cache" if harm != "text as bytes" else "UPDATE Cache SET value = CAST(value AS BLOB)")
            if harm == "other table":
                connection.execute("CREATE TABLE Cache (key TEXT, something INTEGER)")
        connection.close()


def test_removed_folder_is_noticed_by_a_process_that_has_it_open(store, reopen, tmp_path):
    store.put_winner(winner((1, 1)))
    (tmp_path / "cache" / "v1" / "index").rename(tmp_path / "gone")
    assert store.put_winner(winner((2, 2)))
    assert reopen().lookup(KEY, (2,)).winner == winner((2, 2))


def test_pickled_row_is_refused_and_its_code_does_not_run(store, reopen, tmp_path):
    class Payload:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    store.put_winner(winner())
    planted = diskcache.Cache(str(tmp_path / "cache" / "v1" / "index"))
    for name in (f"head:{digest(KEY)}", f"entry:{digest(winner())}", "epoch:graph", "version"):
        planted.set(name, Payload())
    planted.set(Payload(), "a pickled key")
    planted.close()
    place = reopen()
    assert place.lookup(KEY, (8,)) is None
    assert list(place.entries()) == [] or place.lookup(KEY, (8,)) is None
    assert len(place.epochs.begin("graph", lambda name: "", True)) == 32
    assert not (tmp_path / "ran").exists()
    pickle.loads(pickle.dumps(Payload()))
    assert (tmp_path / "ran").exists(), "the payload would have shown that it ran"


@pytest.mark.parametrize("value", [b"bytes", 3, 1.5, None, ("a",), {"a": 1}])
def test_rows_hold_nothing_but_text(tmp_path, value):
    disk = TextDisk(str(tmp_path))
    with pytest.raises(TypeError, match="text"):
        disk.store(value, read=False)
    with pytest.raises(TypeError, match="text"):
        disk.put(value)


def test_full_disk_keeps_entries_in_memory_and_stores_them_when_there_is_room(store, reopen, tmp_path, monkeypatch):
    """The limit on file sizes stands for a full disk: writes beyond it fail in the same place."""
    monkeypatch.setattr("kforge_dynamo.store.rows._RETRY_S", 0.0)
    store.put_winner(winner((1, 1)))

    def work():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        place = open_store(str(tmp_path / "cache"))
        size = (tmp_path / "cache" / DATABASE).stat().st_size
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        big = winner((2, 2), source="z" * 400_000)
        assert not place.put_winner(big)
        assert place.lookup(KEY, (2,)).winner == big
        assert place.lookup(KEY, (1,)).winner == winner((1, 1))
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        assert place.put_winner(winner((3, 3)))

    assert in_a_child(work) == 0
    place = reopen()
    assert [place.lookup(KEY, (size,)) is not None for size in (1, 2, 3)] == [True, True, True]
    assert place.health() is None


def test_read_only_folder_answers_and_keeps_new_entries_for_the_process(plain_user):
    def work(folder):
        path = folder / "cache"
        assert open_store(str(path)).put_winner(winner((1, 1)))
        open_store(str(path))._index.close()
        for each in (path / "v1" / "index", path / "v1", path):
            each.chmod(0o500)
        from_new_process(path)
        for each in (path, path / "v1", path / "v1" / "index"):
            each.chmod(0o700)
        assert len(list(open_store(str(path)).entries())) == 1

    def from_new_process(path):
        def inner():
            place = open_store(str(path))
            assert not place.folder.writable and "read" in place.folder.problem
            assert place.lookup(KEY, (1,)).winner == winner((1, 1))
            assert not place.put_winner(winner((2, 2)))
            assert place.lookup(KEY, (2,)).winner == winner((2, 2))
            assert place.lookup(KEY, (3,)) is None
            assert len(list(place.entries())) == 2
            made = place.artifact(winner().trial.candidate, lambda home: _write(home / "a.so"))
            assert made.read_bytes() == b"machine code"
            first = place.epochs.begin("graph", lambda name: "", False)
            assert first == place.epochs.begin("graph", lambda name: "", False)

        assert in_a_child(inner) == 0

    plain_user(work)


def test_read_only_folder_without_a_log_is_read(store, tmp_path):
    """A database in a read-only image: its shared-memory file cannot be made."""
    store.put_winner(winner())
    store._index.close()
    index = Index(tmp_path / "cache" / "v1" / "index", writable=False)
    assert index.get(f"entry:{digest(winner())}") is not None
    assert len(index.names("entry:")) == 1
    assert index.get("entry:none") is None


def test_file_in_the_place_of_the_folder_leaves_a_store_that_works(tmp_path, caplog):
    (tmp_path / "cache").write_text("not a folder")
    with caplog.at_level(logging.WARNING, "kforge"):
        place = open_store(str(tmp_path / "cache"))
    assert "cache" in caplog.text and "KFORGE_CACHE_DIR" in caplog.text
    assert place.put_winner(winner()) and place.lookup(KEY, (8,)) is not None
    place.clear()


def test_file_in_the_place_of_an_inner_folder_leaves_a_store_that_works(tmp_path):
    (tmp_path / "cache").mkdir(mode=0o700)
    (tmp_path / "cache" / "v1").write_text("not a folder")
    place = open_store(str(tmp_path / "cache"))
    assert not place.put_winner(winner())
    assert place.lookup(KEY, (8,)).winner == winner()


def test_locked_database_is_not_waited_for_without_end(store, tmp_path, monkeypatch):
    monkeypatch.setattr("kforge_dynamo.store.database.WAIT_S", 0.05)
    store.put_winner(winner((1, 1)))
    store._index.close()
    with sqlite3.connect(tmp_path / "cache" / DATABASE, isolation_level=None) as other:
        store.lookup(KEY, (1,))
        other.execute("BEGIN IMMEDIATE")
        assert not store.put_winner(winner((2, 2)))
        assert store.lookup(KEY, (2,)) is not None
        assert store.lookup(KEY, (1,)) is not None
        other.execute("ROLLBACK")
    other.close()


def test_index_of_a_damaged_database_reports_its_health(store, tmp_path):
    assert store.health() is None
    store.put_winner(winner())
    store._index.close()
    (tmp_path / "cache" / DATABASE).write_bytes(b"garbage" * 1000)
    assert store.health() is not None


def test_files_of_the_cache_are_not_readable_by_others(store, tmp_path):
    store.put_winner(winner())
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) & 0o077 == 0
