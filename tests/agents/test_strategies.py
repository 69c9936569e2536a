"""Strategies as pure functions of the state."""

from dataclasses import replace

import pytest
from agent_scene import PLAN, trial_of

from kforge_dynamo.agents.strategies import STRATEGIES, Attempt, Move, Plan, State, feature_weights, next_moves, stop_reason
from kforge_dynamo.records.candidate import Candidate, LaunchPlan
from kforge_dynamo.records.outcome import Status


def add(state, us=None, kind="optimise", parent=None, island=0, status=Status.INACCURATE, features=()):
    number = len(state.attempts)
    candidate = Candidate("cpp", str(number), LaunchPlan((), ()), "", "ieee", "x")
    move = Move(kind, parent, island=island, features=features)
    state.attempts.append(Attempt(number, number, state.round, move, candidate, trial_of(candidate, us, status), str(number)))
    return number


def fresh(name, **changes):
    return State(replace(PLAN, strategy=name, **changes), "cpu")


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_strategy_begins_without_a_parent_and_ends_with_its_rounds(name):
    state = fresh(name)
    moves = next_moves(state)
    assert moves and all(move.kind == "fresh" and move.parent is None for move in moves)
    state.round = state.plan.iterations
    assert next_moves(state) == ()


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_same_state_gives_the_same_moves(name):
    def built():
        state = fresh(name)
        for number, us in enumerate((90.0, 70.0, None, 80.0)):
            add(state, us, island=number % 3)
        state.round = 2
        return next_moves(state)

    assert built() == built()


def test_serial_gives_up_a_kernel_after_three_repairs():
    state = fresh("serial")
    number = add(state, None, "fresh")
    for _ in range(3):
        assert next_moves(state) == (Move("repair", number),)
        number = add(state, None, "repair", number)
    assert next_moves(state) == (Move("fresh"),)


@pytest.mark.parametrize("status", [Status.REJECTED, Status.TOO_FAST])
def test_kernel_that_cheats_is_not_repaired(status):
    state = fresh("serial")
    add(state, None, "fresh", status=status)
    assert next_moves(state)[0].kind == "fresh"


def test_translation_comes_first_where_there_is_a_reference():
    state = fresh("serial")
    state.translate = True
    assert next_moves(state)[0].kind == "translate"
    add(state, 50.0, "translate")
    assert next_moves(state)[0].kind == "optimise"


def test_best_of_asks_for_variants_of_the_best():
    state = fresh("best-of", width=3)
    add(state, 90.0)
    best = add(state, 50.0)
    assert next_moves(state) == tuple(Move("optimise", best, variant=variant) for variant in range(3))


def test_beam_repairs_what_broke_and_improves_the_best_few():
    state = fresh("beam", width=4)
    state.round = 1
    numbers = [add(state, us) for us in (90.0, 50.0, 70.0)]
    broken = add(state, None, parent=numbers[1])
    assert next_moves(state) == (Move("repair", broken), *(Move("optimise", numbers[at]) for at in (1, 2, 0)))


def test_islands_develop_apart_and_exchange_now_and_then():
    state = fresh("evolve", islands=2)
    a, b = add(state, 50.0, island=0), add(state, 60.0, island=1)
    state.round = 1
    assert {(move.parent, move.island) for move in next_moves(state)} == {(a, 0), (b, 1)}
    state.round = 2
    assert next_moves(state) == (Move("combine", a, b, 0), Move("combine", b, a, 1))


def test_kernels_that_look_alike_count_once():
    state = fresh("beam")
    add(state, 50.0)
    add(state, 50.1)
    other = add(state, 80.0)
    assert [item.number for item in state.ranked()] == [0, other]


def test_features_that_gained_are_drawn_more_often():
    state = fresh("features")
    parent = add(state, 100.0)
    names = list(feature_weights(state))
    add(state, 50.0, parent=parent, features=(names[0],))
    add(state, None, parent=parent, features=(names[1],))
    weights = feature_weights(state)
    assert weights[names[0]] == 2.0 and weights[names[1]] == 0.8 and weights[names[2]] == 1.0
    add(state, 49.0, parent=parent)
    drawn = []
    for number in range(200):
        state.plan = Plan("features", 1000, seed=number)
        drawn += next_moves(state)[0].features
    assert drawn.count(names[0]) > drawn.count(names[2]) > 0
    assert all(len(set(next_moves(state)[0].features)) == 2 for _ in range(1))


def test_gain_is_over_the_nearest_right_ancestor():
    state = fresh("serial")
    parent = add(state, 100.0, "seed")
    broken = add(state, None, parent=parent)
    repaired = add(state, 80.0, "repair", broken)
    assert state.gain(state.attempts[repaired]) == 1.25
    assert state.gain(state.attempts[parent]) is None


def test_stop_near_the_roofline_only_where_it_is_known():
    state = fresh("serial")
    add(state, 10.0)
    assert stop_reason(state, None) is None and stop_reason(state, 9.0) is None
    assert "roofline" in stop_reason(state, 9.6)
