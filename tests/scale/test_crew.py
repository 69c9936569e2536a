"""A crew: every search is done once, on one device, whatever evaluators are lost; scripted seats stand for devices."""

from __future__ import annotations

import itertools
import sys
import threading
from pathlib import Path

import pytest
import torch

from kforge_dynamo import answers
from kforge_dynamo.answers import Desk
from kforge_dynamo.errors import LostError, SettingsError, ToolchainError
from kforge_dynamo.forge import Miss
from kforge_dynamo.records.codec import from_text, to_text
from kforge_dynamo.records.outcome import CacheKey, Measurement, Status, Timings, Trial, Verdict
from kforge_dynamo.records.request import Request
from kforge_dynamo.records.target import Numerics, Target
from kforge_dynamo.scale import cluster
from kforge_dynamo.scale.crew import Crew, Lease
from kforge_dynamo.scale.seats import LocalSeat, Place, local_seats, place_of
from kforge_dynamo.settings import Settings
from kforge_dynamo.store import close_stores, open_store

sys.path.insert(0, str(Path(__file__).parents[1] / "store"))
from store_records import candidate
from test_recorded_regions import region

HERE = Place(Target("cpu", "x", "a device", "avx2", 1, None, None, (), ()), ("cpp: torch 1",))
RULES = Numerics("highest", False, False, False)


class Scripted:
    """A seat that passes everything, until `dies` says that it is gone."""

    def __init__(self, name, place=HERE, dies=lambda request: False, gate=None):
        self.name, self.place, self.dies, self.gate = name, place, dies, gate
        self.asked, self.closed = [], 0

    def evaluate(self, request):
        self.asked.append(request)
        if self.gate is not None:
            self.gate(request)
        if self.dies(request):
            raise LostError("the machine went away")
        times = Timings("wall", "default", Measurement((5.0,) * 20, "s"), Measurement((20.0,) * 20, "s"), None)
        return Trial(request.candidate, Verdict(Status.PASSED, 1.0, 1e-7, "", ""), (times,))

    def close(self):
        self.closed += 1


def miss(rows: int) -> Miss:
    asked = region(rows)
    return Miss(CacheKey("a", HERE.target.name, "b", 1), asked.task, asked.sizes, asked.domain, str(rows), "wall")


def work(rows: int, trials: int = 3):
    """A search of so many trials; gives the rows and the statuses."""

    def run(judge):
        judge.wait()
        evaluate = judge.bound("default", "{}", RULES)
        found = [evaluate(miss(rows), candidate(f"// {rows} {number}"), "search", 5.0) for number in range(trials)]
        return rows, [item.verdict.status for item in found]

    return HERE.target.name, run


def passed(rows: int):
    return rows, [Status.PASSED] * 3


def searches(seat) -> list[int]:
    """The rows of the searches a seat was asked for, neighbours once."""
    return [rows for rows, _ in itertools.groupby(request.sizes[0] for request in seat.asked)]


def test_every_search_is_done_once_and_results_keep_their_order():
    seats = [Scripted(str(number)) for number in range(4)]
    crew = Crew(seats, [HERE])
    assert crew.each([work(rows) for rows in range(1, 21)]) == [passed(rows) for rows in range(1, 21)]
    asked = [request for seat in seats for request in seat.asked]
    assert len(asked) == 60 and {request.target for request in asked} == {HERE.target}


def test_search_stays_on_one_seat_from_first_trial_to_last():
    seats = [Scripted(str(number)) for number in range(3)]
    Crew(seats, [HERE]).each([work(rows) for rows in range(1, 13)])
    told = [rows for seat in seats for rows in searches(seat)]
    assert sorted(told) == list(range(1, 13)), "a search that changed its seat would be listed twice"


def test_all_seats_work_at_the_same_time():
    together = threading.Barrier(3, timeout=60)
    seats = [Scripted(str(number), gate=lambda request: together.wait()) for number in range(3)]
    assert len(Crew(seats, [HERE]).each([work(rows, 1) for rows in (1, 2, 3)])) == 3


def test_what_a_lost_seat_was_asked_is_asked_again_elsewhere():
    doomed = Scripted("doomed", dies=lambda request: request.candidate.source.endswith(" 1"))
    sound = Scripted("sound")
    crew = Crew([doomed, sound], [HERE])
    taken = threading.Event()  # the doomed seat has a search for sure before the sound one ends all of them
    doomed.gate = lambda request: taken.set()
    sound.gate = lambda request: taken.wait(60)
    assert crew.each([work(rows) for rows in range(1, 7)]) == [passed(rows) for rows in range(1, 7)]
    lost = doomed.asked[-1]
    again = [request for request in sound.asked if request.candidate == lost.candidate]
    assert len(again) == 1 and doomed.closed == 1 and crew.size == 1
    assert [words.split()[0] for words in crew.losses] == ["doomed"] and "went away" in crew.losses[0]


def test_kernel_that_costs_two_evaluators_is_a_failure_of_its_own_and_the_rest_goes_on():
    evil = lambda request: request.candidate.source == "// 2 1"  # noqa: E731
    seats = [Scripted(str(number), dies=evil) for number in range(3)]
    crew = Crew(seats, [HERE])
    found = crew.each([work(rows) for rows in range(1, 6)])
    assert found[1] == (2, [Status.PASSED, Status.RUNTIME_ERROR, Status.PASSED])
    assert [item for item in found if item[0] != 2] == [passed(rows) for rows in (1, 3, 4, 5)]
    assert crew.size == 1 and len(crew.losses) == 2


def test_searches_end_with_a_sentence_when_every_evaluator_is_lost():
    crew = Crew([Scripted("only", dies=lambda request: True)], [HERE])
    with pytest.raises(ToolchainError, match=r"no evaluator has the device a device; lost: only .*went away"):
        crew.each([work(1), work(2)])


def test_device_that_nobody_has_is_a_sentence_and_not_a_wait():
    with pytest.raises(ToolchainError, match="no evaluator has the device other"):
        Crew([Scripted("x")], [HERE]).each([("other", work(1)[1])])


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (Place(HERE.target, ("cpp: torch 2",)), "it has cpp: torch 2, and here is cpp: torch 1"),
        (Place(Target("cpu", "x", "another", "avx2", 1, None, None, (), ()), HERE.software), "its device is another"),
    ],
)
def test_seat_with_other_software_or_device_is_closed_and_said(place, words, caplog):
    stranger = Scripted("stranger", place)
    crew = Crew([stranger, Scripted("own")], [HERE])
    assert crew.size == 1 and stranger.closed == 1 and words in caplog.text
    crew.each([work(1)])
    assert not stranger.asked


def test_search_that_raises_frees_its_seat():
    crew = Crew([Scripted("only")], [HERE])

    def broken(judge):
        judge.wait()
        raise ValueError("of the search")

    with pytest.raises(ValueError, match="of the search"):
        crew.each([(HERE.target.name, broken)])
    assert crew.each([work(3)]) == [passed(3)]


def test_close_ends_every_seat():
    seats = [Scripted("a"), Scripted("b")]
    crew = Crew(seats, [HERE])
    crew.close()
    assert [seat.closed for seat in seats] == [1, 1] and crew.size == 0


@pytest.fixture
def desk(tmp_path):
    close_stores()
    settings, _ = Settings.parse(
        {
            "on_miss": "search",
            "cache_dir": str(tmp_path / "cache"),
            "region_budget_s": 20.0,
            "languages": "cpp",
            "budget_s": 86400.0,
        }
    )
    yield Desk.open(settings, "default", {})
    close_stores()


def ask(desk, sizes, seats, places):
    crew = Crew(seats, places)
    questions = [desk.recorded(region(rows), "wall") for rows in sizes]
    with answers.spread(crew):
        replies = desk.answer(questions)
    return [replies[item.name].state for item in questions]


def test_warmed_regions_are_stored_once_and_a_driver_that_starts_again_goes_on(desk, tmp_path):
    """Half of the regions are lost with every evaluator; the next driver searches those and no other."""
    here = place_of(torch.device("cpu"))
    first = Scripted("first", here)
    first.dies = lambda request: len(set(searches(first))) > 2
    assert sorted(ask(desk, [1, 2, 3, 4], [first], [here])) == ["not_searched"] * 2 + ["winner"] * 2
    known = stored(tmp_path)
    assert len(known) == 2
    second = Scripted("second", here)
    assert ask(desk, [1, 2, 3, 4], [second], [here]) == ["winner"] * 4
    assert {request.sizes[0] for request in second.asked} == {1, 2, 3, 4} - set(known)
    assert stored(tmp_path) == [1, 2, 3, 4]


def stored(folder) -> list[int]:
    """The rows of the winners on disk, as another process sees them."""
    close_stores()
    entries = [entry for layer, entry in open_store(str(folder / "cache")).entries() if (layer, entry.kind) == ("user", "winner")]
    return sorted(entry.domain.ranges[0].low for entry in entries)


class _Ray:
    """As much of Ray as a seat touches."""

    class exceptions:
        class RayError(Exception):
            pass

    def __init__(self, answer):
        self.answer, self.killed = answer, []

    def get(self, reference, timeout):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer(reference)

    def kill(self, actor):
        self.killed.append(actor)


class _Actor:
    class place:
        remote = staticmethod(lambda: to_text(HERE))

    class evaluate:
        remote = staticmethod(lambda text: text)


def request() -> Request:
    lease = Lease(Crew([seat := Scripted("x")], [HERE]), HERE.target.name)
    lease.bound("default", "{}", RULES)(miss(4), candidate(), "search", 5.0)
    return seat.asked[0]


def test_cluster_seat_carries_request_and_trial_as_text():
    asked, ray = request(), _Ray(lambda text: text)
    seat = cluster.ClusterSeat(ray, _Actor, "node 0")
    assert seat.place == HERE
    done = Scripted("there").evaluate(asked)
    ray.answer = lambda text: to_text(done) if from_text(Request, text) == asked else "{}"
    assert seat.evaluate(asked) == done
    seat.close()
    assert ray.killed == [_Actor]


@pytest.mark.parametrize("answer", [_Ray.exceptions.RayError("died"), lambda text: "{}", lambda text: 7])
def test_dead_actor_and_answers_that_are_none_are_a_lost_evaluator(answer):
    ray = _Ray(lambda text: text)
    seat = cluster.ClusterSeat(ray, _Actor, "node 0")
    ray.answer = answer
    with pytest.raises(LostError):
        seat.evaluate(request())


def test_ray_that_is_not_installed_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SettingsError, match=r"kforge-dynamo\[ray\]"):
        cluster.cluster_seats("auto", "cpu")


def test_worker_that_cannot_start_is_a_lost_evaluator(monkeypatch):
    seat = LocalSeat("cpu")

    def refuse(*_):
        raise ToolchainError("no python")

    monkeypatch.setattr(seat._worker, "evaluate", refuse)
    with pytest.raises(LostError, match="cpu: no python"):
        seat.evaluate(request())
    seat.close()


def test_local_seats_are_one_cpu_and_every_gpu(monkeypatch):
    (seat,) = local_seats("cpu")
    assert seat.place == place_of(torch.device("cpu")) and seat.place.software
    seat.close()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ToolchainError, match="kforge doctor"):
        local_seats("cuda")
