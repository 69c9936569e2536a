"""Occupancy against numbers worked out by hand from the vendors' formulas."""

from __future__ import annotations

import pytest

from kforge_dynamo.records.profile import KernelFacts
from kforge_dynamo.sandbox.profile.occupancy import occupancy


def facts(threads, registers, shared_bytes):
    return KernelFacts("k", "test", threads=threads, registers=registers, shared_bytes=shared_bytes)


@pytest.mark.parametrize(
    ("threads", "registers", "shared_bytes", "blocks", "limit"),
    [
        (128, 32, 0, 16, "warps"),  # 64 warps / 4
        (32, 16, 0, 32, "blocks"),
        (256, 64, 0, 4, "registers"),  # 8 warps of 64 x 32 registers: 8 a part, 32 of 64 warps
        (128, 200, 98304, 2, "registers"),  # 6400 registers a warp: 2 a part, 8 warps
        (128, 255, 147456, 1, "shared memory"),  # 233472 / (147456 + 1024)
        (384, 168, 0, 1, "registers"),  # 5376 a warp: 3 a part, 12 warps
        (128, 65, 0, 7, "registers"),  # 2304 a warp, as 72 registers would: 7 a part, 28 warps
    ],
)
def test_hopper_holds_as_many_blocks_as_its_tightest_resource(threads, registers, shared_bytes, blocks, limit):
    found = occupancy(facts(threads, registers, shared_bytes), "sm_90")
    assert (found.blocks, found.limits[0].resource) == (blocks, limit), found
    assert found.warps == blocks * -(-threads // 32) and found.most_warps == 64
    assert found.share == found.warps / 64 and found.source.startswith("CUDA")


@pytest.mark.parametrize(
    ("threads", "registers", "shared_bytes", "blocks", "limit"),
    [
        (256, 64, 0, 8, "registers"),  # 512 / 64 = 8 waves x 4 SIMDs / 4
        (256, 214, 32768, 2, "registers"),  # 216: 2 waves x 4 / 4, as LLVM's "Occupancy: 2"
        (256, 128, 65536, 1, "shared memory"),
        (256, 512, 0, 1, "registers"),
        (64, 24, 0, 32, "blocks"),  # one wave a block needs no barrier
        (128, 24, 0, 16, "blocks"),
    ],
)
def test_mi300_holds_as_many_blocks_as_its_tightest_resource(threads, registers, shared_bytes, blocks, limit):
    found = occupancy(facts(threads, registers, shared_bytes), "gfx942")
    assert found.blocks == blocks, found
    assert limit in {item.resource for item in found.limits if item.blocks == blocks}
    assert found.warps == blocks * (threads // 64) and found.most_warps == 32


def test_block_that_does_not_fit_has_no_block():
    assert occupancy(facts(1024, 255, 0), "sm_90").blocks == 0
    assert occupancy(facts(128, 32, 240_000), "sm_90").blocks == 0


def test_limits_are_ordered_and_the_formula_names_its_numbers():
    found = occupancy(facts(128, 200, 98304), "sm_90")
    assert [item.blocks for item in found.limits] == sorted(item.blocks for item in found.limits)
    assert "16384 / 6400" in found.formula and "233472 / 99328" in found.formula


def test_what_is_unknown_gives_no_occupancy():
    assert occupancy(KernelFacts("k", "test", threads=128, registers=32), "sm_90") is None
    assert occupancy(facts(128, 32, 0), "sm_999") is None
    assert occupancy(facts(128, 32, 0), "avx512") is None
    assert occupancy(facts(128, 32, 0), "sm_90a").blocks == 16
