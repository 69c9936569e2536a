"""What to ask next: search strategies as a table of pure functions over the same state.

A strategy reads the attempts so far and returns the moves of the next round, none when it has nothing left to try. Chance comes
from the plan's seed and the number of the round alone, so that a recorded run takes the same decisions again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kforge_dynamo.records.candidate import Candidate
from kforge_dynamo.records.diagnosis import Change, Diagnosis
from kforge_dynamo.records.outcome import Status, Trial

REPAIRABLE = frozenset(Status) - {Status.PASSED, Status.UNSTABLE_TIMING, Status.NOT_TESTABLE, Status.REJECTED, Status.TOO_FAST}
"""Verdicts that a change of the same kernel can cure; the others call for another kernel, or for none."""

_MOST_REPAIRS = 3
_IMPROVEMENT = 1.01
_EXCHANGE_EVERY = 3

FEATURES = {
    "cpu": (
        "register tile: other numbers of rows and columns kept in registers",
        "cache blocks: split K so that a panel of the weight stays in the first or second cache",
        "packing: copy the weight once into the order in which it is read",
        "prefetch of the next panel",
        "unrolling of the innermost loop, several independent accumulators",
        "threads over columns as well as rows",
        "split of K over threads with one reduction at the end",
        "epilogue on the tile while it is still in registers",
        "fewer passes over the row in a reduction, statistics kept beside the tile",
    ),
    "cuda": (
        "tile sizes of rows, columns and K",
        "number of warps and of pipeline stages",
        "tensor descriptors (TMA) in place of pointer arithmetic",
        "persistent programs that loop over tiles",
        "split of K with a second reduction",
        "order of tiles grouped for the second-level cache",
        "epilogue in column halves to lower register pressure",
        "row statistics inside the kernel of the product",
        "operands loaded once for several products",
    ),
}
"""Ideas that feature search draws from, by the target's kind (after CUDA-LLM: good ones are drawn more often)."""


@dataclass(frozen=True, slots=True)
class Move:
    """One request. `kind` is "fresh", "repair", "optimise", "combine" or "translate"; `parent` and `partner` are attempts by
    number, `variant` tells requests with the same parent apart, `features` are ideas to try."""

    kind: str
    parent: int | None = None
    partner: int | None = None
    island: int = 0
    variant: int = 0
    features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Attempt:
    """One candidate and what became of it; `candidate` is None where a reply gave none, and `problem` says why."""

    number: int
    step: int
    round: int
    move: Move
    candidate: Candidate | None
    trial: Trial | None
    identity: str = ""
    problem: str = ""
    idea: str = ""
    change: Change | None = None
    diagnosis: Diagnosis | None = None

    @property
    def us(self) -> float:
        """The median time, infinity where it was not timed (for ordering only)."""
        timings = self.trial.timings if self.trial is not None else ()
        return min((item.candidate.median_us for item in timings), default=math.inf)

    @property
    def right(self) -> bool:
        """Whether it passed and was timed."""
        return math.isfinite(self.us)

    @property
    def repairable(self) -> bool:
        """Whether its fault may be cured in the same kernel."""
        return self.trial is not None and self.trial.verdict.status in REPAIRABLE


@dataclass(frozen=True, slots=True)
class Plan:
    """How to search. `iterations` bounds rounds, `width` the moves of a round (best-of, beam), `islands` those of evolution.
    The search ends after `patience` rounds without an improvement of 1 %, or at `share` of the roofline's speed."""

    strategy: str = "serial"
    iterations: int = 5
    width: int = 4
    islands: int = 3
    patience: int = 6
    share: float = 0.95
    seed: int = 0


@dataclass(slots=True)
class State:
    """What strategies see."""

    plan: Plan
    kind: str
    translate: bool = False
    round: int = 0
    attempts: list[Attempt] = field(default_factory=list)

    def best(self, island: int | None = None) -> Attempt | None:
        """The fastest right attempt, of one island or of all."""
        return next(iter(self.ranked(island)), None)

    def ranked(self, island: int | None = None) -> list[Attempt]:
        """Right attempts, the fastest first; of those that look alike (same code, or same limit and nearly the same time) only
        the first."""
        chosen = [item for item in self.attempts if item.right and (island is None or item.move.island == island)]
        seen: set[object] = set()
        result = []
        for item in sorted(chosen, key=lambda item: item.us):
            look = signature(item)
            if item.identity not in seen and look not in seen:
                result.append(item)
            seen |= {item.identity, look}
        return result

    def last(self, island: int | None = None) -> Attempt | None:
        """The latest attempt."""
        return next((item for item in reversed(self.attempts) if island is None or item.move.island == island), None)

    def gain(self, attempt: Attempt) -> float | None:
        """Time of the nearest right ancestor (repairs in between are skipped) over the time of the attempt, None without one."""
        number = attempt.move.parent
        while attempt.right and number is not None:
            if self.attempts[number].right:
                return self.attempts[number].us / attempt.us
            number = self.attempts[number].move.parent
        return None


Strategy = Callable[[State], tuple[Move, ...]]


def signature(attempt: Attempt) -> tuple[object, ...]:
    """Novelty by profile: what limits it, and its time in steps of 2 %."""
    limit = attempt.diagnosis.limit.value if attempt.diagnosis is not None else ""
    return (limit, round(math.log(attempt.us) / math.log(1.02)), attempt.candidate.language if attempt.candidate else "")


def stop_reason(state: State, floor_us: float | None) -> str | None:
    """Why the search is over although its budget is not; None while it is not."""
    best = state.best()
    if best is not None and floor_us is not None and best.us * state.plan.share <= floor_us:
        return f"the best kernel reaches {floor_us / best.us:.0%} of the roofline's speed"
    if best is not None and state.round - _last_improvement(state) >= state.plan.patience:
        return f"no improvement within {state.plan.patience} rounds"
    return None


def _last_improvement(state: State) -> int:
    """The round of the last attempt that was clearly better than all before."""
    found, best_us = 0, math.inf
    for item in state.attempts:
        if item.us * _IMPROVEMENT < best_us:
            found, best_us = item.round, item.us
    return found


def next_moves(state: State) -> tuple[Move, ...]:
    """The moves of the plan's strategy; none when its rounds are used up."""
    if state.round >= state.plan.iterations:
        return ()
    return STRATEGIES[state.plan.strategy](state)


def serial(state: State) -> tuple[Move, ...]:
    """The paper's loop: repair until right, then improve the best, one request at a time."""
    return (_single(state, None),)


def best_of(state: State) -> tuple[Move, ...]:
    """Several independent improvements of the same parent each round."""
    parent = state.best()
    kind = "optimise" if parent is not None else _first(state)
    number = parent.number if parent is not None else None
    return tuple(Move(kind, number, variant=variant) for variant in range(state.plan.width))


def beam(state: State) -> tuple[Move, ...]:
    """The best few each improved; what the last round broke is repaired first."""
    broken = [item for item in state.attempts if item.round == state.round and item.repairable and item.move.kind != "repair"]
    moves = [Move("repair", item.number) for item in broken[: state.plan.width // 2]]
    moves += [Move("optimise", item.number) for item in state.ranked()[: state.plan.width - len(moves)]]
    return tuple(moves) or tuple(Move(_first(state), variant=variant) for variant in range(state.plan.width))


def evolve(state: State) -> tuple[Move, ...]:
    """Islands that develop by themselves, and now and then take up an idea of the neighbour's best."""
    count = max(1, state.plan.islands)
    return tuple(_island_move(state, island, count) for island in range(count))


def features(state: State) -> tuple[Move, ...]:
    """The best improved by two features, drawn the more often the more they gained so far."""
    last = _single(state, None)
    if last.kind != "optimise":
        return (last,)
    weights = feature_weights(state)
    chance = random.Random(f"{state.plan.seed}/{state.round}")
    names = list(weights)
    first = chance.choices(names, [weights[name] for name in names])[0]
    rest = [name for name in names if name != first]
    second = chance.choices(rest, [weights[name] for name in rest])[0]
    return (Move("optimise", last.parent, features=(first, second)),)


def feature_weights(state: State) -> dict[str, float]:
    """The weight of each feature: multiplied by what an attempt with it gained, lowered by a failure."""
    weights = dict.fromkeys(FEATURES.get(state.kind, FEATURES["cuda"]), 1.0)
    for item in state.attempts:
        gain = state.gain(item)
        factor = min(max(gain, 0.5), 3.0) if gain is not None else 0.8
        for name in item.move.features:
            weights[name] = min(max(weights[name] * factor, 0.05), 20.0)
    return weights


def _single(state: State, island: int | None) -> Move:
    last, where = state.last(island), island or 0
    if last is not None and last.repairable and _repairs(state, last) < _MOST_REPAIRS:
        return Move("repair", last.number, island=where)
    best = state.best(island)
    if best is not None:
        return Move("optimise", best.number, island=where)
    return Move(_first(state), island=where)


def _first(state: State) -> str:
    return "translate" if state.translate and not any(item.candidate for item in state.attempts) else "fresh"


def _repairs(state: State, attempt: Attempt) -> int:
    """How many repairs led to this attempt."""
    count = 0
    while attempt.move.kind == "repair" and attempt.move.parent is not None:
        attempt = state.attempts[attempt.move.parent]
        count += 1
    return count


def _island_move(state: State, island: int, count: int) -> Move:
    move = _single(state, island)
    if move.kind != "optimise":
        seed = state.best()
        fresh = move.kind == "fresh" and seed is not None and not any(a.move.island == island for a in state.attempts)
        return Move("optimise", seed.number, island=island, variant=island) if fresh and seed is not None else move
    ranked = state.ranked(island)
    neighbour = state.best((island + 1) % count)
    if neighbour is not None and count > 1 and state.round % _EXCHANGE_EVERY == _EXCHANGE_EVERY - 1:
        return Move("combine", ranked[0].number, neighbour.number, island)
    chance = random.Random(f"{state.plan.seed}/{state.round}/{island}")
    parent = chance.choices(ranked, [1.0 / (1 + rank) for rank in range(len(ranked))])[0]
    return Move("optimise", parent.number, island=island, variant=island)


STRATEGIES: dict[str, Strategy] = {
    "serial": serial,
    "best-of": best_of,
    "beam": beam,
    "evolve": evolve,
    "features": features,
}
"""By the names of `kforge warm --strategy`."""


def predictions(state: State) -> Sequence[tuple[Attempt, float, float | None]]:
    """Attempts that followed a prediction: (attempt, predicted gain, measured gain or None)."""
    return [(item, item.change.gain, state.gain(item)) for item in state.attempts if item.change is not None]
