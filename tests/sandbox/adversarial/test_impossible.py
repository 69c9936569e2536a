"""Hacks that live in host code: as raw Python they have no form in a launch plan, and a source that tries is refused by name."""

from __future__ import annotations

import pytest

from kforge_dynamo.errors import BuildError, GuardrailError
from kforge_dynamo.languages.triton_syntax import check

HEAD = "import triton\nimport triton.language as tl\n"
KERNEL = HEAD + "@triton.jit\ndef kernel(x, y, N: tl.constexpr):\n    "
RAW = {
    (1, "an output taken from the allocator's pool"): (KERNEL + "y = torch.empty_like(x)\n", "name"),
    (4, "a stream of its own"): (KERNEL + "with torch.cuda.stream(s):\n        pass\n", "syntax"),
    (5, "a thread"): ("import threading\n" + HEAD, "import"),
    (6, "a lazy subclass"): (HEAD + "class Lazy:\n    pass\n", "module"),
    (7, "a patched timer"): (HEAD + "import time\ntime.perf_counter = lambda: 0.0\n", "import"),
    (7, "a patched event"): (HEAD + "triton.testing.do_bench = None\n", "module"),
    (8, "a cache by address"): (HEAD + "cache = {}\n", "module"),
    (9, "a cache by identity"): (KERNEL + "y = id(x)\n", "name"),
    (10, "a default that is kept"): (HEAD + "@triton.jit\ndef kernel(x, kept=[]):\n    pass\n", "decorator"),
    (11, "a counter of calls"): (KERNEL + "global calls\n", "syntax"),
    (14, "a limit of the L2 cache"): (KERNEL + "torch.cuda.set_limit(x)\n", "name"),
    (16, "a fall-back behind try"): (KERNEL + "try:\n        pass\n    except Exception:\n        pass\n", "syntax"),
    (17, "torch's product"): (KERNEL + "y = torch.matmul(x, x)\n", "name"),
    (17, "an operation by its module"): (HEAD + "import torch\n", "import"),
    (18, "a look at the caller's frame"): (KERNEL + "y = x.__globals__\n", "name"),
    (18, "an inspection"): ("import inspect\n" + HEAD, "import"),
    (19, "a branch on the host"): (HEAD + "if True:\n    kernel = None\n", "module"),
    (27, "another decorator"): (HEAD + "@triton.autotune([], [])\n@triton.jit\ndef kernel(x):\n    pass\n", "decorator"),
    (None, "a call by name"): (KERNEL + "y = eval('1')\n", "name"),
    (None, "a module behind the language"): (KERNEL + "tl.core.os.abort()\n", "name"),
    (None, "memory by number"): (KERNEL + "y = x.to(tl.pointer_type(tl.float32))\n", "name"),
    (None, "a clock as an instruction"): (
        KERNEL + "y = tl.inline_asm_elementwise('mov.u64 $0, %clock64; trap;', '=l', [x], tl.int64, True, 1)\n", "assembly"),
}  # fmt: skip


@pytest.mark.parametrize("what", RAW, ids=lambda what: what[1])
def test_host_code_is_refused_by_its_guardrail(what):
    source, guardrail = RAW[what]
    with pytest.raises(GuardrailError, match=rf"line \d+, column \d+: \[{guardrail}\]"):
        check(source)


def test_host_code_rows_that_have_no_other_form_are_here():
    assert {4, 14, 16, 18, 19} <= {row for row, _ in RAW}


@pytest.mark.parametrize("source", ["(" * 10000, "x = " + "-" * 100000 + "1", "\0", "def f(:"])
def test_source_that_is_no_python_ends_in_words(source):
    with pytest.raises(BuildError):
        check(source)
