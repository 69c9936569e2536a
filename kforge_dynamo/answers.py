"""What is known of a region: look it up, search it where that is allowed, remember it. Composes store, forge and worker.

One `Desk` serves one compile; the worker, the purse and the store are shared by the process.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from kforge_dynamo import ledger, runtime
from kforge_dynamo.codegen.builtin import BuiltinGenerator
from kforge_dynamo.errors import KforgeError, StoreError
from kforge_dynamo.evaluation import Evaluator
from kforge_dynamo.forge import PURSE, Bench, Miss, settle
from kforge_dynamo.languages.base import Launcher
from kforge_dynamo.languages.table import LANGUAGES
from kforge_dynamo.records.assignment import Assignment
from kforge_dynamo.records.codec import digest, from_plain, plain
from kforge_dynamo.records.outcome import CacheKey, Provenance, Standing, State, Terms, Winner
from kforge_dynamo.records.site import Site
from kforge_dynamo.records.target import Numerics, Target
from kforge_dynamo.records.task import Domain, Task
from kforge_dynamo.settings import Settings
from kforge_dynamo.store import Access, Found, Store, key_of, open_store, state_text
from kforge_dynamo.targets import detect, kforge_version, numerics, provenance, unknown_reason

_log = logging.getLogger("kforge")
_LEAST_S = 1.0  # less time than this cannot judge a single candidate


@dataclass(frozen=True, slots=True)
class Inquiry:
    """A question to the store: a task at sizes on a device under numerics. `name` identifies it in graph epochs."""

    name: str
    key: CacheKey
    task: Task
    sizes: tuple[int, ...]
    domain: Domain
    target: Target
    numerics: Numerics
    title: str
    regime: str
    device: str

    def assignment(self) -> Assignment:
        """The question without the store's part in it: what a task file holds."""
        kind = self.device.partition(":")[0]
        return Assignment(self.title, kind, self.task, self.sizes, self.domain, self.numerics)


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to an inquiry: a winner, or the state and the reason why there is none.

    `epoch` is the answer as graph epochs record it, None where it can only change with kforge itself. `pending` says that a
    search for it goes on in the background.
    """

    winner: Winner | None
    state: str
    reason: str
    epoch: str | None
    pending: bool = False


class Desk:
    """Answers the inquiries of one compile."""

    def __init__(self, settings: Settings, store: Store, mode: str, patches: Mapping[str, Any]) -> None:
        self._settings = settings
        self._store = store
        self._mode = mode
        self._inductor = json.dumps(
            {name: value for name, value in patches.items() if isinstance(value, bool | int | float | str)}
        )
        self._generator = BuiltinGenerator(settings.languages) if settings.languages else BuiltinGenerator()

    @classmethod
    def open(cls, settings: Settings, mode: str, patches: Mapping[str, Any]) -> Desk:
        """A desk over the process's store for these settings."""
        store = store_of(settings)
        _STORES[settings.cache_dir] = store
        return cls(settings, store, mode, patches)

    def inquiry(
        self, task: Task, sizes: tuple[int, ...], domain: Domain, device: torch.device, title: str, regime: str
    ) -> Inquiry | str:
        """The question for a region, or a sentence that says why none can be asked on this device."""
        target = detect(device)
        if target is None:
            return unknown_reason(device) or f"kforge does not know the device {device}"
        rules = numerics(self._settings.precision, target)
        key = key_of(task, target, rules)
        name = json.dumps([plain(key), list(sizes)], separators=(",", ":"))
        return Inquiry(name, key, task, sizes, domain, target, rules, title, regime, _indexed(device))

    def refuses(self, task: Task, device: torch.device) -> str | None:
        """Why no generator writes `task` for `device`: the lowering then makes the region smaller."""
        target = detect(device)
        return None if target is None else self._generator.rejects(task, target)

    def answer(self, inquiries: Iterable[Inquiry]) -> dict[str, Reply]:
        """The answers by name; equal inquiries are asked once. Searches the misses where the settings allow it."""
        replies: dict[str, Reply] = {}
        misses: dict[str, tuple[Inquiry, Found | None]] = {}
        for item in inquiries:
            if item.name in replies or item.name in misses:
                continue
            found = self._lookup(item.key, item.sizes, item.target)
            if found is not None and found.state in (State.WINNER, State.NO_WINNER):
                ledger.count("hits")
                replies[item.name] = _reply(found)
                continue
            ledger.count("misses")
            refused = self._generator.rejects(item.task, item.target)
            missing = self._missing(item.target)
            if refused is not None:
                replies[item.name] = Reply(None, "rejected", refused, None)
            elif missing is not None:
                replies[item.name] = Reply(None, "not_searched", missing, state_text(found))
            else:
                misses[item.name] = (item, found)
        return replies | self._settle(misses)

    def state(self, name: str) -> str:
        """What the store answers now to the inquiry of this name, as text for graph epochs."""
        key_data, sizes = json.loads(name)
        key: CacheKey = from_plain(CacheKey, key_data)
        target = next((item for item in _present_targets() if item.name == key.device), None)
        return state_text(self._lookup(key, tuple(sizes), target))

    def begin(self, graph: str) -> str:
        """The epoch of the graph with this digest."""
        return self._store.epochs.begin(graph, self.state, self._settings.searching)

    def record(self, graph: str, epoch: str, states: Mapping[str, str]) -> None:
        """Keeps the states under which a pass of the graph was compiled."""
        self._store.epochs.record(graph, epoch, states)

    def _missing(self, target: Target) -> str | None:
        """Why no language can be built for `target` here."""
        reasons = [LANGUAGES[name].missing(target) for name in self._generator.languages(target)]
        return None if None in reasons else next(iter(reasons), f"no language writes for {target.name}")

    def _lookup(self, key: CacheKey, sizes: tuple[int, ...], target: Target | None) -> Found | None:
        if target is None:
            return self._store.lookup(key, sizes)
        terms = None
        if self._settings.searching:
            terms = Terms(self._generator.version, self._generator.languages(target), self._settings.region_budget_s, 0)
        return self._store.lookup(key, sizes, functools.partial(_provenance, target), terms)

    def _settle(self, misses: Mapping[str, tuple[Inquiry, Found | None]]) -> dict[str, Reply]:
        """Searches in the order of estimated gain, until the process's budget is spent."""
        if not misses:
            return {}
        unknown = [item for item, found in misses.values() if found is None]
        if unknown:  # remembered before any search, so that what the budget does not reach can be seen and warmed
            self._store.put_standing(
                *(Standing(item.key, item.domain, State.NOT_SEARCHED, "not searched yet", None, None) for item in unknown)
            )
        ranked = sorted(misses.values(), key=lambda pair: -self._gain_us(pair[0]))
        if not self._settings.searching:
            return {item.name: self._unsearched(found, "this process does not search") for item, found in ranked}
        if self._settings.on_miss == "background":
            return self._in_background(ranked)
        left_s = PURSE.left_s(self._settings.budget_s)
        if left_s >= _LEAST_S:
            _announce(len(ranked), min(left_s, len(ranked) * self._settings.region_budget_s))
        return {item.name: self._search(item, found) for item, found in ranked}

    def _gain_us(self, item: Inquiry) -> float:
        return self._generator.gain_us(item.task, item.sizes, item.target)

    def _in_background(self, ranked: Sequence[tuple[Inquiry, Found | None]]) -> dict[str, Reply]:
        """Answers "not searched" at once, and searches in a thread that waits for the worker.

        Only regions of predicted gain, and none under CUDA graphs: a graph that was captured would never change over.
        """
        worth = [pair for pair in ranked if pair[0].regime == "wall" and self._gain_us(pair[0]) > 0.0]

        def work() -> None:
            for item, found in worth:
                reply = self._search(item, found)
                ledger.update_reports(item.key.task, reply.state, reply.reason)
                if reply.winner is not None:
                    runtime.renew(item.key)
            rest()

        replies = {item.name: self._unsearched(found, "not searched yet") for item, found in ranked}
        for item, _ in worth:
            replies[item.name] = replace(replies[item.name], reason="a search in the background has been started", pending=True)
        if worth:
            threading.Thread(target=work, name="kforge-search", daemon=True).start()
        return replies

    def _search(self, item: Inquiry, found: Found | None) -> Reply:
        budget_s = min(self._settings.region_budget_s, PURSE.left_s(self._settings.budget_s))
        if budget_s < _LEAST_S:
            return self._unsearched(found, "the search budget of this process is spent")
        ledger.tell("search", item.title, budget_s)
        evaluator = evaluator_for(item.target, item.device)
        started = time.monotonic()
        bench = Bench(
            target=item.target,
            numerics=item.numerics,
            generator=self._generator,
            evaluate=evaluator.bound(self._mode, self._inductor, item.numerics),
            provenance=lambda language: provenance(language, LANGUAGES[language].toolchain(), item.target),
        )
        miss = Miss(item.key, item.task, item.sizes, item.domain, item.title, item.regime)
        seeds = (found.winner.trial.candidate,) if found is not None and found.winner is not None else ()
        try:
            evaluator.wait()
            answer, _ = settle(miss, bench, budget_s, seeds)
        except KforgeError as error:
            return self._unsearched(found, f"the search could not run: {error}")
        finally:
            PURSE.spend(time.monotonic() - started)
        if isinstance(answer, Winner):
            self._store.put_winner(answer)
            record = Found(State.WINNER, "user", answer, None, "")
        else:
            self._store.put_standing(answer)
            record = Found(answer.state, "user", None, answer, answer.reason)
        reply = _reply(record)
        ledger.tell("settled", item.title, reply.state, reply.reason)
        return reply

    def _unsearched(self, found: Found | None, why: str) -> Reply:
        """The reply for a region that is not searched now."""
        if found is None:
            return Reply(None, "not_searched", why, "not_searched")
        reason = f"{why}; {found.reason}" if found.reason else why
        return Reply(None, found.state.value, reason, state_text(found))


_STORES: dict[str | None, Store] = {}
_EVALUATORS: dict[str, Evaluator] = {}
_lock = threading.Lock()


def store_of(settings: Settings) -> Store:
    """The store that these settings name."""
    on_load = settings.verify == "on-load"
    return open_store(settings.cache_dir, Access(settings.cache_layers, settings.trust, on_load))


def evaluator_for(target: Target, device: str) -> Evaluator:
    """The evaluator of a device, one a process."""
    name = f"{device} {target.name}"
    with _lock:
        if name not in _EVALUATORS:
            _EVALUATORS[name] = Evaluator(target, device)
        return _EVALUATORS[name]


def _indexed(device: torch.device) -> str:
    return (
        "cpu"
        if device.type == "cpu"
        else f"{device.type}:{torch.cuda.current_device() if device.index is None else device.index}"
    )


def rest() -> None:
    """Lets the workers end when they are not needed again soon."""
    with _lock:
        for evaluator in _EVALUATORS.values():
            evaluator.rest()


def resolve(site: Site) -> tuple[Winner, Launcher]:
    """Finds, builds where its binary is gone, and loads the winner of a site. Raises: StoreError with the reason."""
    store, winner = _stored(site)
    candidate = winner.trial.candidate
    language = LANGUAGES[candidate.language]
    target = detect(torch.device(site.device))
    if target is None or target.name != site.key.device:
        raise StoreError(f"the winner was made for {site.key.device}, this is {target.name if target else site.device}")

    def build(folder: Path) -> Path:
        return language.build(candidate, site.task, target, folder)

    context = f"{language.toolchain()} {target.name}"
    return winner, language.load(store.artifact(candidate, build, context), candidate, site.task, site.raw_dims)


def _present(found: Found | None) -> Winner | None:
    return None if found is None else found.winner


def _stored(site: Site) -> tuple[Store, Winner]:
    """The winner of a site from the stores that this process has opened, the default one last."""
    for store in [*reversed(_STORES.values()), open_store(None)]:
        winner = store.winner_of(site.key, site.winner) if site.winner else _present(store.lookup(site.key, site.sizes))
        if winner is not None:
            return store, winner
    raise StoreError(f"the cache has no winner for task {site.key.task[:12]} on {site.key.device}")


def numerics_text(precision: str) -> str:
    """A digest of every flag that changes results here: it goes into the key of Inductor's caches."""
    known = _present_targets()
    rules = [digest(numerics(precision, target)) for target in known]
    return hashlib.sha256(" ".join([target.name for target in known] + rules).encode()).hexdigest()[:16]


def _present_targets() -> list[Target]:
    devices = [torch.device("cpu")] + [torch.device("cuda")] * torch.cuda.is_available()
    return [target for target in map(detect, devices) if target is not None]


def _reply(found: Found) -> Reply:
    reason = f"{found.winner.trial.timings[0].speedup:.2f}x" if found.winner is not None else found.reason
    return Reply(found.winner, found.state.value, reason, state_text(found))


def _provenance(target: Target, language: str) -> Provenance | None:
    """What an entry in `language` would be made with now; None where it cannot be used."""
    if language not in LANGUAGES or LANGUAGES[language].missing(target) is not None:
        return None
    return provenance(language, LANGUAGES[language].toolchain(), target)


def _announce(regions: int, limit_s: float) -> None:
    _log.info(
        "searching kernels for %d region%s, for at most %.0f s (once; winners are kept on disk). "
        "KFORGE_ON_MISS=fallback or options={'on_miss': 'fallback'} turns this off",
        regions,
        "s" if regions > 1 else "",
        limit_s,
    )


@functools.lru_cache(maxsize=1)
def version() -> str:
    """kforge's version and a digest of its sources: a change of either makes Inductor compile again."""
    root = Path(__file__).parent
    found = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        found.update(path.read_bytes())
    return f"{kforge_version()}-{found.hexdigest()[:16]}"
