"""`kforge evaluate --batch DIR`: many kernels of many tasks, judged by one worker; a run that was ended goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kforge_dynamo.cli.files import PLAN_FILE, TASK_FILE, device_of, load_candidate, load_task
from kforge_dynamo.cli.verdicts import SOME_FAILED, as_data
from kforge_dynamo.cli.verify import AsJson, Mode, OnDevice, Seconds, Stage, Untimed
from kforge_dynamo.errors import KforgeError, SettingsError
from kforge_dynamo.evaluation import Evaluator, Order
from kforge_dynamo.records.assignment import SOURCES, Assignment
from kforge_dynamo.records.codec import digest

CANDIDATES = "candidates"
RESULTS = "results.jsonl"

Batch = Annotated[
    Path,
    typer.Option("--batch", metavar="DIR", help=f"a folder of tasks: each has {TASK_FILE}, and its kernels below {CANDIDATES}/"),
]
Again = Annotated[bool, typer.Option("--again", help="Judge also what the results hold already.")]
Row = dict[str, Any]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(epilog=f"Exit status: 0 where all passed, {SOME_FAILED} where some did not, 1 where nothing could be read.")(
        evaluate
    )


def evaluate(
    batch: Batch,
    as_json: AsJson = False,
    untimed: Untimed = False,
    stage: Stage = "search",
    timeout: Seconds = 60.0,
    mode: Mode = "default",
    device: OnDevice = None,
    again: Again = False,
) -> None:
    """Judge many kernels of many tasks. Each row is appended to DIR/results.jsonl as soon as it is known."""
    order = Order(stage, not untimed, timeout, mode)
    tasks = _tasks(batch)
    known = {} if again else _known(batch / RESULTS)
    console = Console(stderr=as_json)
    rows = []
    evaluators: dict[str, Evaluator] = {}
    try:
        with (batch / RESULTS).open("a", encoding="utf-8") as kept:
            for row, fresh in _rows(tasks, order, device, known, evaluators):
                rows.append(row)
                if fresh:
                    kept.write(json.dumps(row) + "\n")
                    kept.flush()
                console.print(f"{row['status']:18} {escape(row['path'])}{'' if fresh else ' (known)'}", highlight=False)
    except OSError as error:
        raise SettingsError(
            f"{batch / RESULTS} cannot be written: {error.strerror}; copy the folder to a place of yours"
        ) from error
    finally:
        for evaluator in evaluators.values():
            evaluator.close()
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
    else:
        console.print(_table(rows))
    raise typer.Exit(0 if all(row["status"] == "passed" for row in rows) else SOME_FAILED)


def _tasks(batch: Path) -> list[tuple[Path, Assignment]]:
    """The folders of the batch with their tasks, in the order of their names."""
    if not batch.is_dir():
        raise SettingsError(f"batch folder {str(batch)!r} does not exist; make one with kforge task export TARGET --to DIR")
    places = sorted(path.parent for path in batch.rglob(TASK_FILE))
    if not places:
        raise SettingsError(f"no {TASK_FILE} below {str(batch)!r}; kforge task export TARGET --to DIR writes such folders")
    if not any(candidates_of(place) for place in places):
        raise SettingsError(
            f"no kernel below {str(batch)!r}; put them into the folder {CANDIDATES} of a task, as its README says"
        )
    return [(place, load_task(place)) for place in places]


def candidates_of(place: Path) -> list[Path]:
    """The candidates of a task's folder: files and folders below `candidates/`, in the order of their names."""
    folder = place / CANDIDATES
    suffixes = {*SOURCES, ".json"}
    found = [path for path in sorted(folder.glob("*")) if path.is_dir() or path.suffix in suffixes]
    return [path for path in found if not path.name.endswith(PLAN_FILE)]


def _rows(
    tasks: list[tuple[Path, Assignment]],
    order: Order,
    device: str | None,
    known: dict[str, Row],
    evaluators: dict[str, Evaluator],
) -> Iterator[tuple[Row, bool]]:
    """One row a candidate, and whether it was judged now; tasks one after the other, as the worker keeps what a task costs."""
    for place, assignment in tasks:
        for path in candidates_of(place):
            try:
                candidate = load_candidate(path)
            except KforgeError as error:
                words = " ".join(str(error).split())
                yield {"path": str(path), "status": "unreadable", "title": assignment.title, "evidence": words}, True
                continue
            identity = f"{digest(assignment)}:{digest(candidate)}:{order.stage}:{order.time}:{order.mode}"
            if identity in known:
                yield known[identity] | {"path": str(path)}, False
                continue
            torch_device, target = device_of(assignment, device)
            if str(torch_device) not in evaluators:
                evaluators[str(torch_device)] = Evaluator(target, str(torch_device))
            trial = evaluators[str(torch_device)].judge(assignment, candidate, order)
            yield {"path": str(path), "identity": identity} | as_data(assignment, trial), True


def _known(path: Path) -> dict[str, Row]:
    """The rows of an earlier run by identity. A line that a run could not finish is judged again."""
    found: dict[str, Row] = {}
    if path.is_file():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict) and isinstance(row.get("identity"), str):
                found[row["identity"]] = row
    return found


def _table(rows: list[Row]) -> Table:
    passed = sum(row["status"] == "passed" for row in rows)
    table = Table(box=None, pad_edge=False, title=f"{passed} of {len(rows)} passed", title_justify="left")
    for name in ("status", "task", "candidate", "error", "us", "speed-up", "evidence"):
        table.add_column(name, justify="right" if name in ("error", "us", "speed-up") else "left", overflow="fold")
    for row in rows:
        timing = next(iter(row.get("timings", ())), None)
        error = row.get("error_ratio")
        cells = [row["status"], row["title"], Path(row["path"]).name, "-" if error is None else f"{error:.2f}"]
        cells += ["-", "-"] if timing is None else [f"{timing['candidate']['median_us']:.1f}", f"{timing['speedup']:.2f}x"]
        evidence = " ".join(str(row["evidence"]).split())
        table.add_row(*(escape(cell) for cell in cells), escape(evidence[:100]))
    return table
