"""`kforge report`: what was found, as one HTML file that needs no server, no network and no script."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from kforge_dynamo.agents.transcript import read
from kforge_dynamo.cli.cache import CacheDir, store_for
from kforge_dynamo.cli.runs import find_run
from kforge_dynamo.errors import SettingsError, StoreError
from kforge_dynamo.pages.bench_page import bench_page, read_bench
from kforge_dynamo.pages.cache_page import cache_page
from kforge_dynamo.pages.run_page import run_page


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(report)


def report(
    run: Annotated[str, typer.Argument(metavar="RUN", help="a recorded run of the agents, as `kforge runs list` names it")] = "",
    cache: Annotated[bool, typer.Option("--cache", help="every stored answer instead of a run")] = False,
    bench: Annotated[Path | None, typer.Option("--bench", metavar="FILE", help="rows of benchmarks.run instead of a run")] = None,
    out: Annotated[Path, typer.Option("-o", "--out", help="the file to write")] = Path("kforge.html"),
    cache_dir: CacheDir = None,
) -> None:
    """Write winners, losses, errors, rooflines, sources and reasons as one HTML page."""
    if bool(run) + cache + (bench is not None) != 1:
        raise SettingsError("report needs one of: a RUN, --cache, or --bench FILE")
    damaged = 0
    if bench is not None:
        rows, damaged = read_bench(bench)
        text = bench_page(rows, f"kforge: {bench.name}")
    elif cache:
        store = store_for(cache_dir)
        text = cache_page(list(store.entries()), f"kforge: the cache in {store.folder.path}")
    else:
        text = run_page(read(find_run(run)))
    _write(out, text)
    if damaged:
        typer.echo(f"{damaged} lines of {bench} are cut off or no rows, and are left out", err=True)
    typer.echo(f"{out}: {len(text):,} bytes")


def _write(path: Path, text: bytes) -> None:
    """Replaces the file whole, so that a page that was open stays readable. Raises: StoreError."""
    try:
        handle, name = tempfile.mkstemp(prefix=".kforge-", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(text)
            os.chmod(name, 0o644)
            os.replace(name, path)
        except OSError:
            os.unlink(name)
            raise
    except OSError as error:
        raise StoreError(f"{path} cannot be written ({error.strerror or error}); name another file with -o") from error
