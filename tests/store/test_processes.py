"""Several processes and threads in one cache: nothing that was finished is lost, whatever is killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest
from store_records import KEY, domain, standing, winner

from kforge_dynamo.records.outcome import State
from kforge_dynamo.store import close_stores, open_store

WRITERS = 8


def start(work) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            close_stores()
            work()
            code = 0
        finally:
            os._exit(code)
    return child


def ended_well(children) -> bool:
    return all(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 for child in children)


def test_eight_writers_from_an_empty_folder_lose_nothing(tmp_path, reopen):
    """All add to the entries of one key, so each change reads what the others wrote."""
    path = str(tmp_path / "cache")

    def work(number: int) -> None:
        place = open_store(path)
        for step in range(12):
            size = 1 + number * 100 + step
            assert place.put_winner(winner((size, size), source=f"{number} {step}" + "x" * 3000))
            assert place.lookup(KEY, (size,)) is not None

    assert ended_well([start(lambda number=number: work(number)) for number in range(WRITERS)])
    place = reopen()
    for number in range(WRITERS):
        for step in range(12):
            size = 1 + number * 100 + step
            assert place.lookup(KEY, (size,)).winner.trial.candidate.source.startswith(f"{number} {step}x")
    assert place.health() is None
    assert sum(1 for _ in place.entries()) == WRITERS * 12


def test_writers_killed_at_any_moment_leave_whole_entries_and_a_usable_cache(tmp_path, reopen):
    """A writer tells the number of each entry once it is stored; whatever was told must be there afterwards."""
    path = str(tmp_path / "cache")
    told: dict[int, list[int]] = {}
    for round_number in range(10):
        pipes = [os.pipe() for _ in range(3)]
        children = []
        for number, (_, into) in enumerate(pipes):

            def work(first: int = 1 + (round_number * 3 + number) * 1000, into: int = into) -> None:
                place = open_store(path)
                for size in range(first, first + 1000):
                    place.put_winner(winner((size, size), source=f"{size} " + "y" * 2000))
                    os.write(into, size.to_bytes(8, "little"))

            children.append(start(work))
        for child in children:
            time.sleep(random.Random(round_number * 7 + child).uniform(0.01, 0.08))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        for number, (out, into) in enumerate(pipes):
            os.close(into)
            with os.fdopen(out, "rb") as stream:
                data = stream.read()
            told[round_number * 3 + number] = [
                int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data) // 8 * 8, 8)
            ]
    sizes = [size for each in told.values() for size in each]
    assert len(sizes) > 20
    place = reopen()
    kept = [
        size
        for size in sizes
        if (found := place.lookup(KEY, (size,))) is not None and found.winner.domain == domain((size, size))
    ]
    newest = {line.domain.ranges[0].low for _, line in place.entries()}
    assert all(entry.problem is None for _, entry in place.entries())
    assert set(kept) >= set(sizes) & newest and len(newest) >= min(len(sizes), 250)
    assert place.put_winner(winner((9, 9))) and place.health() is None


def test_kill_while_the_first_key_and_database_are_made_leaves_a_usable_cache(tmp_path, reopen):
    for delay_ms in range(0, 40, 3):
        folder = tmp_path / str(delay_ms)

        def work(folder=folder) -> None:
            place = open_store(str(folder))
            for size in range(1, 50):
                place.put_winner(winner((size, size)))

        child = start(work)
        time.sleep(delay_ms / 1000)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        place = open_store(str(folder))
        assert all(entry.problem is None for _, entry in place.entries())
        assert place.put_winner(winner((60, 60))) and place.lookup(KEY, (60,)) is not None and place.health() is None


@pytest.mark.alone
def test_readers_beside_a_writer_see_whole_answers(tmp_path):
    path = str(tmp_path / "cache")
    open_store(path).put_winner(winner((1, 64), source="0" * 4000))
    end = time.monotonic() + 1.5

    def write() -> None:
        place, turn = open_store(path), 0
        while time.monotonic() < end:
            turn += 1
            assert place.put_winner(winner((1, 64), source=str(turn % 10) * 4000))

    def read() -> None:
        place, seen = open_store(path), set()
        while time.monotonic() < end:
            found = place.lookup(KEY, (8,))
            assert found is not None and found.state is State.WINNER
            assert len(set(found.winner.trial.candidate.source)) == 1
            seen.add(found.winner.trial.candidate.source[0])
        assert len(seen) > 1

    assert ended_well([start(write), start(read), start(read)])


def test_threads_share_a_store(store, reopen):
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for step in range(10):
                size = 1 + number * 100 + step
                assert store.put_winner(winner((size, size)))
                assert store.lookup(KEY, (size,)) is not None
                store.put_standing(standing((size + 50, size + 50), state=State.NOT_SEARCHED))
        except BaseException as error:  # noqa: BLE001 a thread reports to the test
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sum(entry.kind == "winner" for _, entry in reopen().entries()) == 80


def test_fork_uses_the_store_of_its_parent(store, reopen):
    store.put_winner(winner((1, 1)))

    child = os.fork()
    if child == 0:
        good = store.lookup(KEY, (1,)) is not None and store.put_winner(winner((2, 2)))
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.lookup(KEY, (2,)) is not None and store.put_winner(winner((3, 3)))
    assert sum(1 for _ in reopen().entries()) == 3


@pytest.mark.parametrize("damage", ["truncated", "garbage"])
def test_many_processes_that_meet_a_damaged_database_put_one_aside(tmp_path, reopen, damage):
    store = reopen()
    for size in range(1, 50):
        store.put_winner(winner((size, size), source="w" * 3000))
    store._index.close()
    path = tmp_path / "cache" / "v1" / "index" / "cache.db"
    for name in ("cache.db-wal", "cache.db-shm"):
        path.with_name(name).unlink(missing_ok=True)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3] if damage == "truncated" else os.urandom(50_000))

    def work(number: int) -> None:
        place = open_store(str(tmp_path / "cache"))
        for size in range(1, 50):
            place.lookup(KEY, (size,))
        assert place.put_winner(winner((1000 + number, 1000 + number)))

    assert ended_well([start(lambda number=number: work(number)) for number in range(6)])
    place = reopen()
    assert all(place.lookup(KEY, (1000 + number,)) is not None for number in range(6))
    assert len(list((tmp_path / "cache" / "v1").glob("index.damaged-*"))) == 1


def test_second_program_starts_warm(store, tmp_path):
    """A program of its own, not a fork: key, entry and artifact are all read from disk."""
    record = winner()
    store.put_winner(record)
    store.artifact(record.trial.candidate, lambda folder: _built(folder / "a.so"))
    program = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from store_records import KEY, winner\n"
        "from kforge_dynamo.store import open_store\n"
        "place = open_store(sys.argv[1])\n"
        "assert place.lookup(KEY, (8,)).winner == winner()\n"
        "print(place.artifact(winner().trial.candidate, None).read_text())\n"
    )
    arguments = [sys.executable, "-c", program, str(tmp_path / "cache"), os.path.dirname(__file__)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(arguments, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.stdout.strip() == "machine code", done.stderr


def _built(path):
    path.write_text("machine code")
    return path
