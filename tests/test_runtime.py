"""Runners: what they check at a call, and what they do when a winner is missing or comes later."""

import threading
from dataclasses import replace

import pytest
import torch

from kforge_dynamo import ledger, runtime
from kforge_dynamo.errors import BuildError, StoreError
from kforge_dynamo.records.codec import to_text
from kforge_dynamo.records.outcome import CacheKey
from kforge_dynamo.records.site import Site
from kforge_dynamo.records.task import AxisRange, Domain, InputRole, InputSpec, Node, Task, ValueSpec
from kforge_dynamo.semantics.evaluate import evaluate

KEY = CacheKey("t", "cpu", "n", 1)


def task():
    row, weight, out = (ValueSpec("float32", *s) for s in ((("m",), (8,)), ((1,), (8, 4)), (("m",), (4,))))
    inputs = (InputSpec(row, ("dense", 1), InputRole.LHS), InputSpec(weight, (0, 1, "dense"), InputRole.RHS))
    return Task(("m",), (), inputs, (Node("gemm", (0, 1), (("alpha", 1.0), ("beta", 1.0)), out),), (2,))


def site(*, fixed=False, winner="w", device="cpu"):
    return Site(KEY, task(), ((0, 1), (None, 0, 1)), (2,), (5,), fixed, device, winner)


class Stored:
    """Stands for a stored winner that was verified for 2 to 8 rows."""

    domain = Domain((AxisRange("m", 2, 8),))


@pytest.fixture(autouse=True)
def fresh():
    ledger.reset()
    runtime.forget()
    before = list(runtime._resolve)
    yield
    runtime._resolve[:] = before
    runtime.forget()


@pytest.fixture
def launched():
    """The sizes that the winner was launched with."""
    calls = []

    def launch(inputs, outputs, sizes):
        calls.append(tuple(sizes))
        outputs[0].copy_(evaluate(task(), inputs, {"m": sizes[0]})[0])

    runtime.install(lambda site: (Stored, launch))
    return calls


def call(runner, rows, *sizes):
    x, w, out = torch.randn(rows, 8), torch.randn(4, 8).t(), torch.full((rows, 4), torch.nan)
    runner.run(x, w, out, *sizes)
    torch.testing.assert_close(out, x @ w)


def test_runner_inside_its_domain_launches_the_winner(launched):
    call(runtime.load(to_text(site())), 6, 6)
    assert launched == [(6,)]
    assert ledger.stats()["calls"] == 1


@pytest.mark.parametrize("rows", [1, 9])
def test_runner_outside_its_domain_runs_the_reference(launched, rows):
    call(runtime.load(to_text(site())), rows, rows)
    assert launched == []
    assert ledger.stats()["fallback_calls"] == 1


def test_runner_with_fixed_sizes_is_not_passed_any(launched):
    call(runtime.load(to_text(site(fixed=True))), 5)
    assert launched == [(5,)]


def test_runner_on_a_gpu_refuses_misaligned_inputs(launched):
    runner = runtime.load(to_text(site(fixed=True, device="cuda")))
    block = torch.randn(41)
    x, w, out = block[1:].view(5, 8), torch.randn(4, 8).t(), torch.empty(5, 4)
    assert x.data_ptr() % 16 != 0
    runner.run(x, w, out)
    torch.testing.assert_close(out, x @ w)
    assert launched == []


def test_runner_is_one_for_equal_sites(launched):
    assert runtime.load(to_text(site())) is runtime.load(to_text(site()))
    assert ledger.stats()["spliced"] == 2, "two graphs, or one loaded twice"


def test_runner_whose_winner_cannot_be_loaded_is_right_and_says_so_once(caplog):
    def missing(site):
        raise StoreError("planted")

    runtime.install(missing)
    call(runtime.load(to_text(site())), 5, 5)
    call(runtime.load(to_text(site(fixed=True))), 5)
    assert ledger.stats()["spliced"] == 0
    assert sum("planted" in record.getMessage() for record in caplog.records) == 1


def test_runner_that_waits_changes_over_when_its_winner_comes(launched):
    runner = runtime.load(to_text(site(winner="")))
    call(runner, 5, 5)
    assert launched == [], "no winner was known when the graph was compiled"
    runtime.renew(KEY)
    call(runner, 5, 5)
    assert launched == [(5,)]
    assert ledger.stats()["spliced"] == 1


def test_reference_used_by_threads_at_once_is_right():
    def missing(site):
        raise StoreError("gone")

    runtime.install(missing)
    runner = runtime.load(to_text(site()))
    errors = []

    def work():
        try:
            for rows in (3, 5, 3):
                call(runner, rows, rows)
        except BaseException as error:  # noqa: BLE001  whatever a thread dies of fails the test
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


@pytest.mark.parametrize(
    ("strides", "matches"),
    [((8, 1), True), ((1, 5), False), ((9, 1), False), ((16, 2), False)],
)
def test_strides_of_a_dense_class_match_only_dense_tensors(strides, matches):
    spec = task().inputs[0]
    assert runtime.strides_match(spec, (0, 1), strides, {"m": 5}) is matches


class Prepared:
    """A launcher that can be bound, and tells what it was bound for and how it was called."""

    def __init__(self, refuses=lambda tensors: False):
        self.bindings, self.bound_calls, self.plain_calls, self.refuses = [], 0, 0, refuses

    def __call__(self, inputs, outputs, sizes):
        self.plain_calls += 1
        outputs[0].copy_(evaluate(task(), inputs, {"m": sizes[0]})[0])

    def bind(self, sizes, strides, device):
        self.bindings.append((tuple(sizes), strides, device.type))

        def bound(x, w, out):
            if self.refuses((x, w, out)):
                return False
            self.bound_calls += 1
            outputs = evaluate(task(), (x, w), {"m": sizes[0]})
            out.copy_(outputs[0])
            return True

        return bound


STRIDES = ((8, 1), (1, 8))


def entered(launcher, **facts):
    runtime.install(lambda site: (Stored, launcher))
    return runtime.entry(to_text(replace(site(**facts), strides=STRIDES)))


def enter(function, rows, *sizes):
    x, w, out = torch.randn(rows, 8), torch.randn(4, 8).t(), torch.full((rows, 4), torch.nan)
    function(x, w, out, *sizes)
    torch.testing.assert_close(out, x @ w)


def test_entry_of_fixed_sizes_is_bound_once_and_counts_its_calls():
    launcher = Prepared()
    function = entered(launcher, fixed=True)
    assert launcher.bindings == [], "a graph that is loaded and never called compiles nothing"
    for _ in range(3):
        enter(function, 5)
    assert launcher.bindings == [((5,), STRIDES, "cpu")]
    assert (launcher.bound_calls, launcher.plain_calls, ledger.stats()["calls"]) == (3, 0, 3)


def test_entry_of_varying_sizes_is_bound_once_for_each_and_leaves_its_domain_to_the_reference():
    launcher = Prepared()
    function = entered(launcher)
    for rows in (3, 5, 3, 9, 9, 5):
        enter(function, rows, rows)
    assert [sizes for sizes, _, _ in launcher.bindings] == [(3,), (5,)]
    assert (launcher.bound_calls, launcher.plain_calls) == (4, 0)
    assert (ledger.stats()["calls"], ledger.stats()["fallback_calls"]) == (4, 2)


def test_entry_whose_bound_launcher_refuses_goes_by_the_launcher_itself():
    launcher = Prepared(refuses=lambda tensors: True)
    enter(entered(launcher, fixed=True), 5)
    assert (launcher.bound_calls, launcher.plain_calls, ledger.stats()["calls"]) == (0, 1, 1)


def test_entry_of_a_site_with_symbolic_strides_binds_nothing():
    launcher = Prepared()
    runtime.install(lambda site: (Stored, launcher))
    enter(runtime.entry(to_text(site(fixed=True))), 5)
    assert (launcher.bindings, launcher.plain_calls) == ([], 1)


def test_entry_whose_launcher_cannot_be_bound_is_right_and_says_why(caplog):
    launcher = Prepared()

    def fail(sizes, strides, device):
        raise BuildError("planted")

    launcher.bind = fail
    function = entered(launcher, fixed=True)
    enter(function, 5)
    enter(function, 5)
    assert launcher.plain_calls == 2
    assert sum("planted" in record.getMessage() for record in caplog.records) == 1
