"""Values of inputs: inside the domain their uses imply, hidden, and placed with the strides of their specs."""

from __future__ import annotations

import pytest
import torch
from sandbox_tasks import Builder, attention_scores, gelu, layer_norm, linear, softmax

from kforge_dynamo.records.task import Const, InputRole, InputSpec, ValueSpec
from kforge_dynamo.sandbox.domains import Statistic, Values, domains, statistics
from kforge_dynamo.sandbox.inputs import BY_NAME, CLASSES, Seeds, draw, drawn_shape, full_shape
from kforge_dynamo.sandbox.layout import CANARY, SECOND_CANARY, blank, guards_intact, place, strides_of

CPU_DEVICE = torch.device("cpu")


def one(task, name, sizes=(33,), seed=7):
    return draw(task, sizes, BY_NAME[name], seed, CPU_DEVICE)


def norm_with_saved_variance():
    mean, var = 3, 4
    b, p = linear(extras=(((1,), (64,)),) * 2)
    root = b.op("sqrt", b.op("add", var, Const(1e-5)))
    return b.done(b.op("div", b.op("sub", p, mean), root)), var


def test_domains_variance_under_a_root_positive():
    task, var = norm_with_saved_variance()
    found = domains(task)
    assert found[var] is Values.POSITIVE
    assert found[0] is Values.ANY
    for chosen in CLASSES:
        assert bool((one(task, chosen.name)[var] >= 0).all()), chosen.name


def test_domains_divisor_nonzero():
    divisor = 3
    b, p = linear(extras=((("m",), (64,)),))
    task = b.done(b.op("div", p, divisor))
    assert domains(task)[divisor] is Values.NONZERO
    for chosen in CLASSES:
        if chosen.name not in ("non_finite", "small"):
            assert float(one(task, chosen.name)[divisor].abs().min()) > 1e-3, chosen.name


def test_domains_added_before_a_softmax_is_a_mask_where_classes_say_so():
    task = softmax(mask=True)
    assert domains(task)[2] is Values.MASK
    masked = one(task, "integers")[2]
    assert set(masked.unique().tolist()) == {0.0, float("-inf")}
    assert bool((masked[:, 0] == 0).all())
    assert bool(torch.isfinite(one(task, "unit")[2]).all())


def test_domains_residual_before_a_layer_norm_is_no_mask():
    assert domains(layer_norm())[2] is Values.ANY


def test_statistics_saved_logsumexp_is_drawn_to_fit():
    b = Builder()
    x = b.input(("m",), (48,), InputRole.LHS)
    w = b.input((1,), (48, 64), InputRole.RHS)
    saved = b.input(("m",), (1,))
    p = b.gemm(x, w)
    task = b.done(b.op("exp", b.op("sub", p, saved)))
    assert statistics(task) == (Statistic(saved, p),)
    x_, w_, s_ = one(task, "large")
    assert torch.allclose((x_ @ w_[0]).amax(1, keepdim=True), s_, rtol=1e-5)


def test_draw_equal_seeds_equal_values_and_other_seeds_other_values():
    task = gelu()
    assert all(torch.equal(a, b) for a, b in zip(one(task, "unit"), one(task, "unit"), strict=True))
    assert not torch.equal(one(task, "unit", seed=1)[0], one(task, "unit", seed=2)[0])


def test_seeds_depend_on_secret_class_and_number():
    seeds = Seeds(b"one")
    found = {seeds.seed("unit", 0), seeds.seed("unit", 1), seeds.seed("normal", 0), Seeds(b"two").seed("unit", 0)}
    assert len(found) == 4


@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("small", lambda x: float(x.abs().max()) < 1e-2),
        ("large", lambda x: float(x.abs().max()) > 1e3),
        ("scaled", lambda x: float(x.abs().amax(1).max() / x.abs().amax(1).min()) > 2.0**15),
        ("sparse", lambda x: 0.8 < float((x == 0).float().mean()) < 0.97),
        ("equal_rows", lambda x: bool((x == x[:1]).all())),
        ("one_hot", lambda x: bool((x.sum(1) == 1).all()) and int((x != 0).sum()) == x.shape[0]),
        ("integers", lambda x: set(x.unique().tolist()) == {0.0, 1.0}),
        ("non_finite", lambda x: bool(torch.isnan(x).any()) and int((~torch.isfinite(x)).sum()) == 3),
    ],
)
def test_draw_left_operand_of_each_class(name, check):
    assert check(one(gelu(), name)[0])


def test_draw_half_tensors_stay_inside_fp16():
    task = gelu(dtype="float16")
    for chosen in CLASSES:
        if chosen.name != "non_finite":
            product = one(task, chosen.name)[0].float() @ one(task, chosen.name)[1][0].float()
            assert float((product.abs() > 65504).float().mean()) < 0.05, chosen.name


def test_shapes_repeated_rows_are_drawn_once():
    item = InputSpec(ValueSpec("float32", ("m",), (8,)), (0, 1), InputRole.EXTRA)
    assert drawn_shape(item, {"m": 5}) == (1, 8)
    assert full_shape(item, {"m": 5}) == (5, 8)


@pytest.mark.parametrize(
    ("strides", "pad", "expected"),
    [
        (("dense", 1), 8, (6, 1)),
        (("pitch", 1), 8, (14, 1)),
        (("pitch", 1), 1, (7, 1)),
        ((1, "dense"), 8, (1, 4)),
        ((1, "pitch"), 3, (1, 7)),
        ((0, 1), 8, (0, 1)),
        (("dense", "pitch"), 1, (12, 2)),
    ],
)
def test_strides_follow_the_spec(strides, pad, expected):
    item = InputSpec(ValueSpec("float32", ("m",), (6,)), strides, InputRole.EXTRA)
    assert strides_of(item, (4, 6), pad) == expected


def test_place_values_arrive_and_gaps_are_nan():
    item = InputSpec(ValueSpec("float32", ("m",), (6,)), ("pitch", 1), InputRole.EXTRA)
    values = torch.randn(4, 6)
    placed = place(values, item, (4, 6), 3)
    assert torch.equal(placed.tensor, values)
    gap = placed.tensor.as_strided((3,), (9,), placed.tensor.storage_offset() + 6)
    assert bool(torch.isnan(gap).all())
    assert placed.tensor.data_ptr() % 64 == 0


def test_place_expanded_rows_share_memory():
    item = InputSpec(ValueSpec("float32", ("m",), (6,)), (0, 1), InputRole.EXTRA)
    placed = place(torch.randn(1, 6), item, (4, 6), 3)
    assert placed.tensor.stride() == (0, 1)
    assert bool((placed.tensor == placed.tensor[0]).all())


def test_place_tells_data_from_gaps():
    item = InputSpec(ValueSpec("float32", ("m",), (6,)), ("pitch", 1), InputRole.EXTRA)
    placed = place(torch.zeros(4, 6), item, (4, 6), 3)
    assert placed.untouched()
    placed.tensor.as_strided((1,), (1,), placed.tensor.storage_offset() + 6).fill_(1.0)
    assert not placed.untouched()
    assert placed.data_untouched()
    placed.tensor[1, 2] = 5.0
    assert not placed.data_untouched()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_blank_first_canary_is_nan_second_is_large(dtype):
    assert bool(torch.isnan(blank(dtype, (3, 5), CPU_DEVICE, CANARY).tensor).all())
    second = blank(dtype, (3, 5), CPU_DEVICE, SECOND_CANARY).tensor
    assert bool((second > 1e4).all())


def test_blank_guards_notice_one_byte_on_either_side():
    for step in (-1, 15):
        output = blank(torch.float32, (3, 5), CPU_DEVICE, CANARY)
        output.tensor.fill_(1.0)
        assert guards_intact(output)
        output.tensor.as_strided((1,), (1,), output.tensor.storage_offset() + step).fill_(2.0)
        assert not guards_intact(output)


def test_draw_batched_operands_have_their_batches():
    x, t = draw(attention_scores(), (3, 5), BY_NAME["unit"], 1, CPU_DEVICE)
    assert x.shape == (3, 5, 32)
    assert t.shape == (3, 1, 32, 40)
    assert not torch.equal(t[0], t[1])
