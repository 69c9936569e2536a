"""Fourteen graphs on which backends of torch.compile have gone wrong, each compiled with every region spliced.

    python nasty_cases.py [names ...]

Each case gets `compile_fn` and checks values, writes and gradients itself; the program prints, for each, what was counted.
Where a region covers the whole graph no C++ is compiled, so that all of them take seconds.
"""

import json
import math
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import kforge_dynamo
from benchmarks import planted
from kforge_dynamo import ledger

NAN, INF = math.nan, math.inf


def close(found, wanted, what="", tolerance=2e-5):
    found, wanted = (item if isinstance(item, tuple | list) else (item,) for item in (found, wanted))
    assert len(found) == len(wanted)
    for index, (a, b) in enumerate(zip(found, wanted, strict=True)):
        assert (a is None) == (b is None), f"{what} {index}: {a} against {b}"
        if a is not None:
            torch.testing.assert_close(
                a, b, rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda m, i=index: f"{what} {i}: {m}"
            )


def draw(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def infinite_rows(compile_fn):
    def f(x, w, offset, hidden):
        y = torch.logsumexp((x @ w + offset).masked_fill(hidden, -INF), 1)
        return F.mish(y)

    x, w, offset, hidden = draw(6, 16), draw(16, 8, seed=1), torch.zeros(6, 1), torch.zeros(6, 8, dtype=torch.bool)
    hidden[1] = True
    offset[2] = INF
    x_nan = x.clone()
    x_nan[3, 0] = NAN
    compiled = compile_fn(f)
    for argument in (x, x_nan):
        close(compiled(argument, w, offset, hidden), f(argument, w, offset, hidden))
    assert torch.isnan(f(x_nan, w, offset, hidden)[3]) and f(x, w, offset, hidden)[1] != 0


def tied_weight_written_between_uses(compile_fn):
    def f(ids, table, x):
        h = F.relu(F.linear(x, table))
        table.add_(0.5)
        return h, F.linear(x, table).softmax(-1), F.embedding(ids, table).sum(0)

    ids, x = torch.tensor([1, 3, 3]), draw(5, 12, seed=1)
    ours, theirs = draw(9, 12, seed=2), draw(9, 12, seed=2)
    compiled = compile_fn(f)
    for _ in range(2):
        close(compiled(ids, ours, x), f(ids, theirs, x))
        assert torch.equal(ours, theirs)


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(12, 16), nn.Linear(16, 6)

    def forward(self, x):
        return self.two(F.gelu(self.one(x))).softmax(-1)


def small():
    torch.manual_seed(0)
    return Small()


def weights_written_past_the_version_counter(compile_fn):
    model, average, x = small(), small(), draw(4, 12)
    compiled = compile_fn(average)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    for _ in range(3):
        model(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for mine, other in zip(average.parameters(), model.parameters(), strict=True):
                mine.data.copy_(0.5 * mine.data + 0.5 * other.data)
            close(compiled(x), average(x))


def unaligned_and_strided_operands(compile_fn):
    def f(x, w, r):
        return (x @ w + r).relu(), (F.linear(x, w.t()) * r).sum(-1)

    w = draw(10, 14, seed=1)
    compiled = compile_fn(f)
    inputs = [draw(10, 8).t(), draw(9, 20)[1:, ::2], draw(2, 10, 4).permute(2, 0, 1)[:, 0], draw(8, 13)[:, 3:]]
    weights = [w, draw(14, 10).t(), draw(10, 28)[:, ::2], w]
    for step, (x, weight) in enumerate(zip(inputs, weights, strict=True)):
        r = draw(1, 14, seed=3).expand(x.shape[0], 14) if step % 2 else draw(x.shape[0], 1, seed=4).expand(-1, 14)
        close(compiled(x, weight, r), f(x, weight, r), step)
        torch._dynamo.reset()


def batches_from_none_to_thousands(compile_fn):
    def f(x, w, b):
        y = F.linear(x, w, b)
        return F.gelu(y) / x.shape[0] if x.shape[0] else F.gelu(y), y.amax(-1), y.view(-1, 2, 4).sum(-1)

    w, b = draw(8, 12, seed=1), draw(8, seed=2)
    compiled = compile_fn(f)
    for rows in (13, 2, 7, 1, 0, 4097):
        x = draw(rows, 12)
        torch._dynamo.maybe_mark_dynamic(x, 0)
        close(compiled(x, w, b), f(x, w, b), rows)

    def masked(x, keep, w):
        rows = x[keep]
        torch._check(rows.shape[0] >= 2)
        torch._check(rows.shape[0] <= 64)
        return (rows @ w).relu().sum(-1), (x @ w).sigmoid()

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = compile_fn(masked, fullgraph=True)
        for seed in (1, 2):
            x, keep = draw(20, 12), draw(20, seed=seed) > 0
            close(compiled(x, keep, w.t()), masked(x, keep, w.t()))


def modes_in_turn(compile_fn):
    model, x = small(), draw(5, 12)
    compiled = compile_fn(model)
    for half in range(2):
        with torch.no_grad():
            close(compiled(x), model(x), "no_grad")
        close(gradients(compiled, model, x), gradients(model, model, x), "gradients")
        with torch.inference_mode():
            close(compiled(x), model(x), "inference")
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
            close(compiled(x), model(x), "autocast", 2e-2)
        if not half:
            model.one.requires_grad_(False)


def gradients(function, model, x):
    model.zero_grad(set_to_none=True)
    function(x).square().sum().backward()
    return [parameter.grad for parameter in model.parameters()]


def attention_with_everything(compile_fn):
    def f(q, k, v, mask):
        k, v = (item[:, :, None].expand(2, 2, 2, 7, 8).reshape(2, 4, 7, 8) for item in (k, v))
        scores = q @ k.transpose(-1, -2) * 0.35 + mask
        p = scores.softmax(-1)
        return p @ v, scores

    q, k, v = draw(2, 4, 7, 8), draw(2, 2, 7, 8, seed=1), draw(2, 2, 7, 8, seed=2)
    mask = torch.full((7, 7), -INF).triu(1)
    mask[4] = -INF  # a row that sees nothing: NaN in eager
    close(compile_fn(f)(q, k, v, mask), f(q, k, v, mask))


def group_norms_at_the_edge(compile_fn):
    def f(x, w, b, gamma):
        y = F.linear(x, w, b)
        return (
            F.group_norm(y, 15, eps=1e-12),
            F.group_norm(y, 3),
            F.group_norm(y, 5, gamma, None, 1e-12),
            F.group_norm(y + 1e4, 3),
        )

    x, w, b, gamma = draw(6, 20), draw(15, 20, seed=1), draw(15, seed=2), draw(15, seed=3)
    close(compile_fn(f)(x, w, b, gamma), f(x, w, b, gamma), tolerance=2e-3)
    wide = f(x.double(), w.double(), b.double(), gamma.double())
    error = (compile_fn(f)(x, w, b, gamma)[3].double() - wide[3]).abs().max()
    assert error < 4 * (f(x, w, b, gamma)[3].double() - wide[3]).abs().max() + 1e-6, "a mean of 1e4 costs no more than in eager"


def ties_and_indices(compile_fn):
    def f(x, w, table):
        y = x @ w
        values, index = y.max(dim=1, keepdim=True)
        low, where = y.min(dim=1)
        return values, index, low, where, torch.gather(table, 1, y.argmax(1, keepdim=True)), y.argmin(-1)

    x, w, table = torch.ones(5, 4), torch.ones(4, 6), draw(5, 6)
    w[:, 2] = w[:, 4] = 3.0
    x[1], x[2, 0], x[3, 1] = -1.0, NAN, INF
    results, wanted = compile_fn(f)(x, w, table), f(x, w, table)
    close(results, wanted)
    assert wanted[1][0] == 2 and wanted[1].dtype == results[1].dtype


def written_in_place_and_overlapping(compile_fn):
    def f(x, w, out):
        x.copy_(torch.relu(x @ w) + x)
        torch.mm(x, w, out=out)
        return out.view(-1), x[1:]

    ours, theirs = [draw(6, 6), draw(6, 6, seed=1), torch.zeros(6, 6)], [draw(6, 6), draw(6, 6, seed=1), torch.zeros(6, 6)]
    compiled = compile_fn(f)
    for _ in range(2):
        got, want = compiled(*ours), f(*theirs)
        close(got, want)
        got[0].add_(1.0), want[0].add_(1.0), got[1].mul_(0.5), want[1].mul_(0.5)
        close(ours, theirs)

    def overlapping(x, w):
        y = (x @ w).tanh()
        x.add_(1.0)
        return y, w * 2

    blocks = [draw(80), draw(80)]
    got, want = (
        g(b[:36].view(6, 6), b[12:48].view(6, 6)) for g, b in zip((compile_fn(overlapping), overlapping), blocks, strict=True)
    )
    close(got, want)
    close(*blocks)


class Dropped(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(12, 16)

    def forward(self, x):
        return checkpoint(lambda v: F.gelu(F.dropout(self.linear(v) * x.new_ones(()), 0.5)), x, use_reentrant=False)


def recomputed_dropout(compile_fn):
    torch.manual_seed(0)
    model = Dropped()
    x = draw(8, 12).requires_grad_()
    out = compile_fn(model)(x)
    out.sum().backward()
    dead = (out == 0).all(0)
    assert (out == 0).float().mean() > 0.3 and torch.equal(model.linear.bias.grad[dead], torch.zeros(int(dead.sum())))
    kept = out != 0
    y = F.linear(x, model.linear.weight, model.linear.bias) * 2.0
    close(out[kept], F.gelu(y)[kept])
    slope = torch.autograd.grad(F.gelu(y).sum(), y)[0] * 2.0
    close(model.linear.bias.grad, (slope * kept).sum(0))


def pools_with_windows_over_the_edge(compile_fn):
    def f(x, w):
        y = F.linear(x, w)
        z = y.unsqueeze(1)
        return (
            F.max_pool1d(z, 2).squeeze(1).sum(-1),
            F.max_pool1d(z, 3, 2, padding=1, ceil_mode=True).squeeze(1).sum(-1),
            F.avg_pool1d(z, 3, 2, padding=1, count_include_pad=True).squeeze(1).sum(-1),
            F.avg_pool1d(z, 3, 2, padding=1, count_include_pad=False).squeeze(1),
            F.avg_pool1d(z, 2, ceil_mode=True).squeeze(1),
        )

    x, w = draw(6, 8), draw(13, 8, seed=1)
    close(compile_fn(f)(x, w), f(x, w))


def replayed_with_other_weights(compile_fn):
    model = small()
    compiled = compile_fn(model, mode="reduce-overhead")
    kept = []
    with torch.no_grad():
        for step, rows in enumerate((4, 9, 4, 9)):
            x = draw(rows, 12, seed=step)
            kept.append((compiled(x), model(x)))
            model.load_state_dict(
                {name: draw(*value.shape, seed=step + 5) for name, value in model.state_dict().items()}, assign=True
            )
    for got, want in kept:  # results stay what they were
        close(got, want)


def products_of_every_edge(compile_fn):
    def f(x, w, bias, row, scalar):
        # Inductor of torch 2.13 computes small products of one row itself, and there reads a bias whose beta is 0
        nan = torch.full((w.shape[1],), NAN if x.shape[0] > 1 else 0.0, dtype=w.dtype)
        return (
            F.relu(x @ w + bias), torch.addmm(row, x, w).sigmoid(), (x @ w + scalar).tanh(),
            torch.addmm(nan, x, w, beta=0).relu(), torch.addmm(bias, x, w, beta=0.5, alpha=2.0).abs(),
        )  # fmt: skip

    for m, k, n in ((1, 50, 60), (4, 1, 6), (4, 5, 1), (4, 5, 6)):
        args = draw(m, k), draw(k, n, seed=1), draw(n, seed=2), draw(1, n, seed=3), torch.tensor(0.25)
        close(compile_fn(f)(*args), f(*args), f"{m}x{k}x{n}")
        torch._dynamo.reset()

    def deep(x, w):
        return (x @ w).relu() * 0.5

    x, w = draw(3, 65536, dtype=torch.bfloat16) * 1e3, draw(65536, 8, seed=1, dtype=torch.bfloat16)
    compiled, wide = compile_fn(deep), deep(x.double(), w.double())
    for allowed in (True, False):
        torch.backends.cpu.allow_bf16_reduced_precision_reduction = allowed
        error = (compiled(x, w).double() - wide).abs().max() / wide.abs().max()
        assert error < 2**-7, f"bf16 products are summed in fp32: error {error:.1e}"


CASES = (
    infinite_rows, tied_weight_written_between_uses, weights_written_past_the_version_counter, unaligned_and_strided_operands,
    batches_from_none_to_thousands, modes_in_turn, attention_with_everything, group_norms_at_the_edge, ties_and_indices,
    written_in_place_and_overlapping, recomputed_dropout, pools_with_windows_over_the_edge, replayed_with_other_weights,
    products_of_every_edge,
)  # fmt: skip


def run(case):
    """What was counted while the case ran; its failure as text."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    ledger.reset()
    failure = ""
    try:
        case(lambda f, **options: torch.compile(f, backend="kforge", **options))
    except Exception as error:  # noqa: BLE001 - the case's failure is its result
        failure = f"{type(error).__name__}: {error}"[:1500]
    hits = torch._dynamo.utils.counters["aot_autograd"].get("autograd_cache_hit", 0)
    hits += torch._dynamo.utils.counters["inductor"].get("fxgraph_cache_hit", 0)
    return {**kforge_dynamo.stats(), "hits_of_caches": hits, "failure": failure, "said": sorted(ledger._said)}


def main(names):
    planted.install("evaluator")
    found = {case.__name__: run(case) for case in CASES if not names or case.__name__ in names}
    print("RESULT " + json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
