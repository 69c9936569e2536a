"""Nsight Systems' SQLite export. Databases are built here from its documented schema (SQLite Export Schema Reference), not
recorded; `benchmarks/probes/record_profiles.py` records real ones."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from kforge_dynamo.records.profile import MOST_SPANS
from kforge_dynamo.sandbox.profile import nsys

KERNEL = """CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT NOT NULL, end INT NOT NULL, deviceId INT, contextId INT,
 streamId INT, correlationId INT, globalPid INT, demangledName INT, shortName INT, registersPerThread INT, gridX INT,
 blockX INT)"""
RUNTIME = (
    "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT, end INT, eventClass INT, globalTid INT, correlationId INT, nameId INT)"
)
STRINGS = "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL)"


@pytest.fixture
def export(tmp_path):
    def made(kernels, launches=(), tables=(KERNEL, RUNTIME, STRINGS)):
        path = tmp_path / "report.sqlite"
        path.unlink(missing_ok=True)
        with closing(sqlite3.connect(path)) as database:
            for table in tables:
                database.execute(table)
            if STRINGS in tables:
                names = [(1, "product"), (2, "reduce"), (3, "cudaLaunchKernelExC_v11060")]
                database.executemany("INSERT INTO StringIds VALUES (?, ?)", names)
            for start, end, name, link in kernels:
                row = (start, end, 0, 1, 7, link, 1, name, name, 200, 512, 128)
                database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?,?,?,?,?,?,?,?,?,?,?,?)", row)
            for start, end, link in launches:
                database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,0,0,?,3)", (start, end, link))
            database.commit()
        return path

    return made


def values(capture):
    return {(item.name, item.kernel): item.value for item in capture.metrics}


def test_export_gives_durations_gaps_and_launch_overhead(export):
    kernels = [(100_000, 150_000, 1, 11), (152_000, 160_000, 2, 12), (200_000, 260_000, 1, 13), (262_000, 270_000, 2, 14)]
    launches = [(90_000, 95_000, 11), (95_000, 101_000, 12), (190_000, 195_000, 13), (195_000, 201_000, 14)]
    found = nsys.parse(export(kernels, launches), "test", calls=2)
    got = values(found)
    assert got["duration", "product"] == pytest.approx(55.0) and got["duration", "reduce"] == pytest.approx(8.0)
    assert got["launches a call", None] == 2 and got["device time a call", None] == pytest.approx(63.0)
    assert got["gap between kernels, median", None] == pytest.approx(2.0)
    assert got["device busy", None] == pytest.approx(100 * 126 / 170)
    assert got["launch call on the host, median", None] == pytest.approx(5.5)
    assert got["launch to start, median", None] == pytest.approx(33.5)
    assert [(span.name, span.start_us, span.lane) for span in found.spans[:2]] == [
        ("product", 0.0, "stream 7"),
        ("reduce", pytest.approx(52.0), "stream 7"),
    ]


def test_kernels_that_overlap_are_not_counted_twice(export):
    found = values(nsys.parse(export([(0, 10_000, 1, 1), (5_000, 20_000, 2, 2)]), "test", calls=1))
    assert found["device time a call", None] == pytest.approx(20.0) and found["device busy", None] == pytest.approx(100.0)
    assert ("gap between kernels, median", None) not in found


def test_export_of_another_version_is_read_as_far_as_it_goes(export):
    bare = "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT NOT NULL, end INT NOT NULL)"
    path = export([], tables=(bare,))
    with closing(sqlite3.connect(path)) as database:
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (0, 4000)")
        database.commit()
    assert values(nsys.parse(path, "test")) == {
        ("duration", "kernel"): 4.0,
        ("launches", "kernel"): 1.0,
        ("device busy", None): 100.0,
    }


def test_long_timelines_are_cut_with_a_note(export):
    found = nsys.parse(export([(k * 10_000, k * 10_000 + 1_000, 1, k) for k in range(MOST_SPANS + 9)]), "test")
    assert len(found.spans) == MOST_SPANS and str(MOST_SPANS + 9) in found.notes[0]
    assert values(found)["launches", "product"] == MOST_SPANS + 9


def test_what_is_no_export_is_a_note(tmp_path, export):
    assert "no export" in nsys.parse(tmp_path / "absent.sqlite", "test").notes[0]
    (tmp_path / "text.sqlite").write_text("no database at all, but long enough to be looked at" * 20)
    assert "not readable" in nsys.parse(tmp_path / "text.sqlite", "test").notes[0]
    assert nsys.parse(export([]), "test").notes == ("nsys saw no kernel",)
