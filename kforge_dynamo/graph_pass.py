"""Steps 2 to 8 of a graph's way, inside Inductor's post-grad pass: partition, look up, search, splice, record.

`prepare` runs before Inductor and fixes the graph's epoch; `GraphWork.run` is called once for each forward and backward
graph that Inductor's caches do not know.
"""

from __future__ import annotations

import contextlib
import contextvars
import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch
from torch import fx

from kforge_dynamo import answers, inductor_entry, keeper, ledger, runtime, sites
from kforge_dynamo.answers import Desk
from kforge_dynamo.errors import MissError
from kforge_dynamo.evaluation import rest
from kforge_dynamo.forge import Context, floor_us, shortfall
from kforge_dynamo.lowering import inductor
from kforge_dynamo.lowering.explain import explain
from kforge_dynamo.lowering.partition import partition
from kforge_dynamo.lowering.regions import Partition, Region
from kforge_dynamo.lowering.repair import repair
from kforge_dynamo.lowering.shape_reads import free_sizes
from kforge_dynamo.lowering.splice import fed_strides, splice
from kforge_dynamo.lowering.statics import weight_inputs
from kforge_dynamo.records.assignment import task_text
from kforge_dynamo.records.codec import digest, from_text, to_text
from kforge_dynamo.records.outcome import Winner
from kforge_dynamo.records.site import Site
from kforge_dynamo.records.task import AxisRange, Domain, point
from kforge_dynamo.settings import Settings

_log = logging.getLogger("kforge")

_EXCLUDED: contextvars.ContextVar[frozenset[str]] = contextvars.ContextVar("excluded", default=frozenset())
_DEVICE_KINDS = ("cpu", "cuda")
_WIDTH = 4  # a symbolic size is verified from a fourth to four times the size that was met first


@dataclass(slots=True)
class GraphWork:
    """Our pass for one Dynamo graph: its forward and, when there is one, its backward graph."""

    settings: Settings
    desk: Desk
    graph: str
    identity: str
    epoch: str
    regime: str
    place: str
    left_out: Mapping[str, str]
    states: dict[str, str] = field(default_factory=dict)
    moved: dict[fx.Node, fx.Node] = field(default_factory=dict)
    weights: frozenset[fx.Node] = frozenset()
    watched: frozenset[fx.Node] = frozenset()

    def __enter__(self) -> GraphWork:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.settings.on_miss != "background":
            rest()

    def run(self, graph: fx.Graph) -> None:
        """Splices the winners of `graph`'s regions. Raises: MissError under `on_miss="error"`; nothing else."""
        if not inductor.python_wrapper():
            ledger.say_once("kforge leaves graphs with a C++ or FX wrapper to Inductor (cpp_wrapper, AOTInductor)", logging.INFO)
            return
        try:
            repair(graph)
            free_sizes(graph)
            found = partition(graph, _DEVICE_KINDS, self.desk.refuses)
            self.weights, self.watched = self._weights(graph)
        except Exception as error:  # noqa: BLE001  a graph we cannot read is Inductor's
            ledger.say_once(f"kforge could not read a graph and left it to Inductor: {type(error).__name__}: {error}")
            return
        ledger.count("regions", len(found.regions))
        ledger.count("rejected", len(found.rejections))
        if ledger.heard() or _log.isEnabledFor(logging.DEBUG):
            text = explain(found)
            ledger.tell("partition", f"graph {self.graph[:12]}", text)
            _log.debug("graph %s\n%s", self.graph[:12], text)
        try:
            self._regions(graph, found)
            self.desk.record(self.graph, self.epoch, self.states)
        except MissError:
            raise
        except Exception as error:  # noqa: BLE001  what is spliced by now is right; the rest is Inductor's
            ledger.say_once(f"kforge left the rest of a graph to Inductor: {type(error).__name__}: {error}")
        inductor.sort(graph)

    def _regions(self, graph: fx.Graph, found: Partition) -> None:
        inquiries = [self._inquiry(region) for region in found.regions]
        for item in inquiries:
            if not isinstance(item, str) and ledger.heard():
                ledger.tell("region", item.title, task_text(item.assignment()))
        replies = self.desk.answer([item for item in inquiries if not isinstance(item, str)])
        for region, inquiry in zip(found.regions, inquiries, strict=True):
            if isinstance(inquiry, str):
                self._report(region, None, "rejected", inquiry)
                continue
            reply = replies[inquiry.name]
            if reply.epoch is not None:
                self.states[inquiry.name] = reply.epoch
            try:
                self._place(graph, region, inquiry, reply)
            except MissError:
                raise
            except Exception as error:  # noqa: BLE001  one region less is a slower graph, not a wrong one
                ledger.say_once(f"kforge could not splice a region: {type(error).__name__}: {error}")
                self._report(region, inquiry, "rejected", f"internal: {type(error).__name__}")

    def _weights(self, graph: fx.Graph) -> tuple[frozenset[fx.Node], frozenset[fx.Node]]:
        """What copies may be kept of, and what they may be kept of under the device's proof. None under Inductor's CUDA graphs,
        whose pool takes back all memory between two runs."""
        if self.settings.prepack == "off" or self.regime != "wall":
            return frozenset(), frozenset()
        static = inductor_entry.weights(graph, True)
        return (static, frozenset()) if self.settings.prepack == "trust" else (inductor_entry.weights(graph, False), static)

    def _inquiry(self, region: Region) -> answers.Inquiry | str:
        """The question for a region, or why there is none."""
        known = region.binding.hints
        if known is None:
            return "its sizes depend on data and are not known when the graph is compiled"
        domain = _domain(region, known)
        known_strides = fed_strides(region) is not None
        kept = known_strides and bool(weight_inputs(region, self.weights))
        proven = known_strides and bool(weight_inputs(region, self.watched))
        return self.desk.inquiry(region.task, known, domain, region.device, region.title, self.regime, kept, proven)

    def _place(self, graph: fx.Graph, region: Region, inquiry: answers.Inquiry, reply: answers.Reply) -> None:
        if reply.winner is not None:
            context = Context(region.facts.fused_consumer, max(0, region.facts.removed_bytes or 0), self.regime)
            reason = shortfall(reply.winner.trial.timings, context, inquiry.target)
            if reason is not None:
                self._report(region, inquiry, "no_winner", reason, reply.winner)
                return
            winner = digest(reply.winner.trial.candidate)
            slower = self.left_out.get(_splice_name(inquiry, winner))
            if slower is not None:
                self._report(region, inquiry, "no_winner", slower, reply.winner)
                return
            plan, rules = reply.winner.trial.candidate.plan, inquiry.numerics
            self._splice(graph, region, inquiry, winner, bool(plan.proof))
            ledger.count("winners")
            words = "spliced, packed weights are kept" if rules.kept and plan.prepack else "spliced"
            words = "spliced, packed weights are kept and checked in each call" if rules.proven and plan.proof else words
            self._report(region, inquiry, "winner", words, reply.winner)
        elif self.settings.on_miss == "error":
            raise MissError(
                f"region {inquiry.title!r} has no winner for sizes {inquiry.sizes} ({reply.reason}); "
                "run `kforge warm` for this model, or drop on_miss='error'"
            )
        elif reply.pending:
            self._splice(graph, region, inquiry, "")
            self._report(region, inquiry, "pending", reply.reason)
        else:
            self._report(region, inquiry, reply.state, reply.reason)

    def _splice(self, graph: fx.Graph, region: Region, inquiry: answers.Inquiry, winner: str, proves: bool = True) -> None:
        rules = inquiry.numerics
        weights = weight_inputs(region, self.weights) if rules.kept else ()
        weights = weight_inputs(region, self.watched) if rules.proven and proves else weights
        sizes = [axis.size for axis in region.binding.axes]
        fixed = all(isinstance(size, int) for size in sizes)
        site = Site(
            key=inquiry.key,
            task=region.task,
            raw_dims=region.binding.raw_dims,
            output_ranks=tuple(len(output.meta["val"].shape) for output in region.outputs),
            sizes=inquiry.sizes,
            fixed=fixed,
            device=region.device.type,
            winner=winner,
            strides=fed_strides(region),
            weights=weights,
            proven=rules.proven and bool(weights),
        )
        splice(graph, inductor.operator(), to_text(site), region, () if fixed else sizes, self.moved)

    def _report(
        self, region: Region, inquiry: answers.Inquiry | None, state: str, reason: str, winner: Winner | None = None
    ) -> None:
        timing = next((item for item in winner.trial.timings if item.regime == self.regime), None) if winner else None
        _log.debug("region %s %s: %s, %s", region.title, inquiry.sizes if inquiry else "", state, reason)
        ledger.add_report(
            ledger.RegionReport(
                graph=self.graph[:12],
                title=region.title,
                task=digest(region.task),
                sizes=inquiry.sizes if inquiry else None,
                state=state,
                reason=reason,
                speedup=timing.speedup if timing else None,
                error_ratio=winner.trial.verdict.error_ratio if winner else None,
                scheme=winner.trial.candidate.scheme if winner else None,
                candidate_us=timing.candidate.median_us if timing else None,
                region_us=timing.region.median_us if timing else None,
                place=self.place,
                splice=_splice_name(inquiry, digest(winner.trial.candidate)) if inquiry and winner else "",
                schedule=winner.trial.candidate.schedule if winner else None,
                floor_us=floor_us(region.task, inquiry.sizes, inquiry.target) if inquiry else None,
            )
        )


def prepare(
    gm: fx.GraphModule, example_inputs: Sequence[Any], settings: Settings, mode: str | None, patches: Mapping[str, Any]
) -> GraphWork:
    """Digests the Dynamo graph and fixes its epoch. Before: nothing compiled; after: the pass to give to Inductor."""
    keeper.limit(settings.prepack_bytes)
    regime = "replay" if inductor_entry.captures_graphs(patches) else "wall"
    desk = Desk.open(settings, mode or "default", patches)
    rules = answers.numerics_text(settings.precision)
    graph = _graph_digest(gm, example_inputs, settings, mode, patches, rules)
    epoch = desk.begin(graph)
    overlap = inductor_entry.overlap_pattern(example_inputs)
    place = _graph_digest(gm, example_inputs, settings, None, patches, rules)  # a mode counts by what it sets
    left_out = desk.left_out(place) | dict.fromkeys(_EXCLUDED.get(), "left out for a comparison")
    without = hashlib.sha256("\n".join(sorted(left_out)).encode()).hexdigest()[:16] if left_out else "all"
    identity = "/".join(["kforge", answers.version(), rules, epoch, overlap, regime, without, settings.prepack])
    return GraphWork(settings, desk, graph, identity, epoch, regime, place, left_out)


@contextlib.contextmanager
def leaving_out(splices: Iterable[str]) -> Iterator[None]:
    """Graphs that are compiled inside do without these splices, whatever was decided for them."""
    token = _EXCLUDED.set(frozenset(splices))
    try:
        yield
    finally:
        _EXCLUDED.reset(token)


def _splice_name(inquiry: answers.Inquiry, winner: str) -> str:
    """A splice in a graph: all regions of one task and sizes, and the winner; another winner is another splice."""
    return hashlib.sha256(f"{inquiry.name} {winner}".encode()).hexdigest()


def _graph_digest(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    settings: Settings,
    mode: str | None,
    patches: Mapping[str, Any],
    rules: str,
) -> str:
    parts = [str(gm.graph), torch.__version__, rules, str(mode), str(sorted((k, str(v)) for k, v in patches.items()))]
    parts += [settings.precision, settings.prepack, ",".join(settings.languages), inductor_entry.overlap_pattern(example_inputs)]
    parts += [_input_text(item) for item in example_inputs]
    parts += [_input_text(parameter) for _, parameter in sorted(gm.named_parameters())]
    parts.append(f"grad={torch.is_grad_enabled()}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _input_text(item: Any) -> str:
    if not isinstance(item, torch.Tensor):
        return f"{type(item).__name__}"
    stride = item.stride() if item.layout is torch.strided else None
    return f"{item.dtype} {tuple(item.shape)} {stride} {item.device} {item.requires_grad}"


def _domain(region: Region, sizes: tuple[int, ...]) -> Domain:
    """The sizes a winner is asked for: those met, and for symbolic ones a range around them."""
    exact = point(region.task, sizes)
    return Domain(
        tuple(
            item if isinstance(axis.size, int) else AxisRange(item.axis, max(1, item.low // _WIDTH), item.high * _WIDTH)
            for item, axis in zip(exact.ranges, region.binding.axes, strict=True)
        )
    )


def describe_site(text: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Output dtypes and ranks of a site, for the op's fake implementation."""
    site = from_text(Site, text)
    return tuple(site.task.value(number).dtype for number in site.task.outputs), site.output_ranks


def call_site(text: str, inputs: Sequence[torch.Tensor], sizes: Sequence[int], outputs: Sequence[torch.Tensor]) -> None:
    """A site through the dispatcher: where Inductor's wrapper is not Python."""
    runner = runtime.load(text)
    runner.checked(inputs, outputs, runner.site.sizes if runner.site.fixed else tuple(sizes))


inductor.register(call_site, describe_site)
runtime.install(sites.resolve)
