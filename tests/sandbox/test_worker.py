"""The worker process: right answers, and a verdict in bounded time for whatever a candidate does to its process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest
from python_language import candidate
from sandbox_tasks import CPU, HIGHEST, gelu, minus_own_mean

from kforge_dynamo.errors import ToolchainError
from kforge_dynamo.records.codec import from_text, to_text
from kforge_dynamo.records.outcome import Status
from kforge_dynamo.records.request import Request
from kforge_dynamo.records.task import AxisRange, Domain, point
from kforge_dynamo.sandbox.worker import Worker

HONEST = """
def run(inputs, outputs, sizes):
    x, w, b = inputs
    p = torch.addmm(b.reshape(-1), x, w[0])
    outputs[0].copy_(p * 0.5 * (torch.erf(p * 0.7071067811865476) + 1.0))
"""
EVIL = "import os, signal, sys, time\ndef run(inputs, outputs, sizes):\n    "


@pytest.fixture(scope="module")
def worker():
    with Worker(lambda: dict(os.environ), "cpu", 2, "python_language:LANGUAGES") as found:
        yield found


@pytest.fixture
def ask(worker, tmp_path):
    def answer(source, *, task=None, stage="search", domain=None, timed=False, timeout_s=60.0, memory_bytes=None, **fields):
        task = task or gelu()
        chosen = candidate(source) if isinstance(source, str) else source
        domain = domain or point(task, (37,))
        request = Request(
            task, (37,), domain, chosen, CPU, HIGHEST, "default", "{}", stage, str(tmp_path), timed, timeout_s, memory_bytes
        )
        return worker.evaluate(request, timeout_s)

    return answer


def test_worker_honest_candidate_passes_without_timings_when_none_are_asked(ask):
    trial = ask(HONEST)
    assert trial.verdict.status is Status.PASSED
    assert trial.timings == ()
    assert trial.candidate == candidate(HONEST)


def test_worker_timed_candidate_carries_three_measurements(ask):
    trial = ask(HONEST, timed=True, timeout_s=240.0)
    assert trial.verdict.status is Status.PASSED, trial.verdict
    (timings,) = trial.timings
    assert (timings.regime, timings.mode) == ("wall", "default")
    assert timings.anchor is not None
    for found in (timings.candidate, timings.region, timings.anchor):
        assert len(found.samples_us) >= 3
        assert found.median_us > 0.5
        assert "interleaved" in found.method


def test_worker_wrong_candidate_inaccurate_with_place_and_number(ask):
    trial = ask(HONEST.replace("erf", "tanh"))
    assert trial.verdict.status is Status.INACCURATE
    assert "class unit" in trial.verdict.where
    assert trial.verdict.error_ratio > 1000


def test_worker_domain_checked_at_other_sizes(ask):
    """Right at 37 rows and wrong at 1."""
    task = gelu()
    domain = Domain((AxisRange("m", 1, 80),))
    broken = HONEST + "    if sizes[0] == 1:\n        outputs[0].mul_(1.01)\n"
    trial = ask(broken, task=task, stage="final", domain=domain)
    assert trial.verdict.status is Status.INACCURATE
    assert "(1,)" in trial.verdict.where
    honest = ask(HONEST, task=task, stage="final", domain=domain)
    assert honest.verdict.status is Status.PASSED, honest.verdict
    assert "other sizes" in honest.verdict.evidence


def test_worker_constant_region_not_testable(ask):
    trial = ask(HONEST, task=minus_own_mean())
    assert trial.verdict.status is Status.NOT_TESTABLE
    assert "not testable" in trial.verdict.evidence


def test_worker_memory_cap_not_searched(ask):
    trial = ask(HONEST, memory_bytes=1 << 20)
    assert trial.verdict.status is Status.NOT_TESTABLE
    assert trial.verdict.evidence.startswith("not searched (memory)")


def test_worker_source_that_does_not_compile_compile_error(ask):
    trial = ask("def run(:\n")
    assert trial.verdict.status is Status.COMPILE_ERROR
    assert "candidate" in trial.verdict.evidence


def test_worker_unknown_language_rejected(ask):
    trial = ask(replace(candidate(HONEST), language="fortran"))
    assert trial.verdict.status is Status.REJECTED
    assert "python" in trial.verdict.evidence


def test_worker_exception_runtime_error_with_its_words(ask):
    trial = ask(EVIL + "raise ValueError('no such tile')\n")
    assert trial.verdict.status is Status.RUNTIME_ERROR
    assert "no such tile" in trial.verdict.evidence


def test_worker_crash_names_signal_and_next_request_is_answered(ask):
    trial = ask(EVIL + "sys.stderr.write('segment of doom\\n'); sys.stderr.flush(); os.kill(os.getpid(), signal.SIGSEGV)\n")
    assert trial.verdict.status is Status.RUNTIME_ERROR
    assert "SIGSEGV" in trial.verdict.evidence
    assert "segment of doom" in trial.verdict.evidence
    assert ask(HONEST).verdict.passed


def test_worker_exit_names_its_status(ask):
    trial = ask(EVIL + "os._exit(7)\n")
    assert trial.verdict.status is Status.RUNTIME_ERROR
    assert "status 7" in trial.verdict.evidence


@pytest.mark.alone
def test_worker_hang_times_out_and_kills_the_group(ask, worker):
    worker.start()
    assert ask(HONEST).verdict.passed
    pid = worker._running.process.pid
    start = time.monotonic()
    trial = ask(EVIL + "time.sleep(1000)\n", timeout_s=3.0)
    assert trial.verdict.status is Status.TIMEOUT
    assert "class unit" in trial.verdict.evidence
    assert time.monotonic() - start < 20.0
    assert not alive(pid)


def test_worker_prints_of_gigabytes_are_not_taken_for_answers(ask):
    noise = '    for _ in range(2000): print(\'{"kind": "trial", "text": "x"}\' * 50)\n    sys.stdout.flush()\n'
    trial = ask("import sys" + HONEST + noise)
    assert trial.verdict.status is Status.PASSED


def test_worker_environment_never_holds_triton_interpret(tmp_path):
    names = "('TRITON_INTERPRET', 'KFORGE_DISABLE', 'OMP_NUM_THREADS')"
    source = f"import os\nraise ValueError({{name: os.environ.get(name) for name in {names}}})\n"
    environment = {**os.environ, "TRITON_INTERPRET": "1", "KFORGE_DISABLE": "1"}
    task = gelu()
    request = Request(
        task, (37,), point(task, (37,)), candidate(source), CPU, HIGHEST, "", "", "search", str(tmp_path), False, 60.0, None
    )
    with Worker(lambda: environment, "cpu", 1, "python_language:LANGUAGES") as one:
        text = one.evaluate(request, 60.0).verdict.evidence
    assert "'TRITON_INTERPRET': None, 'KFORGE_DISABLE': '1', 'OMP_NUM_THREADS': '1'" in text


def test_worker_that_cannot_start_says_why():
    with Worker(lambda: dict(os.environ), "cpu", 1, "no_such_module:LANGUAGES") as one, pytest.raises(ToolchainError) as caught:
        one.wait()
    assert "no_such_module" in str(caught.value)


def test_worker_dies_with_its_parent(tmp_path):
    """Also where a process forked by the parent still holds the pipe."""
    program = tmp_path / "parent.py"
    program.write_text(
        textwrap.dedent(
            """
            import os, sys, time
            from kforge_dynamo.sandbox.worker import Worker
            if __name__ == "__main__":
                worker = Worker(lambda: dict(os.environ), "cpu", 1, "python_language:LANGUAGES")
                worker.start()
                worker.wait()
                if os.fork() == 0:
                    os.close(1)
                    time.sleep(30)
                    os._exit(0)
                print(worker._running.process.pid, flush=True)
                time.sleep(1000)
            """
        )
    )
    path = os.pathsep.join(item for item in sys.path if item)
    parent = subprocess.Popen(
        [sys.executable, str(program)], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}, start_new_session=True
    )
    try:
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.kill()
        parent.wait()
        assert wait_until(lambda: not alive(pid))
    finally:
        os.killpg(parent.pid, signal.SIGKILL)


def test_worker_requests_travel_as_json_text(tmp_path):
    task = gelu()
    request = Request(
        task, (37,), point(task, (37,)), candidate(HONEST), CPU, HIGHEST, "default", "{}", "final", str(tmp_path), True, 1.5, None
    )
    text = to_text(request)
    json.loads(text)
    assert from_text(Request, text) == request


def test_request_outside_its_domain_refused(tmp_path):
    task = gelu()
    with pytest.raises(ValueError, match="outside the domain"):
        Request(task, (9,), point(task, (37,)), candidate(""), CPU, HIGHEST, "", "", "search", str(tmp_path), False, 1.0, None)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


def wait_until(true, seconds=15.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(0.05)
    return False
