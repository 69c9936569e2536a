"""Run the case files in this folder against one torch.compile backend.

    python tests/cases/run_cases.py BACKEND [ids ...] [-j N] [--timeout S] [--import MOD] [--device D]
                                    [--options JSON] [--alone] [-v]

ids       case numbers (7, 07, 7-12) or parts of a file name; none means all.
-j        processes at once (default 1). Cases without an environment of their own share these processes.
--import  module(s) to import first, comma separated, when importing is what registers BACKEND.
--device  sets torch's default device before a case builds its tensors (default: leave alone).
--options JSON object for torch.compile(options=...).
--alone   one process for each case, as a user's program would be.

Every process has its own group and temporary folder, every case a time limit; where a process dies or hangs, the case it was
in is an ERROR and a new process goes on with the next. Exit status: 0 if every case passed, 1 otherwise.

    PASS   run() returned
    FAIL   a check of the case did not hold (wrong value, dtype, stride, gradient, mutation, alias)
    ERROR  anything else: an exception from the compiler or runtime, a crash, or the time limit

A case file may set one module constant, read without importing it:
    ENV = {"NAME": "value" or None}   environment of its process; None removes, "{tmp}" is its folder
The caches are fresh folders shared by the cases of one run (Inductor's: unless TORCHINDUCTOR_CACHE_DIR is set).
"""

from __future__ import annotations

import argparse
import ast
import concurrent.futures
import contextlib
import dataclasses
import functools
import gc
import importlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
POLL_S = 0.1
START_S = 60.0
"""Added to a case's limit for the start of its process (imports on a loaded machine)."""

if os.environ.get("CASES_CHILD"):  # also reached in processes that a case spawns
    sys.path.insert(0, str(HERE))
    for _name in filter(None, os.environ.get("CASES_IMPORT", "").split(",")):
        importlib.import_module(_name)


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the cases run against. `options` is JSON text."""

    backend: str
    jobs: int = 1
    timeout_s: float = 120.0
    imports: str = ""
    device: str = ""
    options: str = "{}"
    alone: bool = False


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a case ended: PASS, FAIL or ERROR, why, the text it printed, and the backend's own counters."""

    verdict: str
    seconds: float
    why: str
    text: str
    counters: dict[str, int]


def constant(path: pathlib.Path, name: str, default):
    """A module constant of a case, read without importing it."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == name:
            return ast.literal_eval(node.value)
    return default


def is_check(exc: BaseException) -> bool:
    """True if the innermost frame is a case file or torch.testing, so that the case itself objected."""
    last = traceback.extract_tb(exc.__traceback__)[-1].filename
    return pathlib.Path(last).parent == HERE or last.endswith(os.path.join("testing", "_comparison.py"))


def child_case(stem: str, backend: str, options: dict[str, object]) -> dict[str, object]:
    """Run one case in this process and say how it ended."""
    import torch

    counters = torch._dynamo.utils.counters
    counters.clear()
    arguments = {"options": options} if options else {}
    verdict, why, text = "PASS", "", ""
    try:
        case = importlib.import_module(stem)
        case.run(functools.partial(torch.compile, backend=backend, **arguments))
    except BaseException as exc:  # noqa: BLE001 - a case may end in any way, and the next one has to run
        text = traceback.format_exc()
        verdict = "FAIL" if isinstance(exc, AssertionError) and is_check(exc) else "ERROR"
        why = f"{type(exc).__name__}: {' '.join(str(exc).split())}"[:200]
    found = {name: int(value) for name, value in counters[backend].items()}
    torch.compiler.reset()
    gc.collect()
    return {"case": stem, "verdict": verdict, "why": why, "text": text, "counters": found}


def child(backend: str, options: str, device: str, report: pathlib.Path, stems: list[str]) -> int:
    """Run the cases in turn; each leaves one line in `report` when it begins and one when it ends."""
    import torch

    if device:
        torch.set_default_device(device)
    with report.open("a", encoding="utf-8") as out:
        for stem in stems:
            out.write(json.dumps({"begin": stem}) + "\n")
            out.flush()
            out.write(json.dumps(child_case(stem, backend, json.loads(options))) + "\n")
            out.flush()
    return 0


def environment(path: pathlib.Path, plan: Plan, shared: pathlib.Path, tmp: pathlib.Path) -> dict[str, str]:
    """The environment of a process whose first case is `path`."""
    env = dict(os.environ, CASES_CHILD="1", CASES_IMPORT=plan.imports, TMPDIR=str(tmp), PYTHONUNBUFFERED="1")
    env.setdefault("TORCHINDUCTOR_CACHE_DIR", str(shared / "inductor"))
    env["XDG_CACHE_HOME"] = str(shared / "xdg")
    env.pop("KFORGE_CACHE_DIR", None)
    for name, value in constant(path, "ENV", {}).items():
        if value is None:
            env.pop(name, None)
            continue
        if "{tmp}" in value:
            value = value.replace("{tmp}", str(tmp))
            pathlib.Path(value).mkdir(parents=True, exist_ok=True)
        env[name] = value
    return env


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the process's own group: stragglers and hung children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def watch(process: subprocess.Popen[bytes], report: pathlib.Path, timeout_s: float) -> tuple[list[dict], bool]:
    """Follow the report until the process ends or one case takes longer than its limit: the lines, and whether it hung."""
    lines: list[dict] = []
    deadline = time.monotonic() + timeout_s + START_S
    while True:
        ended = process.poll() is not None
        fresh = [json.loads(line) for line in report.read_text(encoding="utf-8").splitlines()[len(lines) :]]
        for line in fresh:
            line["at"] = time.monotonic()
            lines.append(line)
            deadline = time.monotonic() + timeout_s
        if ended:
            return lines, False
        if time.monotonic() > deadline:
            return lines, True
        time.sleep(POLL_S)


def run_process(paths: list[pathlib.Path], plan: Plan, shared: pathlib.Path) -> dict[str, Outcome]:
    """Start one process for `paths` and take what it reports: at least the outcome of the first case."""
    tmp = pathlib.Path(tempfile.mkdtemp(prefix="case_"))
    report = tmp / "report.jsonl"
    report.touch()
    command = [sys.executable, str(HERE / "run_cases.py"), plan.backend, "--child", str(report), "--device", plan.device]
    command += ["--options", plan.options, *(path.stem for path in paths)]
    began = time.monotonic()
    with open(tmp / "log.txt", "w+b") as log:
        process = subprocess.Popen(
            command,
            env=environment(paths[0], plan, shared, tmp),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=tmp,
            start_new_session=True,
        )
        try:
            lines, hung = watch(process, report, plan.timeout_s)
        finally:
            end_group(process)
        log.seek(0)
        text = log.read().decode("utf-8", "replace")
    shutil.rmtree(tmp, ignore_errors=True)
    why = f"no result within {plan.timeout_s:g} s" if hung else f"the process ended with status {process.returncode}"
    return outcomes_of(lines, paths, began, why, text)


def outcomes_of(lines: list[dict], paths: list[pathlib.Path], began: float, why: str, log: str) -> dict[str, Outcome]:
    """Read the report of a process; the case it did not come back from (or the first, if none began) is an ERROR."""
    outcomes: dict[str, Outcome] = {}
    running, since = paths[0].stem, began
    for line in lines:
        if "begin" in line:
            running = line["begin"]
            continue
        outcomes[line["case"]] = Outcome(
            line["verdict"], line["at"] - since, line["why"], f"{log[-8000:]}\n{line['text']}", line["counters"]
        )
        since = line["at"]
    if running not in outcomes:
        outcomes[running] = Outcome("ERROR", time.monotonic() - since, why, log[-8000:], {})
    return outcomes


def run_lane(paths: list[pathlib.Path], plan: Plan, shared: pathlib.Path) -> dict[str, Outcome]:
    """Run `paths` one after another in as few processes as their deaths allow."""
    outcomes: dict[str, Outcome] = {}
    while left := [path for path in paths if path.stem not in outcomes]:
        outcomes |= run_process(left, plan, shared)
    return outcomes


def lanes_of(paths: list[pathlib.Path], jobs: int, alone: bool) -> list[list[pathlib.Path]]:
    """Cases that may share a process, dealt to `jobs` lanes; then the others, each by itself."""
    single = [path for path in paths if alone or constant(path, "ENV", None) is not None]
    shared = [path for path in paths if path not in single]
    lanes = [shared[start::jobs] for start in range(jobs)]
    return [lane for lane in lanes if lane] + [[path] for path in single]


def run(paths: list[pathlib.Path], plan: Plan) -> dict[str, Outcome]:
    """The outcome of each case, by its file's stem."""
    shared = pathlib.Path(tempfile.mkdtemp(prefix="cases_cache_"))
    outcomes: dict[str, Outcome] = {}
    try:
        with concurrent.futures.ThreadPoolExecutor(plan.jobs) as pool:
            for found in pool.map(functools.partial(run_lane, plan=plan, shared=shared), lanes_of(paths, plan.jobs, plan.alone)):
                outcomes |= found
    finally:
        shutil.rmtree(shared, ignore_errors=True)
    return outcomes


def select(wanted: list[str]) -> list[pathlib.Path]:
    """The case files that `wanted` names; all of them when it names none."""
    paths = sorted(HERE.glob("case_*.py"))
    return [path for path in paths if not wanted or any(matches(path, item) for item in wanted)]


def matches(path: pathlib.Path, item: str) -> bool:
    """Whether a number, a range of numbers or a part of the name means this case."""
    number = int(path.stem.split("_")[1])
    low, _, high = item.partition("-")
    if low.isdigit():
        return int(low) <= number <= int(high or low)
    return item.removesuffix(".py") in path.stem


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backend")
    parser.add_argument("ids", nargs="*")
    parser.add_argument("-j", type=int, default=1, metavar="N")
    parser.add_argument("--timeout", type=float, default=120)
    parser.add_argument("--import", dest="imports", default=os.environ.get("CASES_IMPORT", ""))
    parser.add_argument("--device", default="")
    parser.add_argument("--options", default="{}")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("-v", action="store_true", help="print the output of cases that did not pass")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    args = parser.parse_intermixed_args()
    if not args.child and not select(args.ids):
        parser.error("no case matches")
    return args


def main() -> int:
    """Run, print a line for each case and a closing one."""
    args = parse()
    if args.child:
        return child(args.backend, args.options, args.device, pathlib.Path(args.child), args.ids)
    plan = Plan(args.backend, max(1, args.j), args.timeout, args.imports, args.device, args.options, args.alone)
    outcomes = run(select(args.ids), plan)
    for stem, outcome in sorted(outcomes.items()):
        counted = " ".join(f"{name}={value}" for name, value in sorted(outcome.counters.items()))
        print(f"{outcome.verdict:5}  {stem:42} {outcome.seconds:6.1f} s  {outcome.why} {counted}".rstrip(), flush=True)
        if args.v and outcome.verdict != "PASS":
            print("    | " + "\n    | ".join(outcome.text.splitlines()[-60:]), flush=True)
    passed = sum(outcome.verdict == "PASS" for outcome in outcomes.values())
    print(f"{passed} passed, {len(outcomes) - passed} failed")
    return 0 if passed == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
