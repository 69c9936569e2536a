"""Scales of weights from samples: what a sample cannot know is found out, and done again."""

from __future__ import annotations

import pytest
import torch
from triton_ahead import HOPPER
from triton_tasks import Builder

from kforge_dynamo.codegen.triton import Schedule
from kforge_dynamo.codegen.triton.emit import candidate
from kforge_dynamo.codegen.triton.forms import Unsupported
from kforge_dynamo.codegen.triton.schemes import worst_error
from kforge_dynamo.records.task import InputRole

SAMPLED = Schedule("fp16x3", 16, 64, 32, 4, 4, 2, copies="left", together=True, sampled=True, promote=64)
DEPTH, COLUMNS = 512, 70


def bare(depth=DEPTH):
    builder = Builder()
    x = builder.input((depth,), rows=("m",), role=InputRole.LHS)
    w = builder.input((depth, COLUMNS), strides=(0, 1, "dense"), role=InputRole.RHS)
    return builder.task(builder.gemm(x, w))


def weight(kind: str) -> torch.Tensor:
    """(COLUMNS, DEPTH), and in column 3 what a sample of sectors of eight does not see."""
    w = torch.randn(COLUMNS, DEPTH, generator=torch.Generator().manual_seed(3))
    seen = torch.zeros(DEPTH, dtype=torch.bool)
    for sector in range(DEPTH // 64):
        start = sector * 64 + sector * 5 % 8 * 8
        seen[start : start + 8] = True
    if kind == "outlier":
        w[3, 9] = 1e6
    elif kind == "nothing in the sample":
        w[3, seen] = 0.0
    elif kind == "little in the sample":
        w[3, seen] = 2.0**-130
    elif kind == "less in the sample":
        w[3, seen] *= 2.0**-7
    elif kind == "zero":
        w[3] = 0.0
    elif kind == "tiny":
        w[3] *= 2.0**-135
    elif kind == "huge":
        w[3] *= 2.0**118
    elif kind == "infinite":
        w[3, 9] = torch.inf
    assert not seen[9]
    return w


ONCE = ("plain", "nothing in the sample", "little in the sample", "less in the sample", "zero", "huge")
AGAIN = ("outlier", "tiny", "infinite")


@pytest.mark.parametrize("kind", (*ONCE, *AGAIN))
def test_column_that_its_sample_does_not_describe_is_right(interpret, kind):
    """Done again only where a sample misleads, or where nothing else is exact."""
    w = weight(kind).tolist()
    found = interpret(bare(), SAMPLED, (20,), weight=w, once=kind in ONCE)
    assert found["outputs"][0]["classes"] and found["norms"] <= worst_error("fp16x3", DEPTH, 64, True, True)
    assert kind in ONCE or interpret(bare(), SAMPLED, (20,), weight=w, once=True)["lost"] == [3]


def test_scale_leaves_the_room_that_it_promises(interpret):
    """Elements up to 256 times the sample's largest, none of them done again."""
    w = weight("plain")
    w[5, 9] = w[5].abs().max() * 60.0
    found = interpret(bare(), SAMPLED, (20,), weight=w.tolist(), once=True)
    assert not found["lost"] and found["norms"] <= worst_error("fp16x3", DEPTH, 64, True, True)


def test_unknown_depth_is_not_sampled():
    builder = Builder(cols=("k",))
    x = builder.input(("k",), rows=("m",), role=InputRole.LHS)
    w = builder.input(("k", 64), strides=(0, "dense", 1), role=InputRole.RHS)
    with pytest.raises(Unsupported, match="K is known"):
        candidate(builder.task(builder.gemm(x, w)), SAMPLED, HOPPER)
