"""What a hostile candidate can do on a CPU: spoil its own trial. One worker judges all of them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from python_language import candidate
from sandbox_tasks import CPU, HIGHEST, gelu
from test_worker import HONEST, alive, wait_until

from kforge_dynamo.records.outcome import Status
from kforge_dynamo.records.request import Request
from kforge_dynamo.records.task import point
from kforge_dynamo.sandbox import kernel
from kforge_dynamo.sandbox.confine import describe
from kforge_dynamo.sandbox.forks import children_of, probe
from kforge_dynamo.sandbox.worker import Worker

LANGUAGES = "python_language:LANGUAGES"
FACTS = dict(probe("runner"))
EVIL = "import ctypes, os, signal, socket, sys, threading, time\ndef run(inputs, outputs, sizes):\n    "


def needs(*layers):
    """Tests of what a machine cannot do say so; they do not pass."""
    missing = {layer: FACTS[layer] for layer in layers if FACTS.get(layer) is not None}
    return pytest.mark.skipif(bool(missing), reason=f"this machine lacks {missing}")


def ask(worker, folder, source, *, deadline_s=60.0):
    task = gelu()
    request = Request(
        task,
        (37,),
        point(task, (37,)),
        candidate(source),
        CPU,
        HIGHEST,
        "default",
        "{}",
        "search",
        str(folder),
        False,
        deadline_s,
        None,
    )
    return worker.evaluate(request, deadline_s + 60.0).verdict


def judge_of(worker):
    """The process that answers."""
    (found,) = children_of(worker._running.process.pid)
    return found


@pytest.fixture(scope="module")
def worker():
    with Worker(lambda: dict(os.environ), "cpu", 2, LANGUAGES) as found:
        yield found


@pytest.fixture(scope="module")
def lax():
    """A worker without the layers that keep a candidate from starting processes."""
    with Worker(lambda: {**os.environ, "KFORGE_SANDBOX": "-landlock,-seccomp"}, "cpu", 2, LANGUAGES) as found:
        yield found


@needs("landlock", "seccomp")
@pytest.mark.parametrize(
    ("action", "words"),
    [
        ("socket.create_connection(('127.0.0.1', PORT), 1)", "Operation not permitted"),
        ("socket.socket(socket.AF_UNIX)", "Operation not permitted"),
        ("open('FOLDER/outside/written', 'w')", "Permission denied"),
        ("os.unlink('FOLDER/outside/secret')", "Permission denied"),
        ("open('FOLDER/outside/secret').read()", "Permission denied"),
        ("open('FOLDER/trials/own', 'w')", "Permission denied"),
        ("os.fork()", "Operation not permitted"),
        ("os.posix_spawn('/bin/true', ['true'], {})", "Operation not permitted"),
        ("os.execv('/bin/true', ['true'])", "Operation not permitted"),
        ("os.kill(os.getppid(), signal.SIGKILL)", "Operation not permitted"),
        ("os.kill(0, signal.SIGKILL)", "Operation not permitted"),
        ("os.setsid()", "Operation not permitted"),
        ("open(f'/proc/{os.getppid()}/environ').read()", "Permission denied"),
        ("open(f'/proc/{os.getppid()}/mem').read()", "Permission denied"),
    ],
)
def test_isolation_way_out_is_refused(worker, tmp_path, action, words):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("word")
    with socket.create_server(("127.0.0.1", 0)) as server:
        source = EVIL + action.replace("PORT", str(server.getsockname()[1])).replace("FOLDER", str(tmp_path)) + "\n"
        verdict = ask(worker, tmp_path / "trials", source)
    assert verdict.status is Status.RUNTIME_ERROR
    assert words in verdict.evidence
    assert [path.name for path in outside.iterdir()] == ["secret"]


@needs("limits")
@pytest.mark.parametrize(
    ("action", "words"),
    [
        ("bytearray(1 << 46)", "MemoryError"),
        ("bytearray(6 << 30)", "MemoryError"),
        ("[threading.Thread(target=time.sleep, args=(1000,)).start() for _ in range(1 << 20)]", "start new thread"),
        ("held = [os.dup(1) for _ in range(1 << 10)]", "Too many open files"),
        ("ctypes.string_at(0)", "SIGSEGV"),
        ("os.abort()", "SIGABRT"),
        ("os._exit(0)", "ended with status 0"),
        (
            "[os.close(fd) for fd in range(3, 256) if os.path.exists(f'/proc/self/fd/{fd}')]; time.sleep(1000)",
            "killed by SIGKILL",
        ),
        ("[os.write(fd, b'garbage' + bytes([10])) for fd in range(3, 9) if is_socket(fd)]", "no message"),
        ("[os.write(fd, b'[' * 9000 + bytes([10])) for fd in range(3, 9) if is_socket(fd)]", "no message"),
        ("[flood(fd) for fd in range(3, 9) if is_socket(fd)]", "no message"),
        ("[os.write(fd, forged) for fd in range(3, 9) if is_socket(fd)]", "nobody asked"),
    ],
)
def test_isolation_end_of_the_process_is_a_verdict(worker, tmp_path, action, words):
    forged = b'{"number": 99}\n'
    tools = f"""
import os, stat
forged = {forged!r}
def is_socket(fd):
    try:
        return stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError:
        return False
def flood(fd):
    while True:
        os.write(fd, b'x' * (1 << 20))
"""
    verdict = ask(worker, tmp_path, tools + EVIL + action + "\n")
    assert verdict.status is Status.RUNTIME_ERROR
    assert words in verdict.evidence


@pytest.mark.alone
@pytest.mark.parametrize("action", ["time.sleep(1000)", "os.kill(os.getpid(), signal.SIGSTOP)", "[None for _ in iter(int, 1)]"])
def test_isolation_hang_is_a_timeout_and_the_judge_keeps_what_it_knows(worker, tmp_path, action):
    assert ask(worker, tmp_path, HONEST).passed
    judge = judge_of(worker)
    start = time.monotonic()
    verdict = ask(worker, tmp_path, EVIL + action + "\n", deadline_s=2.0)
    assert verdict.status is Status.TIMEOUT
    assert "class unit" in verdict.evidence
    assert time.monotonic() - start < 40.0
    assert judge_of(worker) == judge
    assert ask(worker, tmp_path, HONEST).passed


def test_isolation_gigabytes_of_output_are_dropped(worker, tmp_path):
    noise = "    for _ in range(200): print('{\"number\": 1}' * 500)\n    sys.stdout.flush()\n"
    assert ask(worker, tmp_path, "import sys" + HONEST + noise).passed


def test_isolation_candidate_finds_neither_request_pipe_nor_secrets(worker, tmp_path):
    source = """
import os
def kind(fd):
    try:
        return os.readlink(f"/proc/self/fd/{fd}").split(":")[0]
    except OSError:
        return None
raise ValueError(sorted(filter(None, map(kind, range(256)))))
"""
    evidence = ask(worker, tmp_path, source).evidence
    found = evidence.rpartition("ValueError: ")[2].strip()
    assert found == "['/dev/null', '/memfd', 'pipe', 'pipe', 'socket']", evidence


def test_isolation_processes_that_leave_the_group_are_found_and_killed(lax, tmp_path):
    """Where nothing keeps a candidate from forking: a daemon with a group of its own, which holds every descriptor and
    whose parent is already dead."""
    note = tmp_path / "child"
    source = f"""
import os, time
def run(inputs, outputs, sizes):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            with open({str(note)!r}, "w") as file:
                file.write(str(os.getpid()))
            time.sleep(1000)
        os._exit(0)
    while not (os.path.exists({str(note)!r}) and os.path.getsize({str(note)!r})):
        time.sleep(0.01)
    os._exit(9)
"""
    verdict = ask(lax, tmp_path, source)
    assert "status 9" in verdict.evidence
    assert wait_until(lambda: not alive(int(note.read_text())))
    assert ask(lax, tmp_path, HONEST).passed


def test_isolation_dead_judge_is_replaced_without_another_start(worker, tmp_path):
    assert ask(worker, tmp_path, HONEST).passed
    program, judge = worker._running.process.pid, judge_of(worker)
    os.kill(judge, signal.SIGKILL)
    verdict = ask(worker, tmp_path, HONEST)
    assert verdict.status is Status.RUNTIME_ERROR
    assert "killed by SIGKILL" in verdict.evidence
    assert ask(worker, tmp_path, HONEST).passed
    assert worker._running.process.pid == program
    assert judge_of(worker) != judge


def test_isolation_parent_killed_in_a_trial_leaves_nothing(tmp_path):
    """The program, the judge, and a runner that hangs."""
    note = tmp_path / "trials" / "runner"
    program = tmp_path / "parent.py"
    hang = "import os, time\ndef run(inputs, outputs, sizes):\n    time.sleep(1000)\n"
    program.write_text(
        textwrap.dedent(
            f"""
            import os, sys
            from kforge_dynamo.sandbox.worker import Worker
            from test_isolation import LANGUAGES, ask
            if __name__ == "__main__":
                worker = Worker(lambda: dict(os.environ), "cpu", 1, LANGUAGES)
                worker.wait()
                print(worker._running.process.pid, flush=True)
                ask(worker, {str(note.parent)!r}, {hang!r})
            """
        )
    )
    path = os.pathsep.join(item for item in sys.path if item)
    parent = subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path})
    family: set[int] = set()
    try:
        worker = int(parent.stdout.readline())
        assert wait_until(lambda: len(children_of(worker)) == 2, 60.0)  # the judge and the runner
        family = {worker, *children_of(worker)}
    finally:
        parent.kill()
        parent.wait()
    assert wait_until(lambda: not any(alive(number) for number in family))


def test_isolation_tells_which_layers_are_active():
    assert set(FACTS) == {"limits", "namespaces", "capabilities", "landlock", "seccomp"}
    assert describe([("landlock", None), ("seccomp", "no kernel for it")]) == "landlock; not active: seccomp (no kernel for it)"
    try:
        version = kernel.landlock_version()
    except OSError as error:
        assert FACTS["landlock"] is not None, error
    else:
        assert version >= 1
        assert FACTS["landlock"] is None


def test_isolation_of_a_user_who_is_not_root_is_the_same():
    """The layers need no rights: as nobody they are active wherever they are for root, but for user namespaces turned off."""
    if os.geteuid() != 0:
        pytest.skip("the other tests already run without root's rights")
    facts = dict(probe("runner", user=65534))
    for layer in ("limits", "landlock", "seccomp"):
        assert facts[layer] == FACTS[layer]


def test_isolation_probe_of_this_process_leaves_it_free(tmp_path):
    probe("judge")
    (tmp_path / "still").write_text("writable")
    assert Path(tmp_path / "still").exists()
