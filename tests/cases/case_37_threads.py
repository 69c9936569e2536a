"""Threads that reach a compiled function at the same time crash it, or get each other's results.

Class: concurrency.
Source: pytorch/pytorch#136833, #118260, #105943.
Right: every thread gets eager's result for its own input, while others compile and while they run.
"""

import threading

import torch
import torch.nn as nn
from torch.testing import assert_close


def run(compile_fn):
    torch.manual_seed(37)
    net = nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 8), nn.LogSoftmax(-1)).eval()
    compiled = compile_fn(net)
    other = compile_fn(lambda x: torch.relu(x @ x.t()).sum(-1))
    inputs = [torch.randn(3 + (number % 2) * 5, 16) for number in range(4)]
    cold, warm, errors = threading.Barrier(4), threading.Barrier(4), []

    def check(x):
        with torch.no_grad():
            assert_close(compiled(x), net(x), rtol=5e-5, atol=5e-5)
            assert_close(other(x), torch.relu(x @ x.t()).sum(-1), rtol=5e-5, atol=5e-5)

    def worker(number):
        try:
            cold.wait()
            check(inputs[number])  # first calls, some of them compiling
            warm.wait()
            for turn in range(50):
                check(inputs[number] * (1 + turn))
        except Exception as error:  # noqa: BLE001 - whatever it is, reported by the main thread
            errors.append(error)
            warm.abort()

    threads = [threading.Thread(target=worker, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    errors.sort(key=lambda error: isinstance(error, threading.BrokenBarrierError))
    if errors:
        raise errors[0]
