"""Hot loops in machine code: recorded listings, and small ones by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from kforge_dynamo.languages.assembly import functions, hottest_loops, innermost_loops

FIXTURES = Path(__file__).parent / "fixtures"


def test_hot_loop_of_a_spilling_product_is_described():
    (found,) = hottest_loops((FIXTURES / "objdump_avx512.txt").read_text())
    assert found.name == "multiply_fresh<6, 4, 256, float>"
    assert (found.vector_bits, found.fma, found.instructions, found.stack_moves) == (512, 24, 41, 7)
    assert found.registers is None and found.threads is None, "what is not read is unknown"


def test_vector_loop_is_told_from_its_scalar_versions():
    found = {facts.name: facts for facts in hottest_loops((FIXTURES / "objdump_avx2.txt").read_text())}
    assert set(found) == {"g", "h"}, "f only calls erff in its loop"
    assert (found["h"].vector_bits, found["h"].fma) == (256, 1)
    assert (found["g"].vector_bits, found["g"].fma) == (32, 1)
    assert found["h"].stack_moves == 0


def test_jump_back_from_a_block_moved_to_the_end_is_no_loop():
    body = functions((FIXTURES / "objdump_avx2.txt").read_text())["h"]
    heads = [loop[0].address for loop in innermost_loops(body)]
    assert heads == [0x11F0, 0x1238], "jumps from 1312, 131b and 1323 go back without a loop"


NESTED = """
0000000000000000 <nest>:
   0:\tvxorps %ymm0,%ymm0,%ymm0
   4:\txor    %eax,%eax
   8:\tvaddps (%rsi,%rax,4),%ymm0,%ymm0
   c:\tvmovaps %ymm0,{first}
  10:\tinc    %eax
  12:\tjne    8 <nest+0x8>
  14:\tvmulps %ymm0,%ymm0,%ymm0
  18:\tvmulps %ymm0,%ymm0,%ymm0
  1c:\tdec    %edx
  1e:\tjne    4 <nest+0x4>
  20:\tret
"""


def test_inner_loop_counts_and_the_outer_one_does_not():
    (found,) = hottest_loops(NESTED.format(first="(%rdi)"))
    assert (found.instructions, found.fma, found.vector_bits) == (4, 0, 256)


@pytest.mark.parametrize(
    ("operand", "prologue", "moves"),
    [("0x40(%rsp)", "", 1), ("-0x40(%rbp)", "", 0), ("-0x40(%rbp)", "   2:\tmov    %rsp,%rbp\n", 1), ("0x40(%rdi)", "", 0)],
)
def test_spills_are_counted_where_the_stack_is_meant(operand, prologue, moves):
    text = NESTED.format(first=operand).replace("   4:", prologue + "   4:", 1)
    (found,) = hottest_loops(text)
    assert found.stack_moves == moves


def test_listing_without_arithmetic_has_no_hot_loop():
    assert hottest_loops("0000000000000000 <f>:\n   0:\tinc    %eax\n   2:\tjne    0 <f>\n   4:\tret\n") == ()
    assert hottest_loops("") == ()
