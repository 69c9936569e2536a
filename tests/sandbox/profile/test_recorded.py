"""Fixtures recorded on GPUs by `benchmarks/probes/record_profiles.py`, where there are any, and the probe's own trimming."""

from __future__ import annotations

import importlib.util
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
import torch

from kforge_dynamo.sandbox.profile import ncu, nsys

RECORDED = Path(__file__).parent / "fixtures" / "recorded"
PROBE = Path(__file__).resolve().parents[3] / "benchmarks" / "probes" / "record_profiles.py"


def fixtures(pattern: str) -> list[Path]:
    return sorted(RECORDED.glob(pattern))


@pytest.mark.parametrize("path", fixtures("ncu*.csv"), ids=lambda path: path.stem)
def test_recorded_ncu_report_has_duration_throughput_and_stalls(path):
    found = ncu.parse(path.read_text(), "recorded")
    names = {item.name for item in found.metrics}
    assert {"duration", "compute throughput", "registers a thread"} <= names, found.notes
    assert found.stalls and all(item.value > 0 for item in found.stalls)


@pytest.mark.parametrize("path", fixtures("nsys*.sql"), ids=lambda path: path.stem)
def test_recorded_nsys_export_has_durations_and_launches(path, tmp_path):
    with closing(sqlite3.connect(tmp_path / "made.sqlite")) as database:
        database.executescript(path.read_text())
    found = nsys.parse(tmp_path / "made.sqlite", "recorded", 20)
    names = {item.name for item in found.metrics}
    assert {"duration", "launches a call", "launch call on the host, median"} <= names, found.notes
    assert found.spans


@pytest.fixture(scope="module")
def probe():
    before = list(sys.path)
    spec = importlib.util.spec_from_file_location("record_profiles", PROBE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


def test_probe_keeps_the_three_tables_and_the_names_they_use(probe, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    path = tmp_path / "nsys.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL)")
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", [(1, "product"), (2, "/opt/someone/secret"), (3, "launch")])
        database.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, streamId INT, correlationId INT, shortName INT)"
        )
        database.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 7, ?, 1)", [(k, k + 5, k) for k in range(0, 990, 9)]
        )
        database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT, end INT, correlationId INT, nameId INT)")
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (0, 3, 0, 3)")
        database.execute("CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT)")
        database.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('Hostname', 'a-machine')")
        database.commit()
    text = probe.nsys_fixture(path)
    assert "secret" not in text and "a-machine" not in text and text.count('INSERT INTO "CUPTI_ACTIVITY_KIND_KERNEL"') == 60
    with closing(sqlite3.connect(tmp_path / "again.sqlite")) as database:
        database.executescript(text)
    found = nsys.parse(tmp_path / "again.sqlite", "test")
    assert {item.kernel for item in found.metrics if item.kernel} == {"product"}
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT count(*) FROM StringIds").fetchone() == (3,), "the tool's own file stays whole"


def test_probe_cuts_the_machine_out_of_ncu_s_words(probe, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    text = probe.ncu_fixture(
        '==PROF== Connected to process 7 (/opt/someone/python)\n"ID","Kernel Name"\n"0","k"\nprinted by the program\n'
    )
    assert text.splitlines()[1:] == ['"ID","Kernel Name"', '"0","k"'] and "Recorded on a GPU" in text
