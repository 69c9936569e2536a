"""PyTorch's own samples of operators and modules behind a product, every region spliced: `python -m benchmarks.operators`.

The samples are those of `torch.testing._internal` (`op_db`, `module_db`): products, norms, softmaxes, reductions, pointwise ops,
pools and losses. The first argument of each becomes the result of a matrix product, so that a region forms, and what it returns
is compared with eager, forward and backward. Several samples are compiled together.

Private API, read in torch 2.13.0: `torch.testing._internal.common_methods_invocations.op_db`, `common_modules.module_db`, and
the global `__allow_nonbracketed_mutation_flag` of `torch.backends`, which their import clears for the whole process.
"""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db

import kforge_dynamo
from benchmarks.planted import KINDS, planted
from benchmarks.random_graphs.running import ROUTES, route
from kforge_dynamo import ledger

# others in this process still set torch.backends' flags
torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True
INNER = 4
TOGETHER = 20
MOST_ELEMENTS = 5000
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 4e-2}
RANDOM = re.compile(
    r"dropout|rand|normal$|^normal|bernoulli|multinomial|exponential|geometric|cauchy|uniform|rrelu|gumbel|empty|fractional"
)
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "addbmm", "matmul", "nn.functional.linear", "einsum", "mv", "addmv", "__rmatmul__",
            "nn.functional.bilinear", "nn.functional.scaled_dot_product_attention", "linalg.multi_dot", "tensordot")  # fmt: skip


@dataclass(slots=True)
class Sample:
    """A call of an operator or module: `function(subject, *args, **kwargs)`. `product`: it multiplies matrices itself."""

    name: str
    function: Callable[..., Any]
    subject: torch.Tensor
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    product: bool = False

    def behind_product(self) -> tuple[Callable[..., Any], list[torch.Tensor]]:
        """The same on the result of a product of the subject's shape, and the operands of that product."""
        function, shape, args, kwargs = self.function, self.subject.shape, self.args, self.kwargs
        if self.product:
            return lambda x: _flat(function(x, *args, **kwargs), torch.relu), [self.subject]
        generator = torch.Generator().manual_seed(len(self.name))
        rows = self.subject.numel() // max(shape[-1], 1)
        left, right = (
            torch.randn(size, generator=generator).to(self.subject.dtype) for size in ((rows, INNER), (INNER, shape[-1]))
        )
        return lambda x, w: _flat(function((x @ w).reshape(shape), *args, **kwargs), None), [left, right]


@dataclass(slots=True)
class Tally:
    """What a run found: samples that ran, faults by sample, and what kforge counted."""

    samples: int = 0
    faults: dict[str, str] = field(default_factory=dict)
    regions: int = 0
    winners: int = 0
    calls: int = 0
    fallback_calls: int = 0
    fallbacks: int = 0
    said: set[str] = field(default_factory=set)

    def add(self) -> None:
        """Takes kforge's counters in and resets them."""
        stats = kforge_dynamo.stats()
        for name in ("regions", "winners", "calls", "fallback_calls", "fallbacks"):
            setattr(self, name, getattr(self, name) + stats[name])
        self.said |= set(ledger._said)
        ledger.reset()


def _flat(value: Any, tail: Callable[[torch.Tensor], torch.Tensor] | None) -> list[torch.Tensor]:
    """The tensors of a result; floating ones behind `tail`."""
    if isinstance(value, torch.Tensor):
        return [tail(value) * 1.5 if tail is not None and value.is_floating_point() else value]
    items = value if isinstance(value, tuple | list) else []
    return [tensor for item in items for tensor in _flat(item, tail)]


def operator_samples(dtype: torch.dtype, chosen: Sequence[str], each: int) -> Iterator[Sample]:
    """Samples of `op_db`: at most `each` an operator; `chosen` names operators, none means all."""
    for info in op_db:
        if (chosen and info.name not in chosen) or RANDOM.search(info.name) or dtype not in info.supported_dtypes("cpu"):
            continue
        yielded = 0
        for item in info.sample_inputs("cpu", dtype, requires_grad=False):
            subject = item.input
            if yielded >= each:
                break
            if _fits(subject, dtype) and not any("out" in name for name in item.kwargs):
                sample = Sample(info.name, info.op, subject, item.args, item.kwargs, info.name in PRODUCTS)
                if _runs(sample):
                    yielded += 1
                    yield sample


def module_samples(dtype: torch.dtype, chosen: Sequence[str], each: int) -> Iterator[Sample]:
    """Samples of `module_db` in evaluation mode: at most `each` a module."""
    for info in module_db:
        name = info.module_cls.__name__
        if (chosen and name not in chosen) or RANDOM.search(name.lower()) or dtype not in info.dtypes:
            continue
        inputs = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=False, training=False)
        for item in inputs[:each]:
            given, called = item.constructor_input, item.forward_input
            if called is None or not called.args or not _fits(called.args[0], dtype):
                continue
            module = info.module_cls(*given.args, **given.kwargs).to(dtype).eval()
            sample = Sample(name, module, called.args[0], called.args[1:], called.kwargs)
            if _runs(sample):
                yield sample


def _fits(subject: object, dtype: torch.dtype) -> bool:
    return (
        isinstance(subject, torch.Tensor) and subject.dim() > 0 and 0 < subject.numel() < MOST_ELEMENTS and subject.dtype == dtype
    )


def _runs(sample: Sample) -> bool:
    """Whether eager takes the sample, forward and (where it has gradients) backward."""
    try:
        return bool(_called(*sample.behind_product(), train=True))
    except Exception:  # noqa: BLE001 - samples say in many ways that they need another first argument
        return False


def _called(function: Callable[..., Any], operands: Sequence[torch.Tensor], train: bool) -> list[torch.Tensor | None]:
    """Outputs and gradients."""
    leaves = [item.detach().clone().requires_grad_(train) for item in operands]
    with torch.set_grad_enabled(train):
        results = function(*leaves)
    return [*(item.detach() for item in results), *_gradients([results], leaves)]


def _gradients(results: Sequence[Sequence[torch.Tensor]], leaves: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """Of a fixed weighted sum of all results, one a leaf."""
    found = [item for result in results for item in result if item.requires_grad]
    if not found:
        return [None] * len(leaves)
    total = sum((item.double() * torch.arange(item.numel()).cos().view_as(item)).sum() for item in found)
    assert isinstance(total, torch.Tensor)
    return list(torch.autograd.grad(total, list(leaves), allow_unused=True))


def check(samples: Sequence[Sample], train: bool, tally: Tally) -> None:
    """Compiles the samples together, each by itself where that fails, and compares with eager."""
    pairs = [sample.behind_product() for sample in samples]
    functions = tuple(function for function, _ in pairs)
    leaves = [[item.detach().clone().requires_grad_(train) for item in operands] for _, operands in pairs]
    torch._dynamo.reset()

    def together(everything: list[list[torch.Tensor]]) -> list[Any]:
        return [function(*operands) for function, operands in zip(functions, everything, strict=True)]

    try:
        with torch.set_grad_enabled(train):
            results = torch.compile(together, backend="kforge")(leaves)
    except Exception as error:  # noqa: BLE001 - whatever a compiler raises is the finding
        tally.add()
        if len(samples) == 1:
            tally.faults[samples[0].name] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            return
        for sample in samples:
            check([sample], train, tally)
        return
    gradients = iter(_gradients(results, [leaf for operands in leaves for leaf in operands]))
    for sample, (function, operands), result in zip(samples, pairs, results, strict=True):
        found = [*(item.detach() for item in result), *(next(gradients) for _ in operands)]
        wrong = _difference(found, _called(function, operands, train))
        tally.samples += 1
        if wrong is not None:
            tally.faults[sample.name] = wrong
    tally.add()


def _difference(found: Sequence[torch.Tensor | None], wanted: Sequence[torch.Tensor | None]) -> str | None:
    if len(found) != len(wanted):
        return f"{len(found)} outputs and gradients, eager has {len(wanted)}"
    for index, (a, b) in enumerate(zip(found, wanted, strict=True)):
        if a is None or b is None:
            if a is not b and bool((a if b is None else b).count_nonzero()):  # no gradient and one of zeros are the same
                return f"{index}: only one of the two has a gradient"
            continue
        limit = TOLERANCE.get(b.dtype, 1e-4 if b.is_floating_point() else 0.0)
        scale = b[b.isfinite()].abs().double().max().item() if b.is_floating_point() and b.isfinite().any() else 1.0
        try:
            torch.testing.assert_close(a, b, rtol=limit, atol=limit * max(scale, 1e-3), equal_nan=True)
        except AssertionError as error:
            return f"{index}: {' '.join(str(error).split())[:200]}"
    return None


def run(
    dtype: str, train: bool, operators: Sequence[str] | None, modules: Sequence[str] | None, each: int, kind: str, way: str
) -> Tally:
    """All samples; `operators` or `modules` None leaves that half out, an empty list means every one."""
    tally = Tally()
    ledger.reset()
    with warnings.catch_warnings(), route(way), planted(kind):
        warnings.simplefilter("ignore")
        found: list[Sample] = []
        if operators is not None:
            found += operator_samples(DTYPES[dtype], operators, each)
        if modules is not None:
            found += module_samples(DTYPES[dtype], modules, each)
        for start in range(0, len(found), TOGETHER):
            check(found[start : start + TOGETHER], train, tally)
    torch._dynamo.reset()
    return tally


def main(argv: Sequence[str]) -> int:
    """Run, print a line for each dtype and direction, and the faults."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.operators", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--each", type=int, default=6, help="samples an operator")
    parser.add_argument("--only", nargs="*", default=[], help="names of operators or modules")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--kind", choices=KINDS, default=KINDS[0])
    parser.add_argument("--route", choices=ROUTES, default=ROUTES[0])
    args = parser.parse_args(argv)
    faults = 0
    for dtype in args.dtypes:
        for train in (False, True):
            tally = run(dtype, train, args.only, args.only, args.each, args.kind, args.route)
            faults += len(tally.faults)
            counted = {
                name: getattr(tally, name) for name in ("samples", "regions", "winners", "calls", "fallback_calls", "fallbacks")
            }
            print(f"{dtype} {'backward' if train else 'forward'}: {counted}", flush=True)
            for name, fault in tally.faults.items():
                print(f"    {name}: {fault}")
            for line in sorted(tally.said):
                print(f"    said: {line[:200]}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
