"""`kforge cache export|import|keygen`: winners as one file or a folder, from machine to machine, signed if wanted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any

import typer

from kforge_dynamo.cli.cache import AsJson, CacheDir, cache, store_for
from kforge_dynamo.errors import StoreError
from kforge_dynamo.records.outcome import Standing, State, Winner
from kforge_dynamo.settings import Settings
from kforge_dynamo.store import Entry, Store
from kforge_dynamo.store.bundle import layer_files, write_folder, write_zip
from kforge_dynamo.store.shared import open_layer, split
from kforge_dynamo.store.trust import make_key, read_trust
from kforge_dynamo.targets import kforge_version

_ZIP = ".zip"


def register(app: typer.Typer) -> None:
    """Nothing: the commands are parts of `kforge cache`."""


@cache.command("export")
def export_entries(
    to: Annotated[Path, typer.Argument(metavar="OUT", help="A new .zip file, or a folder to publish as a layer.")],
    sign: Annotated[Path | None, typer.Option("--sign", metavar="KEY", help="Sign with this key of kforge cache keygen.")] = None,
    device: Annotated[str, typer.Option("--device", help="Only entries whose device's name contains this.")] = "",
    as_json: AsJson = False,
    cache_dir: CacheDir = None,
) -> None:
    """Write the user's winners and "no winner" answers: sources, keys, verdicts, times, a manifest. No binaries."""
    store = store_for(cache_dir)
    mine = [entry for layer, entry in store.entries() if layer == "user" and device.lower() in entry.key.device.lower()]
    records = [entry.record for entry in mine if entry.record is not None]
    counts = _counts(records)
    if not counts["winners"] + counts["no_winner"]:
        where = f" for a device named like {device!r}" if device else ""
        raise StoreError(f"{store.folder.path} has nothing to export{where}; kforge cache list shows what is stored")
    files = layer_files(records, kforge_version(), datetime.now(timezone.utc).isoformat(timespec="seconds"), sign)
    (write_zip if to.suffix == _ZIP else write_folder)(to, files)
    refused = len(mine) - len(records)
    if as_json:
        typer.echo(json.dumps({"to": str(to), **counts, "refused": refused, "signed": sign is not None}, indent=1))
        return
    left = f"; {refused} refused entries were left out (kforge cache verify)" if refused else ""
    typer.echo(
        f"{counts['winners']} winners and {counts['no_winner']} no-winner answers in {to}, "
        f"{'signed' if sign is not None else 'not signed'}{left}"
    )


@cache.command("import")
def import_entries(
    place: Annotated[str, typer.Argument(metavar="FROM", help="A file or folder of kforge cache export, or its URL.")],
    trust: Annotated[
        list[str] | None, typer.Option("--trust", help="A public key, or digest to believe whoever wrote it; else option trust.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Take the place of own winners for the same sizes.")] = False,
    as_json: AsJson = False,
    cache_dir: CacheDir = None,
) -> None:
    """Check each entry and make those that are whole the user's own; status 1 where one was not."""
    store = store_for(cache_dir, to_write=True)
    believed = read_trust(trust) if trust else read_trust(Settings.parse()[0].trust)
    layer = open_layer(*split(place, believed), None)
    entries = list(layer.all())
    problems = [str(entry.problem) for entry in entries if entry.record is None]
    records = [entry.record for entry in entries if entry.record is not None]
    fresh = records if replace else _unknown(store, records)
    if fresh and not store.put_all(fresh):
        raise StoreError(f"{store.health() or 'the cache cannot be written'}; nothing was imported")
    result: dict[str, Any] = {**_counts(fresh), "known": len(records) - len(fresh), "problems": problems}
    if as_json:
        typer.echo(json.dumps({"from": place, **result}, indent=1))
    else:
        for text in problems:
            typer.echo(f"not imported: {text}")
        typer.echo(
            f"{result['winners']} winners and {result['no_winner']} no-winner answers imported from {place}; "
            f"{result['known']} were known already"
        )
    if problems:
        raise typer.Exit(1)


@cache.command()
def keygen(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The new file for the key that signs.")],
    as_json: AsJson = False,
) -> None:
    """Make a key that signs exports. The public key, which is printed, is what others name to believe them."""
    public = make_key(path)
    if as_json:
        typer.echo(json.dumps({"key": str(path), "public": public}, indent=1))
        return
    typer.echo(f"{public}\n\nThe key is in {path}, for you alone. Others believe what it signs with KFORGE_TRUST={public}")


def _counts(records: Iterable[Winner | Standing]) -> dict[str, int]:
    kinds = Counter("winners" if isinstance(record, Winner) else record.state.value for record in records)
    return {"winners": kinds["winners"], "no_winner": kinds[State.NO_WINNER.value]}


def _unknown(store: Store, records: list[Winner | Standing]) -> list[Winner | Standing]:
    """Those that the user's cache has no winner for, and not the same answer."""
    mine: list[Entry] = [entry for layer, entry in store.entries() if layer == "user" and entry.record is not None]
    won = {(entry.key, entry.domain) for entry in mine if entry.kind == "winner"}
    same = {entry.record for entry in mine}
    return [record for record in records if (record.key, record.domain) not in won and record not in same]
