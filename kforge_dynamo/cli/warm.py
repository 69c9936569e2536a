"""`kforge warm TARGET`: search the regions of a model offline, so that later processes find their winners."""

from __future__ import annotations

import contextlib
import functools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from kforge_dynamo import answers, inductor_entry, ledger
from kforge_dynamo.agents.campaign import Campaign
from kforge_dynamo.cli import agents, crews, measure, whole_graph
from kforge_dynamo.cli.explain import run_once
from kforge_dynamo.cli.loading import Device, Dtype, Function, Shapes, TargetWord, Train, load_target, make_inputs
from kforge_dynamo.cli.measure import own_code
from kforge_dynamo.cli.recorded import warm_recorded
from kforge_dynamo.errors import SettingsError
from kforge_dynamo.settings import Settings
from kforge_dynamo.sites import store_of

_ALL_S = 86400.0
_SEARCH_S, _MODEL_S = 30.0, 600.0
_NO_SHAPES: list[str] = []
_ROUNDS = 15
"""Rounds of the comparison of whole models; the two take turns in each."""
_WHOLE_S = 4.0
"""Time for each comparison of a graph with and without splices."""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(warm)


def warm(
    target: TargetWord = "",
    shapes: Shapes = _NO_SHAPES,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    precision: Annotated[str, typer.Option(help="auto, strict or mixed")] = "auto",
    budget: Annotated[float | None, typer.Option(help="seconds a region; 30, with a model 600")] = None,
    mode: Annotated[str, typer.Option(help="the torch.compile mode the model will run under")] = "default",
    train: Train = False,
    function: Function = False,
    recorded: Annotated[Path | None, typer.Option(metavar="FILE", help="regions that KFORGE_RECORD met, not a TARGET")] = None,
    language_model: agents.ModelName = "",
    analyst: agents.AnalystName = "",
    strategy: agents.StrategyName = "serial",
    iterations: agents.Iterations = 5,
    budget_tokens: agents.Tokens = None,
    budget_money: agents.Money = None,
    budget_candidates: agents.Candidates = None,
    reference: agents.Reference = None,
    memory: agents.Memory = True,
    seed: agents.Seeding = True,
    ray: crews.RayAddress = "",
    all_devices: crews.AllDevices = False,
) -> None:
    """Search kernels for the regions of a model and keep the winners; drop a splice that makes the whole model slower."""
    asked = agents.chosen(language_model)
    if asked and (ray or all_devices):
        raise SettingsError(
            "--ray and --all-devices spread the built-in generator's searches; leave --model and KFORGE_MODEL out"
        )
    if recorded is not None and language_model:
        raise SettingsError("--recorded searches by the built-in generator; leave --model out, or name a TARGET")
    if recorded is not None:
        warm_recorded(recorded, budget if budget is not None else _SEARCH_S, mode, ray, all_devices)
        return
    if not target or not shapes:
        raise SettingsError("warm needs a TARGET and its --shapes, or --recorded with a file that KFORGE_RECORD wrote")
    words = agents.Words(
        language_model, analyst, strategy, iterations, budget_tokens, budget_money, budget_candidates, reference, memory, seed
    )
    campaign = agents.campaign(words, store_of(Settings.parse()[0])) if asked else None
    model = load_target(target, function=function)
    if isinstance(model, torch.nn.Module):
        model = model.to(device=device, dtype=getattr(torch, dtype)).train(train)
    console = Console()
    seconds = budget if budget is not None else _MODEL_S if campaign is not None else _SEARCH_S
    on_miss = "agent" if campaign is not None else "search"
    options: dict[str, Any] = {"on_miss": on_miss, "budget_s": _ALL_S, "region_budget_s": seconds, "precision": precision}
    options |= torch._inductor.list_mode_options(mode)
    with crews.crew(ray, all_devices, [device], asked):
        for call in shapes:
            inputs = make_inputs(call.split(","), dtype=dtype, device=device)
            _warm_call(console, model, call, inputs, campaign, options, mode, train)


def _warm_call(
    console: Console,
    model: Callable[..., Any],
    call: str,
    inputs: list[torch.Tensor],
    campaign: Campaign | None,
    options: dict[str, Any],
    mode: str,
    train: bool,
) -> None:
    """Searches the regions of one call, decides for whole graphs, and prints both."""
    ledger.reset()
    torch.compiler.reset()
    with _progress(console), _asking(campaign):
        compiled = torch.compile(model, backend="kforge", options=options)
        run_once(compiled, inputs, train=train)
        reports: Sequence[ledger.RegionReport] = ledger.report()
    compiled, reports = _kept(model, compiled, inputs, options, train, reports)
    console.print(_table(call, reports))
    other = own_code(model, "inductor") if isinstance(model, torch.nn.Module) else model
    baseline = torch.compile(other, options=torch._inductor.list_mode_options(mode))
    console.print(_comparison(compiled, baseline, inputs, train))


@contextlib.contextmanager
def _asking(campaign: Campaign | None) -> Iterator[None]:
    """Where a model is asked every graph goes through our pass again, whatever Inductor's caches hold."""
    if campaign is None:
        yield
        return
    with inductor_entry.without_caches(), answers.appointed(campaign.search):
        yield


def _kept(
    model: Callable[..., Any],
    compiled: Callable[..., Any],
    inputs: list[torch.Tensor],
    options: dict[str, Any],
    train: bool,
    reports: Sequence[ledger.RegionReport],
) -> tuple[Callable[..., Any], Sequence[ledger.RegionReport]]:
    """The model and its reports with the splices that the whole graph is not slower with, which is kept in the cache."""
    known = options | {"on_miss": "fallback"}  # everything was searched
    build = whole_graph.builder(model, inputs, known, functools.partial(run_once, train=train))
    decision = whole_graph.decide(reports, build, lambda calls: measure.wall(calls, inputs[0].device.type, _WHOLE_S))
    if not decision.left_out:
        return compiled, reports
    whole_graph.keep(decision)
    torch.compiler.reset()
    compiled = torch.compile(model, backend="kforge", options=known)
    run_once(compiled, inputs, train=train)
    return compiled, whole_graph.after(decision, reports)


class _progress:
    """Shows the region being searched, its time limit, and how the last one ended."""

    def __init__(self, console: Console) -> None:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True)
        self._line = self._progress.add_task("compiling", total=None)

    def __enter__(self) -> None:
        self._progress.start()
        self._silence = ledger.listen(self._show)

    def __exit__(self, *_: object) -> None:
        self._silence()
        self._progress.stop()

    def _show(self, event: str, title: str, detail: str, more: str) -> None:
        if event == "search":
            self._progress.update(self._line, description=f"{title} (at most {float(detail):.0f} s)")
        elif event == "step":
            self._progress.console.print(f"  {escape(detail)}", highlight=False)
        elif event == "settled":
            self._progress.console.print(f"  {detail:12} {title}: {more}", highlight=False)


def _table(call: str, reports: Sequence[ledger.RegionReport]) -> Table:
    table = Table(title=f"regions for {call}")
    for name in ("region", "sizes", "state", "kforge us", "inductor us", "speed-up", "error ratio", "scheme", "reason"):
        table.add_column(name, overflow="fold")
    for item in reports:
        numbers = [item.candidate_us, item.region_us, item.speedup, item.error_ratio]
        texts = ["-" if number is None else f"{number:.2f}" for number in numbers]
        table.add_row(item.title, str(item.sizes), item.state, *texts, item.scheme or "-", item.reason)
    return table


def _comparison(compiled: Callable[..., Any], baseline: Callable[..., Any], inputs: list[torch.Tensor], train: bool) -> str:
    """Medians of whole calls, taken in turns, after both are compiled."""
    times: dict[str, list[float]] = {"kforge": [], "inductor": []}
    for function in (compiled, baseline):
        _timed(function, inputs, train)
    for _ in range(_ROUNDS):
        times["kforge"].append(_timed(compiled, inputs, train))
        times["inductor"].append(_timed(baseline, inputs, train))
    ours, theirs = (statistics.median(times[name]) for name in ("kforge", "inductor"))
    return f"whole model: kforge {ours:.3f} ms, inductor {theirs:.3f} ms, ratio {theirs / ours:.3f} ({torch.__version__})"


def _timed(function: Callable[..., Any], inputs: list[torch.Tensor], train: bool) -> float:
    """Wall time of one call in milliseconds, the device included."""
    if inputs[0].is_cuda:
        torch.cuda.synchronize()
    started = time.perf_counter()
    run_once(function, inputs, train=train)
    if inputs[0].is_cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - started) * 1e3
