"""The device's proof of kept weights: every change is seen, nothing else is, and calls use the weights as they are."""

from __future__ import annotations

import pytest
from proof_scenes import CHANGES, PROVEN, SPLIT, WAYS, linear
from triton_ahead import HOPPER, compiled
from triton_interpreter import HIGHEST
from triton_tasks import Builder

from kforge_dynamo.codegen import triton as generator
from kforge_dynamo.codegen.triton import Schedule
from kforge_dynamo.codegen.triton.model import split_us
from kforge_dynamo.codegen.triton.tiles import product_of
from kforge_dynamo.languages.triton_proof import watched
from kforge_dynamo.records.candidate import Buffer, Launch, LaunchPlan
from kforge_dynamo.records.codec import from_text, to_text


@pytest.fixture(scope="module")
def seen(ask):
    return ask({"scene": "changes", "seed": 0})


def test_every_change_of_a_weight_is_seen_once(seen):
    assert seen["first use"] and not seen["no change"]
    assert {name: seen[name] for name in CHANGES} == dict.fromkeys(CHANGES, True)
    assert not any(seen[f"after {name}"] for name in CHANGES)
    assert seen["each line"] and not seen["same bits elsewhere"]


def test_notes_that_were_never_written_are_not_believed(seen):
    assert seen["word that says never seen"] and seen["garbage"] and not seen["after garbage"]
    assert seen["words"], "the notes are a function of the weight"


def test_lines_that_lie_apart_half_precision_and_two_weights_are_looked_at(ask):
    found = ask({"scene": "layouts"})
    assert found.pop("apart, gap") is False and found.pop("apart, after") is False
    assert found == dict.fromkeys(found, True)


def test_weights_changed_in_any_way_are_used_as_they_are_while_a_copy_is_kept(ask):
    found = ask({"scene": "ways"})
    assert set(WAYS) < set(found["errors"]) and all(error < 1e-5 for error in found["errors"].values()), found
    assert all(found["moves"][name] > 1e-2 for name in WAYS), "a stale copy would be told from a right one"
    assert found["copies"] == 2 and found["kept"] >= 2 * 40 * 72 * 4 and found["left"] == 0
    assert found["calls"] == 2 * (len(WAYS) + 1) + 4 and not found["fallbacks"]


@pytest.mark.parametrize("target", [("cuda", 90, 32), ("hip", "gfx942", 64)], ids=lambda target: str(target[1]))
def test_launches_that_look_at_weights_compile_for_devices_that_are_not_here(tmp_path, target):
    builder = Builder()
    task = builder.task(builder.gelu(builder.linear(512, 512)))
    made = compiled(tmp_path, task, Schedule("fp16x3", 64, 64, 64, 8, 4, 2, copies="both", promote=64), target,
                    without="product_exact", proven=True)  # fmt: skip
    by_name = {kernel["name"]: kernel for kernel in made}
    assert {"kf_changes", "split_right", "tiled_product"} <= set(by_name)
    looking = by_name["kf_changes"]
    if target[0] == "cuda":
        assert looking["spills"] == 0 and looking["registers"] * 128 * 3 <= 65536, "three programs share a multiprocessor"
        assert "ld.global" in looking["text"] and ".v4" in looking["text"]


def test_proven_plan_is_the_plain_one_but_for_when_it_splits_the_weight():
    task = linear(72, 40)
    plain = generator.emit(task, SPLIT, (1,), HOPPER, HIGHEST)
    proven = generator.emit(task, SPLIT, (1,), HOPPER, PROVEN)
    assert not plain.plan.proof and watched(plain.plan, task) is None
    assert proven.plan.proof == "proven" and from_text(LaunchPlan, to_text(proven.plan)) == proven.plan
    assert proven.plan.launches[1:] == plain.plan.launches[1:]
    assert "proof" not in to_text(plain.plan)
    found = watched(proven.plan, task)
    assert found is not None
    assert [launch.kernel for launch in found.plan.launches] == ["kf_changes", *[item.kernel for item in plain.plan.launches]]
    assert {buffer.name for buffer in found.copies} == {"right_parts", "right_scales"}


def test_sums_of_a_weight_are_added_again_instead_of_hashed():
    builder = Builder()
    task = builder.task(builder.reduce("sum", builder.linear(64, 96), (0,)))
    folded = Schedule("ieee", 16, 16, 32, 4, 4, 2, fold=True)
    assert generator.emit(task, folded, (8,), HOPPER, PROVEN) == generator.emit(task, folded, (8,), HOPPER, HIGHEST)


def test_model_counts_one_read_of_a_weight_that_is_looked_at():
    builder = Builder()
    task = builder.task(builder.gelu(builder.linear(8192, 8192)))
    schedule = Schedule("fp16x3", 128, 128, 64, 8, 8, 4, copies="both", promote=256)
    anew, looked, kept = (
        split_us(task, product_of(task), schedule, {"m": 16}, HOPPER, weights) for weights in ("prepared", "proven", "kept")
    )
    assert kept < 0.1 * looked < 0.1 * 0.6 * anew


def test_layouts_without_lines_have_no_proof():
    task = linear(72, 40)
    plan = generator.emit(task, SPLIT, (1,), HOPPER, PROVEN).plan
    assert watched(plan, linear(72, 40, dtype="float64")) is None
    assert watched(plan, linear(16, 40, pitch=True)) is None, "lines of 16 elements would waste most of a program"


PACK = Launch("pack", ("1",), ("in:1", "buf:parts", "buf:proven"), weights_only=True)
RUN = Launch("run", ("1",), ("in:0", "buf:parts", "out:0"))
PARTS, FLAG = Buffer("parts", "float32", "8"), Buffer("proven", "int32", "1", zeroed=True)


@pytest.mark.parametrize(
    ("buffers", "launches", "words"),
    [
        ((PARTS, Buffer("proven", "int32", "1")), (PACK, RUN), "zeroed"),
        ((PARTS,), (PACK, RUN), "zeroed"),
        ((PARTS, FLAG), (PACK, Launch("run", ("1",), ("buf:parts", "buf:proven", "out:0"))), "only launches that prepare"),
    ],
)
def test_plan_whose_proof_is_none_is_refused(buffers, launches, words):
    LaunchPlan((PARTS, FLAG), (PACK, RUN), proof="proven")
    with pytest.raises(ValueError, match=words):
        LaunchPlan(buffers, launches, proof="proven")
