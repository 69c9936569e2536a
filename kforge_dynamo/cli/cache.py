"""`kforge cache`: what is stored, whether it can be believed, and how to be rid of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kforge_dynamo.errors import RecordError, StoreError
from kforge_dynamo.records.codec import from_text, plain
from kforge_dynamo.records.outcome import Measurement, Standing, Timings, Winner
from kforge_dynamo.records.task import Task
from kforge_dynamo.semantics.show import show as show_task
from kforge_dynamo.settings import Settings
from kforge_dynamo.sites import store_of
from kforge_dynamo.store import Entry, Store
from kforge_dynamo.store.explain import describe_numerics, show_domain
from kforge_dynamo.store.ship import ship as ship_winners
from kforge_dynamo.store.ship import task_name

_SHORT = 12  # digits of a digest that tell entries apart

CacheDir = Annotated[str | None, typer.Option("--cache-dir", help="The cache's folder; else KFORGE_CACHE_DIR or the platform's.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

cache = typer.Typer(help="List, show, verify, export, import, prune and clear what is stored.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.add_typer(cache, name="cache")


@cache.command("list")
def list_entries(as_json: AsJson = False, cache_dir: CacheDir = None) -> None:
    """Every stored answer: winners, "no winner" and "not searched"."""
    store = store_for(cache_dir)
    rows = [_row(layer, entry) for layer, entry in store.entries()]
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    console = Console()
    if not rows:
        console.print(f"Nothing is stored in {escape(str(store.folder.path))}, and nothing ships with this version.")
        return
    table = Table(box=None, pad_edge=False, title=f"{len(rows)} entries, {escape(str(store.folder.path))}", title_justify="left")
    for name in ("entry", "layer", "state", "task", "sizes", "speed-up", "error", "language", "scheme", "numerics", "device"):
        table.add_column(name, justify="right" if name in ("speed-up", "error") else "left", overflow="fold")
    for row in rows:
        ratio = f"{row['speedup']:.2f}x" if row["speedup"] is not None else "-"
        error = f"{row['error_ratio']:.2f}" if row["error_ratio"] is not None else "-"
        cells = [row["entry"][:_SHORT], row["layer"], row["state"], row["task"], row["sizes"], ratio, error]
        cells += [row["language"] or "-", row["scheme"] or "-", row["numerics"], row["device"]]
        table.add_row(*(escape(cell) for cell in cells))
    console.print(table)


@cache.command()
def show(
    prefix: Annotated[str, typer.Argument(metavar="ENTRY", help="The first digits of an entry, as the list shows them.")],
    source: Annotated[bool, typer.Option("--source", help="Print the kernel's source and nothing else.")] = False,
    as_json: AsJson = False,
    cache_dir: CacheDir = None,
) -> None:
    """One entry: task, kernel, verdict, times, and what it was made with."""
    layer, entry = _one(store_for(cache_dir), prefix)
    if entry.record is None:
        raise StoreError(
            f"the entry {entry.digest[:_SHORT]} {entry.problem}; it is never used, kforge cache clear {prefix} removes it"
        )
    if source:
        if not isinstance(entry.record, Winner):
            raise StoreError(f"the entry {entry.digest[:_SHORT]} is a {entry.record.state.value} and has no source")
        typer.echo(entry.record.trial.candidate.source)
        return
    if as_json:
        typer.echo(json.dumps(_row(layer, entry) | {"record": plain(entry.record)}, indent=1))
        return
    console = Console()
    for name, text in _facts(layer, entry, entry.record):
        console.print(f"[bold]{name:<11}[/bold] {escape(text)}", soft_wrap=True)


@cache.command()
def verify(as_json: AsJson = False, cache_dir: CacheDir = None) -> None:
    """Check every entry, built kernel and shipped file again; status 1 where one would be refused."""
    store = store_for(cache_dir)
    problems, checked = [], {"entries": 0, "shared": 0, "shipped": 0, "artifacts": 0}
    for layer, entry in store.entries():
        checked[{"user": "entries", "shipped": "shipped"}.get(layer, "shared")] += 1
        if entry.problem is not None:
            problems.append(f"{layer} {entry.kind} {entry.digest[:_SHORT]} {entry.problem}")
    for home, problem in store.artifacts().all():
        checked["artifacts"] += 1
        if problem is not None:
            problems.append(f"built kernel {home.name} {problem}")
    problems += [text for text in (store.health(), *store.shared_problems, store.shipped.problem) if text is not None]
    if as_json:
        typer.echo(json.dumps({"checked": checked, "problems": problems}, indent=1))
    else:
        for text in problems:
            typer.echo(text)
        counts = ", ".join(f"{count} {name}" for name, count in checked.items())
        typer.echo(f"{counts} checked: {len(problems)} problem{'s' if len(problems) != 1 else ''}")
    if problems:
        raise typer.Exit(1)


@cache.command()
def clear(
    prefix: Annotated[
        str, typer.Argument(metavar="[ENTRY]", help="The first digits of an entry; without it everything goes.")
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
    cache_dir: CacheDir = None,
) -> None:
    """Remove one entry, or all entries and built kernels. What ships with kforge stays."""
    store = store_for(cache_dir, to_write=True)
    if prefix:
        layer, entry = _one(store, prefix)
        if layer != "user":
            what = "ships with kforge" if layer == "shipped" else f"is in the shared layer {layer}"
            raise StoreError(f"the entry {entry.digest[:_SHORT]} {what} and cannot be removed here")
        store.evict(entry.digest)
        typer.echo(_removed(1, 0) if as_json else f"removed {entry.digest[:_SHORT]}")
        return
    if not yes:
        typer.confirm(f"Remove everything that kforge has stored in {store.folder.path}?", abort=True)
    entries, kernels = store.clear()
    typer.echo(
        _removed(entries, kernels)
        if as_json
        else f"removed {entries} entries and {kernels} built kernels from {store.folder.path}"
    )


@cache.command()
def prune(
    max_mib: Annotated[
        float | None, typer.Option("--max-mib", min=0.0, help="Down to this size; else the option cache_mib.")
    ] = None,
    days: Annotated[float | None, typer.Option("--days", min=0.0, help="Also what was not used for so many days.")] = None,
    as_json: AsJson = False,
    cache_dir: CacheDir = None,
) -> None:
    """Remove what was put aside, and what was not used for longest beyond a size. What a living process uses stays."""
    store = store_for(cache_dir, to_write=True)
    limit = Settings.parse()[0].cache_mib if max_mib is None else max_mib
    done = store.prune(limit * 2**20, days * 86400.0 if days is not None else None)
    if done is None:
        raise StoreError(store.health() or f"the cache in {store.folder.path} cannot be written")
    if as_json:
        typer.echo(json.dumps(asdict(done), indent=1))
        return
    sizes = f"{done.before_bytes / 2**20:.1f} MiB -> {done.after_bytes / 2**20:.1f} MiB"
    spared = f"; {done.in_use} are in use and stay" if done.in_use else ""
    typer.echo(f"removed {done.entries} entries, {done.kernels} built kernels and {done.copies} remote copies: {sizes}{spared}")


def _removed(entries: int, kernels: int) -> str:
    return json.dumps({"entries": entries, "kernels": kernels}, indent=1)


@cache.command(hidden=True)
def ship(
    prefixes: Annotated[list[str] | None, typer.Argument(metavar="ENTRY", help="Winners of the user's cache to add.")] = None,
    to: Annotated[Path, typer.Option("--to", help="The folder kernel_cache of a source tree.")] = Path("kernel_cache"),
    cache_dir: CacheDir = None,
) -> None:
    """Add winners to the layer that ships, and refresh its manifest and pinned digest. For developers of kforge."""
    if not to.is_dir():
        raise StoreError(f"{to} is no folder; run this at the top of a source tree of kforge, or name its kernel_cache with --to")
    store, winners = store_for(cache_dir), []
    for prefix in prefixes or ():
        _, entry = _one(store, prefix)
        if not isinstance(entry.record, Winner):
            raise StoreError(f"the entry {entry.digest[:_SHORT]} is no winner and cannot be shipped")
        winners.append(entry.record)
    typer.echo(f"shipped {len(winners)} winners; the manifest's digest is {ship_winners(winners, to)[:_SHORT]}")


def store_for(cache_dir: str | None, to_write: bool = False) -> Store:
    """The store that was asked for. Raises: StoreError where it is another one than that, or cannot be written."""
    settings, _ = Settings.parse({"cache_dir": cache_dir} if cache_dir is not None else None)
    store = store_of(settings)
    problem = store.folder.problem
    if problem is not None and (
        (settings.cache_dir is not None and store.folder.temporary) or (to_write and not store.folder.writable)
    ):
        raise StoreError(problem)
    return store


def _one(store: Store, prefix: str) -> tuple[str, Entry]:
    found = [(layer, entry) for layer, entry in store.entries() if entry.digest.startswith(prefix.lower())]
    if len(found) != 1:
        what = "no entry begins" if not found else f"{len(found)} entries begin"
        raise StoreError(f"{what} with {prefix!r}; kforge cache list shows the entries, name one by more of its digits")
    return found[0]


def _row(layer: str, entry: Entry) -> dict[str, Any]:
    """One line of the list; numbers are None where there are none."""
    record = entry.record
    winner = record if isinstance(record, Winner) else None
    return {
        "entry": entry.digest,
        "layer": layer,
        "state": "refused" if record is None else "winner" if isinstance(record, Winner) else record.state.value,
        "task": task_name(winner.task) if winner else entry.key.task[:_SHORT],
        "task_digest": entry.key.task,
        "sizes": show_domain(entry.domain),
        "speedup": winner.trial.timings[0].speedup if winner and winner.trial.timings else getattr(record, "best_speedup", None),
        "error_ratio": winner.trial.verdict.error_ratio if winner else None,
        "language": winner.trial.candidate.language if winner else None,
        "scheme": winner.trial.candidate.scheme if winner else None,
        "numerics": describe_numerics(entry.key.numerics),
        "device": entry.key.device,
        "reason": entry.problem or (record.reason if isinstance(record, Standing) else None),
    }


def _facts(layer: str, entry: Entry, record: Winner | Standing) -> Iterator[tuple[str, str]]:
    yield "entry", f"{entry.digest} ({layer})"
    yield "device", entry.key.device
    yield "numerics", describe_numerics(entry.key.numerics)
    yield "sizes", show_domain(entry.domain)
    if isinstance(record, Standing):
        yield "state", record.state.value
        yield "task", entry.key.task
        yield "reason", record.reason
        if record.terms is not None:
            terms = record.terms
            yield "terms", f"{terms.generator}, {', '.join(terms.languages)}, {terms.budget_s:g} s, {terms.candidates} candidates"
        return
    candidate, verdict, made = record.trial.candidate, record.trial.verdict, record.provenance
    yield "state", "winner"
    yield "task", "\n" + _task_text(record.task)
    yield "kernel", f"{candidate.language}, {candidate.scheme}, by {candidate.author}, {len(candidate.source.splitlines())} lines"
    yield "schedule", candidate.schedule or "-"
    yield (
        "verdict",
        f"{verdict.status.value}, error ratio {verdict.error_ratio}, e0 {verdict.e0}, worst at {verdict.where or '-'}",
    )
    for timing in record.trial.timings:
        yield "times", _timing_text(timing)
    yield "made with", f"kforge {made.kforge}, torch {made.torch}, {made.compiler}, driver {made.driver}, {made.created}"


def _timing_text(timing: Timings) -> str:
    def words(measurement: Measurement | None) -> str:
        return f"{measurement.median_us:.1f} us" if measurement is not None else "not measured"

    return (
        f"{timing.regime}, mode {timing.mode}: kernel {words(timing.candidate)}, Inductor {words(timing.region)}, "
        f"bare GEMM {words(timing.anchor)}: {timing.speedup:.2f}x"
    )


def _task_text(text: str) -> str:
    try:
        return show_task(from_text(Task, text))
    except (RecordError, ValueError, KeyError, IndexError):  # of a version whose tasks look otherwise
        return text
