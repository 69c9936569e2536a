"""`torch.compile(model, backend="kforge")`: step 1 of a graph's way, on one screen.

The graph goes to Inductor's own `compile_fx` with our post-grad pass added. Whatever of ours fails, the user gets
Inductor's result; where Inductor itself cannot compile, AOTAutograd's; and one log line that says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx

from kforge_dynamo import inductor_entry, ledger
from kforge_dynamo.errors import MissError
from kforge_dynamo.graph_pass import GraphWork, prepare
from kforge_dynamo.settings import Settings, configure_logging

Compiled = Callable[..., Any]


def kforge(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Compiled:
    """Compiles `gm`: its regions run on winners, Inductor does the rest.

    `options` holds kforge's own names (see `settings`) and any of Inductor's; `mode` is torch.compile's.
    Raises: SettingsError for an unknown name or a value outside its domain; MissError under `on_miss="error"`.
    """
    settings, inductor_options = Settings.parse(options)
    patches = inductor_entry.mode_patches(mode) | inductor_options
    if settings.record is not None:  # a graph that comes from a cache would not show its regions
        patches |= inductor_entry.UNCACHED
    spare = inductor_entry.copy_graph(gm)
    configure_logging(settings)
    if settings.disabled:
        return _without_kforge(gm, spare, example_inputs, patches)
    try:
        work: GraphWork | None = prepare(gm, example_inputs, settings, mode, patches)
    except Exception as error:  # noqa: BLE001  kforge must never be the reason that a model fails
        ledger.say_once(f"kforge left a graph to Inductor: {type(error).__name__}: {str(error)[:300]}")
        work = None
    if work is None:
        return _without_kforge(gm, spare, example_inputs, patches)
    return _with_kforge(gm, spare, example_inputs, patches, work)


def _with_kforge(
    gm: fx.GraphModule, spare: fx.GraphModule, example_inputs: Sequence[Any], patches: Mapping[str, Any], work: GraphWork
) -> Compiled:
    again = inductor_entry.copy_graph(spare)
    try:
        with work, inductor_entry.afresh(work.settings.record is not None):
            return inductor_entry.compile_graph(gm, example_inputs, patches, work)
    except Exception as error:  # ours or Inductor's: the next try tells which
        if inductor_entry.steers(error):
            raise
        missed = inductor_entry.cause(error, MissError)
        if missed is not None:
            raise missed from None
        if inductor_entry.no_compiler(error):
            return _uncompiled(spare, example_inputs, error)
        result = _without_kforge(again, spare, example_inputs, patches)
        ledger.say_once(
            f"kforge left a graph to Inductor, which compiled it without kforge; please report this: "
            f"{type(error).__name__}: {str(error)[:300]}"
        )
        ledger.count("fallbacks")
        return result


def _without_kforge(
    gm: fx.GraphModule, spare: fx.GraphModule, example_inputs: Sequence[Any], patches: Mapping[str, Any]
) -> Compiled:
    try:
        return inductor_entry.compile_graph(gm, example_inputs, patches, None)
    except Exception as error:  # Inductor cannot compile this graph here; the model still has to run
        if inductor_entry.steers(error) or not inductor_entry.no_compiler(error):
            raise
        return _uncompiled(spare, example_inputs, error)


def _uncompiled(gm: fx.GraphModule, example_inputs: Sequence[Any], error: Exception) -> Compiled:
    """AOTAutograd's graph, run op by op: Dynamo's own graph would redraw the masks of checkpointed dropout."""
    ledger.say_once(
        f"this machine cannot compile ({str(error).strip().splitlines()[0][:200]}): the model runs uncompiled. "
        "Install g++ or clang++, or set CXX to a C++ compiler"
    )
    ledger.count("fallbacks")
    return inductor_entry.run_uncompiled(gm, example_inputs)
