"""A power cut or a full disk leaves cache entries cut short; they are loaded again on every later start.

Class: cache.
Source: FlashML-org/FreeToken#490, triton-lang/triton#8923, vllm-project/vllm#18956.
Right: a damaged entry counts as missing: the second process makes a new one, or runs uncompiled, and
is right. A third run finds a healthy cache.
"""

import multiprocessing
import os
import pathlib

import torch
import torch.nn.functional as F
from torch.testing import assert_close

ENV = {
    "HOME": "{tmp}/all/home",
    "XDG_CACHE_HOME": "{tmp}/all/xdg",
    "TORCHINDUCTOR_CACHE_DIR": "{tmp}/all/inductor",
    "TRITON_CACHE_DIR": "{tmp}/all/triton",
}


def work(x, w, b):
    return F.gelu(F.linear(x, w, b)).sum(-1), (x @ w.t()).softmax(-1)


def worker(compile_fn, results):
    try:
        torch.manual_seed(49)
        args = torch.randn(9, 20) / 4, torch.randn(14, 20), torch.randn(14)
        assert_close(compile_fn(work)(*args), work(*args), rtol=2e-5, atol=2e-5)
        results.put("right")
    except BaseException as error:  # noqa: BLE001 - the parent process reports it
        results.put(f"{type(error).__name__}: {error}")


def run(compile_fn):
    context = multiprocessing.get_context("spawn")
    root = pathlib.Path(os.environ["HOME"]).parent
    for turn in ("an empty cache", "a damaged cache", "the repaired cache"):
        results = context.Queue()
        process = context.Process(target=worker, args=(compile_fn, results))
        process.start()
        process.join(150)
        assert process.exitcode == 0, f"with {turn}, the process ended with {process.exitcode}"
        outcome = results.get(timeout=5)
        assert outcome == "right", f"with {turn}: {outcome}"
        if turn == "an empty cache":
            for path in root.rglob("*"):
                if path.is_file() and not path.is_symlink() and path.stat().st_size:
                    os.truncate(path, path.stat().st_size // 2)
