"""`kforge doctor`: what is here, what is missing, what that means, and what to do about it. Always ends with status 0."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
import shutil
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.markup import escape

from kforge_dynamo.errors import KforgeError, SettingsError
from kforge_dynamo.languages.table import LANGUAGES
from kforge_dynamo.sandbox.confine import describe
from kforge_dynamo.sandbox.forks import probe
from kforge_dynamo.sandbox.profile.instruments import INSTRUMENTS
from kforge_dynamo.settings import (
    KEY_NAMES,
    Settings,
    may_search_by_default,
    present_keys,
    present_names,
    sandbox_without,
)
from kforge_dynamo.sites import store_of
from kforge_dynamo.store import Store, open_store
from kforge_dynamo.targets import detect, kforge_version, numerics, unknown_reason

_COMPILERS = {
    "g++": "C++ kernels, and Inductor's own on a CPU",
    "clang++": "the same, where there is no g++",
    "nvcc": "not needed: Triton brings its own assembler",
}
_PACKAGES = ("torch", "triton", "numpy", "diskcache", "platformdirs", "litellm", "timm", "transformers")


@dataclass(frozen=True, slots=True)
class Fact:
    """One line: `good` is None where it is neither good nor bad."""

    section: str
    name: str
    text: str
    good: bool | None = None


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(doctor)


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Devices, compilers, versions, the cache, keys, and what falls back and why."""
    facts = diagnose()
    if as_json:
        typer.echo(json.dumps([asdict(fact) for fact in facts], indent=1))
        return
    console = Console()
    marks = {True: "[green]ok[/green]  ", False: "[red]no[/red]  ", None: "    "}
    for section in dict.fromkeys(fact.section for fact in facts):
        console.print(f"[bold]{section}[/bold]")
        for fact in facts:
            if fact.section == section:
                console.print(f"  {marks[fact.good]}{fact.name:<22} {escape(fact.text)}", soft_wrap=True)


def diagnose() -> list[Fact]:
    """All facts, in the order in which they are shown."""
    try:
        settings, wrong = Settings.parse()[0], None
    except SettingsError as error:
        settings, wrong = None, str(error)
    store = store_of(settings) if settings is not None else open_store(None)
    facts = [
        *_versions(),
        *_devices(settings),
        *_compilers(),
        *_profilers(),
        *_sandbox(),
        *_cache(store),
        *_environment(settings, wrong),
        *_ipex(),
    ]
    return facts + _summary(facts, settings, store)


def _versions() -> list[Fact]:
    facts = [
        Fact("versions", "kforge", kforge_version()),
        Fact("versions", "python", f"{sys.version.split()[0]} on {platform.platform()}"),
    ]
    for name in _PACKAGES:
        try:
            facts.append(Fact("versions", name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            facts.append(Fact("versions", name, "not installed"))
    return facts


def _found_devices() -> list[torch.device]:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [torch.device("cpu"), *(torch.device("cuda", index) for index in range(count))]


def _devices(settings: Settings | None) -> list[Fact]:
    facts = []
    for device in _found_devices():
        target = detect(device)
        if target is None:
            facts.append(Fact("devices", str(device), unknown_reason(device) or "unknown", False))
            continue
        memory = f"{target.memory_bytes / 2**30:.0f} GiB" if target.memory_bytes is not None else "memory unknown"
        words = f"{target.name}, {target.arch}, {target.units} units, {memory}, {' '.join(target.features)}"
        facts.append(Fact("devices", str(device), words, True))
        promise = numerics(settings.precision if settings is not None else "auto", target).fp32
        facts.append(Fact("devices", "  fp32 GEMMs", f"{promise}, by torch's setting and the option precision"))
        for name, language in LANGUAGES.items():
            missing = language.missing(target)
            text = missing if missing is not None else _toolchain(name)
            facts.append(Fact("devices", f"  {name}", text, True if missing is None else None))
    if not torch.cuda.is_available():
        facts.append(Fact("devices", "cuda", f"torch {torch.__version__} sees no GPU"))
    return facts


def _toolchain(name: str) -> str:
    try:
        return LANGUAGES[name].toolchain()
    except KforgeError as error:
        return str(error)


def _profilers() -> list[Fact]:
    """The instruments of `kforge verify --profile` for the devices that are here."""
    targets = [target for device in _found_devices() if (target := detect(device)) is not None]
    facts = []
    for item in INSTRUMENTS:
        fitting = [target for target in targets if target.kind in item.kinds]
        missing = [item.missing(target) for target in fitting]
        if fitting:
            usable = None in missing
            facts.append(Fact("profilers", item.name, item.tells if usable else f"{missing[0]} ({item.tells})", usable or None))
    return facts


def _compilers() -> list[Fact]:
    facts = []
    for name, purpose in _COMPILERS.items():
        path = shutil.which(name)
        facts.append(Fact("compilers", name, path or f"not found ({purpose})", True if path else None))
    return facts


def _sandbox() -> list[Fact]:
    """What the processes that judge candidates can be kept from here; found out by processes that try."""
    if sys.platform != "linux":
        return [Fact("sandbox", "candidates", "in the judge's process, ended by time alone: the layers are Linux's", False)]
    try:
        judge, runner, without = probe("judge"), probe("runner"), sandbox_without()
    except (KforgeError, OSError) as error:
        return [Fact("sandbox", "candidates", f"no process could be forked to find out: {error}", False)]
    if "runner" in without:
        runs = "in the judge's process: KFORGE_SANDBOX leaves the runner out"
    else:
        runs = f"on a CPU in a process each: {describe(runner)}"
    whole = "runner" not in without and all(reason is None for _, reason in runner)
    kinds = {reason for _, reason in judge}
    return [
        Fact("sandbox", "candidates", runs, whole),
        Fact("sandbox", "judge", f"{describe(judge)}; on a GPU it runs candidates itself", kinds == {None}),
    ]


def _cache(store: Store) -> list[Fact]:
    folder, shipped = store.folder, store.shipped
    place = str(folder.path) if folder.path is not None else "in memory"
    states = Counter(
        "refused" if entry.record is None else getattr(getattr(entry.record, "state", None), "value", "winner")
        for layer, entry in store.entries()
        if layer == "user"
    )
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "nothing stored yet"
    problem = store.health()
    facts = [
        Fact("cache", "folder", place, problem is None),
        Fact("cache", "health", problem or "good", problem is None),
        Fact("cache", "entries", counts, False if states["refused"] else None),
    ]
    shipped_count = sum(1 for _ in shipped.all())
    facts.append(
        Fact("cache", "shipped winners", shipped.problem or f"{shipped_count} in {shipped.home}", shipped.problem is None)
    )
    facts += [
        Fact("cache", "shared layer", f"{layer.name}: {sum(1 for _ in layer.all())} entries", True) for layer in store.shared
    ]
    facts += [Fact("cache", "shared layer", text, False) for text in store.shared_problems]
    try:
        kernels = store.artifacts()
        facts.append(Fact("cache", "built kernels", f"{len(list(kernels.all()))}, {kernels.size_bytes() / 2**20:.1f} MiB"))
    except KforgeError as error:
        facts.append(Fact("cache", "built kernels", str(error), False))
    return facts


def _environment(settings: Settings | None, wrong: str | None) -> list[Fact]:
    names = ", ".join(present_names()) or "no KFORGE_ name is set"
    keys = ", ".join(present_keys()) or f"none of {', '.join(KEY_NAMES[:3])}, ...: kernels come from the built-in generator"
    facts = [Fact("environment", "names", names), Fact("environment", "model keys", keys)]
    if wrong is not None:
        facts.append(Fact("environment", "settings", wrong, False))
    elif settings is not None:
        words = f"on_miss={settings.on_miss}, budget_s={settings.budget_s:g}, region_budget_s={settings.region_budget_s:g}"
        facts.append(Fact("environment", "settings", f"{words}, precision={settings.precision}"))
    return facts


def _ipex() -> list[Fact]:
    """Intel's extension is looked for, never imported: beside torch 2.11 and newer its import ends the process."""
    if importlib.util.find_spec("intel_extension_for_pytorch") is None:
        return []
    text = (
        "intel-extension-for-pytorch is installed. Its vendor has archived it; the last release needs torch 2.8 and must not be "
        "imported beside a newer one. kforge does not use it; uninstall it, Inductor covers what it did"
    )
    return [Fact("environment", "ipex", text, False)]


def _summary(facts: list[Fact], settings: Settings | None, store: Store) -> list[Fact]:
    """What falls back here, one sentence each."""
    falls = []
    if settings is not None and settings.disabled:
        falls.append("everything is left to Inductor: KFORGE_DISABLE is set")
    for device in dict.fromkeys(fact.name for fact in facts if fact.section == "devices" and not fact.name.startswith(" ")):
        target = detect(torch.device(device)) if device != "cuda" else None
        if target is not None and all(language.missing(target) is not None for language in LANGUAGES.values()):
            reasons = "; ".join(str(language.missing(target)) for language in LANGUAGES.values())
            falls.append(f"regions on {device} are left to Inductor: {reasons}")
    if not may_search_by_default():
        falls.append("this process would not search by itself: it is a child, or one of several ranks; stored winners are used")
    if store.folder.path is None or store.folder.temporary or not store.folder.writable:
        falls.append(f"winners are not kept where they should be: {store.folder.problem}")
    if settings is None:
        falls.append("nothing compiles with kforge until the environment name above is put right")
    if not falls:
        return [Fact("falls back", "nothing", "regions run on winners; what has none is Inductor's", True)]
    return [Fact("falls back", f"{number}.", text, False) for number, text in enumerate(falls, 1)]
