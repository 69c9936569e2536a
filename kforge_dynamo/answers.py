"""What is known of a region: look it up, search it where that is allowed, remember it. Composes store, forge and worker.

One `Desk` serves one compile; the worker, the purse and the store are shared by the process.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from kforge_dynamo import ledger, rechecks, runtime
from kforge_dynamo.agents.search import search
from kforge_dynamo.codegen.builtin import BuiltinGenerator
from kforge_dynamo.errors import KforgeError
from kforge_dynamo.evaluation import Crew, Judge, evaluator_for, rest
from kforge_dynamo.forge import PURSE, Answer, Bench, Miss, Search, settle
from kforge_dynamo.languages.table import LANGUAGES
from kforge_dynamo.records.assignment import Assignment
from kforge_dynamo.records.codec import digest, from_plain, plain
from kforge_dynamo.records.outcome import CacheKey, Standing, State, Terms, Winner
from kforge_dynamo.records.target import Numerics, Target
from kforge_dynamo.records.task import Domain, Task
from kforge_dynamo.settings import Settings, may_search_by_default
from kforge_dynamo.sites import store_of
from kforge_dynamo.store import UNVERIFIED, Found, Store, key_of, recorded, state_text
from kforge_dynamo.targets import detect, indexed, kforge_version, numerics, provenance, unknown_reason

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
        return cls(settings, store_of(settings), mode, patches)

    def inquiry(
        self,
        task: Task,
        sizes: tuple[int, ...],
        domain: Domain,
        device: torch.device,
        title: str,
        regime: str,
        kept: bool = False,
        proven: bool = False,
    ) -> Inquiry | str:
        """The question for a region, or a sentence that says why none can be asked on this device. What a kernel prepares of
        weights will outlive the call where it is `kept`, or `proven` by the device; it is the usual one where no kernel does."""
        target = detect(device)
        if target is None:
            return unknown_reason(device) or f"kforge does not know the device {device}"
        rules = numerics(self._settings.precision, target)
        if kept and self._generator.prepares(task, target):
            rules = replace(rules, kept=True)
        elif proven and self._generator.proves(task, target):
            rules = replace(rules, proven=True)
        return _question(task, sizes, domain, target, rules, title, regime, device)

    def recorded(self, assignment: Assignment, regime: str) -> Inquiry | str:
        """The question for a region that another process met, under the numerics that held there; else as `inquiry`."""
        device = torch.device(assignment.device)
        target = detect(device)
        if target is None:
            return unknown_reason(device) or f"kforge does not know the device {device}"
        rules, what = assignment.numerics, assignment
        return _question(what.task, what.sizes, what.domain, target, rules, what.title, regime, device)

    def refuses(self, task: Task, device: torch.device) -> str | None:
        """Why no generator writes `task` for `device`: the lowering then makes the region smaller."""
        target = detect(device)
        return None if target is None else self._generator.rejects(task, target)

    def answer(self, inquiries: Iterable[Inquiry]) -> dict[str, Reply]:
        """The answers by name; equal inquiries are asked once. Searches the misses where the settings allow it."""
        replies: dict[str, Reply] = {}
        misses: dict[str, tuple[Inquiry, Found | None]] = {}
        asked = list(inquiries)
        if self._settings.record is not None:
            recorded.append(Path(self._settings.record), ((item.assignment(), item.regime) for item in asked))
        for item in asked:
            if item.name in replies or item.name in misses:
                continue
            found = self._verified(item, self._lookup(item.key, item.sizes, item.target))
            if found is not None and found.state in (State.WINNER, State.NO_WINNER) and not self._agents_work:
                ledger.count("hits")
                replies[item.name] = _reply(found)
                continue
            ledger.count("misses")
            refused = self._generator.rejects(item.task, item.target)
            missing = self._missing(item.target)
            if refused is not None and not self._agents_work:
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

    @property
    def _agents_work(self) -> bool:
        """Whether the agents are at work here: then what is stored is where they start, and no template has to fit."""
        return self._settings.on_miss == "agent" and bool(_appointed)

    def left_out(self, place: str) -> dict[str, str]:
        """The splices that made the graph of this digest slower, with the reasons."""
        return self._store.epochs.left_out(place)

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
        return self._store.lookup(key, sizes, functools.partial(rechecks.made_now, target), terms)

    def _verified(self, item: Inquiry, found: Found | None) -> Found | None:
        """`found`; where it is of a shared layer and must be verified first, what the store says after that."""
        if found is None or found.reason != UNVERIFIED or not may_search_by_default():
            return found
        _log.info("verifying the winner of %s for %s", found.layer, item.title)
        evaluator = evaluator_for(item.target, item.device)
        reason = rechecks.verify(self._store, found, item.assignment(), evaluator, self._mode)
        if reason is not None:
            ledger.say_once(f"the winner of {found.layer} for {item.title} is not used: {reason}")
        return self._lookup(item.key, item.sizes, item.target)

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
        if not _crews:
            return {item.name: self._search(item, found) for item, found in ranked}
        works = [(item.target.name, functools.partial(self._search, item, found)) for item, found in ranked]
        return {item.name: reply for (item, _), reply in zip(ranked, _crews[-1].each(works), strict=True)}

    def _gain_us(self, item: Inquiry) -> float:
        return self._generator.gain_us(item.task, item.sizes, item.target)

    def _in_background(self, ranked: Sequence[tuple[Inquiry, Found | None]]) -> dict[str, Reply]:
        """Answers "not searched" at once, and searches in a thread that waits for the worker.

        Only regions of predicted gain, and none under CUDA graphs: a graph that was captured would never change over.
        """
        worth = [pair for pair in ranked if pair[0].regime == "wall" and (_won(pair[1]) or self._gain_us(pair[0]) > 0.0)]

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

    def _search(self, item: Inquiry, found: Found | None, judge: Judge | None = None) -> Reply:
        if self._settings.on_miss == "agent" and not _appointed:
            return self._unsearched(found, "on_miss='agent' is for `kforge warm --model NAME`; nothing was searched")
        budget_s = min(self._settings.region_budget_s, PURSE.left_s(self._settings.budget_s))
        if budget_s < _LEAST_S:
            return self._unsearched(found, "the search budget of this process is spent")
        ledger.tell("search", item.title, budget_s)
        evaluator = judge if judge is not None else evaluator_for(item.target, item.device)
        started = time.monotonic()
        bench = Bench(
            target=item.target,
            numerics=item.numerics,
            generator=self._generator,
            evaluate=evaluator.bound(self._mode, self._inductor, item.numerics),
            provenance=lambda language: provenance(language, LANGUAGES[language].toolchain(), item.target),
            search=_appointed[-1] if self._agents_work else search,
        )
        miss = Miss(item.key, item.task, item.sizes, item.domain, item.title, item.regime)
        try:
            evaluator.wait()
            started = time.monotonic()  # a worker that must first import torch has searched nothing
            answer = None if self._agents_work else self._proven(found, miss, bench, budget_s)
            if answer is None:
                left_s = max(_LEAST_S, budget_s - (time.monotonic() - started))
                winner = _present(found)
                seeds = rechecks.seeds(self._store, item.key, item.sizes, item.target)
                known = (winner.trial.candidate,) if winner is not None and winner.trial.candidate not in seeds else ()
                answer, _ = settle(miss, bench, left_s, (*known, *seeds))
        except KforgeError as error:
            return self._unsearched(found, f"the search could not run: {error}")
        finally:
            if judge is None:  # a crew's searches go on beside each other; each has its own bound
                PURSE.spend(time.monotonic() - started)
        if isinstance(answer, Winner):
            self._store.put_winner(answer)
            record = Found(State.WINNER, "user", answer, None, "")
        elif found is not None and found.state is State.WINNER:  # the agents found nothing better, and the old one stands
            record = found
        else:
            self._store.put_standing(answer)
            record = Found(answer.state, "user", None, answer, answer.reason)
        reply = _reply(record)
        ledger.tell("settled", item.title, reply.state, reply.reason)
        return reply

    def _proven(self, found: Found | None, miss: Miss, bench: Bench, budget_s: float) -> Answer | None:
        """The winner that older software left, where it still is one."""
        winner = _present(found)
        return None if winner is None else rechecks.prove_again(miss, bench, winner, budget_s)

    def _unsearched(self, found: Found | None, why: str) -> Reply:
        """The reply for a region that is not searched now."""
        if found is None:
            return Reply(None, "not_searched", why, "not_searched")
        reason = f"{why}; {found.reason}" if found.reason else why
        return Reply(None, found.state.value, reason, state_text(found))


@contextlib.contextmanager
def appointed(agents: Search) -> Iterator[None]:
    """Within it, compiles under `on_miss="agent"` search by `agents`."""
    _appointed.append(agents)
    try:
        yield
    finally:
        _appointed.remove(agents)


@contextlib.contextmanager
def spread(crew: Crew) -> Iterator[None]:
    """Within it, misses are searched by `crew`, several at once."""
    _crews.append(crew)
    try:
        yield
    finally:
        _crews.remove(crew)


_appointed: list[Search] = []
_crews: list[Crew] = []


def _question(
    task: Task,
    sizes: tuple[int, ...],
    domain: Domain,
    target: Target,
    rules: Numerics,
    title: str,
    regime: str,
    device: torch.device,
) -> Inquiry:
    key = key_of(task, target, rules)
    name = json.dumps([plain(key), list(sizes)], separators=(",", ":"))
    return Inquiry(name, key, task, sizes, domain, target, rules, title, regime, indexed(device))


def leave_out(place: str, splices: Mapping[str, str], settings: Settings) -> bool:
    """Keeps which splices the graph of this digest does without; True when that is on disk."""
    return store_of(settings).epochs.leave_out(place, splices)


def _won(found: Found | None) -> bool:
    """Whether there was a winner once: it is worth a try again, whatever is predicted."""
    return _present(found) is not None


def _present(found: Found | None) -> Winner | None:
    return None if found is None else found.winner


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
