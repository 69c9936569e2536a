"""What the profilers of this GPU say of one small Triton kernel: checks the parsers, and records fixtures for their tests.

    python benchmarks/probes/record_profiles.py OUT [--seconds 60] [--only ncu]

Judges one kernel of the built-in generator in a worker, with `compiler`, `torch`, `nsys` and `ncu` beside it, and prints its
profile. OUT gets what the tools left (`ncu.txt`, `nsys.txt`, `nsys.sqlite`), the profile as `profile.json`, and
in OUT/fixtures text files for tests/sandbox/profile/fixtures/recorded: `ncu.csv` and `nsys.sql`. A tool that is missing or
forbidden is said and costs nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sqlite3
import sys
import tempfile
from contextlib import closing
from dataclasses import replace
from datetime import date

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "sandbox"), str(ROOT / "tests" / "codegen" / "triton")]

import torch  # noqa: E402
from sandbox_tasks import gelu  # noqa: E402

from kforge_dynamo import targets  # noqa: E402
from kforge_dynamo.codegen import triton as generator  # noqa: E402
from kforge_dynamo.records.request import Request  # noqa: E402
from kforge_dynamo.records.target import Numerics  # noqa: E402
from kforge_dynamo.records.task import point  # noqa: E402
from kforge_dynamo.sandbox.profile.external import Place, capture  # noqa: E402
from kforge_dynamo.sandbox.worker import Worker  # noqa: E402
from kforge_dynamo.semantics.show_profile import profile_data, show_profile  # noqa: E402
from kforge_dynamo.settings import worker_environment  # noqa: E402

LANGUAGES = "kforge_dynamo.languages.table:LANGUAGES"
TABLES = ("StringIds", "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME")
ROWS, MOST_ROWS = 512, 60


def request_of(folder: str, inside: tuple[str, ...]) -> Request:
    """One kernel: a bf16 linear layer with GELU, the schedule that the generator ranks first."""
    target = targets.detect(torch.device("cuda", 0))
    assert target is not None, "no CUDA device"
    task, numerics = gelu(k=1024, n=1024, dtype="bfloat16"), Numerics("highest", False, False, False)
    schedule = generator.space(task, (ROWS,), target, numerics)[0]
    made = generator.emit(task, schedule, (ROWS,), target, numerics)
    domain = point(task, (ROWS,))
    return Request(task, (ROWS,), domain, made, target, numerics, "default", "{}", "search", folder, True, 300.0, None, inside)


def ncu_fixture(text: str) -> str:
    """The tool's tables, without the names of this machine and its programs."""
    lines = [line for line in text.splitlines() if line.startswith(('"', "==PROF== Disc", "==ERROR=="))]
    kept = [line.replace(os.uname().nodename, "host") for line in lines]
    return (
        f"# Recorded on {torch.cuda.get_device_name()}, {date.today()}, by benchmarks/probes/record_profiles.py.\n"
        + "\n".join(kept)
    )


def nsys_fixture(path: pathlib.Path) -> str:
    """The three tables that are read, as SQL, at most 60 rows of each and only the names that they use."""
    with closing(sqlite3.connect(path)) as database:
        there = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        for table in TABLES[1:]:
            if table in there:
                database.execute(f"DELETE FROM {table} WHERE rowid NOT IN (SELECT rowid FROM {table} LIMIT {MOST_ROWS})")
        columns = {table: {row[1] for row in database.execute(f"PRAGMA table_info({table})")} for table in TABLES}
        used: set[int] = set()
        for table, names in columns.items():
            for column in names & {"shortName", "demangledName", "mangledName", "nameId"}:
                used |= {row[0] for row in database.execute(f"SELECT DISTINCT {column} FROM {table}") if row[0] is not None}
        if "StringIds" in there:
            database.execute(f"DELETE FROM StringIds WHERE id NOT IN ({', '.join(map(str, used)) or 'NULL'})")
        for table in there - set(TABLES):
            if not table.startswith("sqlite_"):
                database.execute(f'DROP TABLE "{table}"')
        statements = list(database.iterdump())
        database.rollback()
    return "\n".join([f"-- Recorded on {torch.cuda.get_device_name()}, {date.today()}.", *statements]) + "\n"


def main() -> None:
    """Judges, profiles, prints and records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=60.0, help="time limit of each tool")
    parser.add_argument("--only", choices=("ncu", "nsys"), help="one of the tools that start a program")
    options = parser.parse_args()
    fixtures = options.out / "fixtures"
    fixtures.mkdir(parents=True, exist_ok=True)
    place = Place(worker_environment, "cuda:0", torch.get_num_threads(), LANGUAGES)
    with tempfile.TemporaryDirectory() as folder, Worker(worker_environment, "cuda:0", place.threads, LANGUAGES) as worker:
        request = request_of(folder, ("compiler", "torch"))
        trial = worker.evaluate(request, 300.0)
        print(trial.verdict)
        if trial.profile is None:
            raise SystemExit(1)
        profile = trial.profile
        for name in (options.only,) if options.only else ("nsys", "ncu"):
            found = capture(name, request, place, options.seconds, options.out)
            profile = replace(profile, captures=(*profile.captures, found))
    for row in show_profile(profile):
        print(" | ".join(row))
    (options.out / "profile.json").write_text(json.dumps(profile_data(profile), indent=1))
    if (options.out / "ncu.txt").exists():
        (fixtures / "ncu.csv").write_text(ncu_fixture((options.out / "ncu.txt").read_text()) + "\n")
    if (options.out / "nsys.sqlite").exists():
        (fixtures / "nsys.sql").write_text(nsys_fixture(options.out / "nsys.sqlite"))


if __name__ == "__main__":
    main()
