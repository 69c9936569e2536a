"""Which regions can be judged at all, and which mutants are none."""

from __future__ import annotations

from sandbox_checks import bench_of, checked, eager
from sandbox_tasks import Builder, attention_scores, batch_norm, gelu, layer_norm, linear, minus_own_mean, row_max, softmax

from kforge_dynamo.records.task import Const, InputRole
from kforge_dynamo.sandbox import discrimination
from kforge_dynamo.sandbox.discrimination import discriminate, few_rows
from kforge_dynamo.sandbox.inputs import BY_NAME


def judged(task, rows=37):
    sizes = (rows,) if len(task.row_axes) == 1 else (2, rows)
    return discriminate(bench_of(task), sizes)


def test_discriminate_usual_regions_are_testable_and_name_nothing():
    for make in (gelu, softmax, layer_norm, row_max, attention_scores):
        found = judged(make())
        assert found.reason is None, (make.__name__, found.reason)
        assert found.equivalent == (), make.__name__
        assert len(found.counting) >= 8, make.__name__


def test_discriminate_constant_result_not_testable():
    found = judged(minus_own_mean())
    assert found.reason is not None and "stale" in found.reason
    assert found.counting == ()


def test_discriminate_mean_over_one_row_not_testable():
    assert judged(batch_norm(), rows=1).reason is not None
    assert judged(batch_norm(), rows=8).reason is None


def test_discriminate_single_number_is_testable():
    """One row, one value: it is its own mean, which proves nothing against it."""
    b, p = linear()
    assert judged(b.done(b.reduce("amax", p)), rows=1).reason is None


def test_discriminate_clamp_behind_tanh_equivalent():
    b, p = linear()
    t = b.op("tanh", p)
    found = judged(b.done(b.op("minimum", b.op("maximum", t, Const(-1.0)), Const(1.0))))
    assert found.reason is None
    assert {name.split()[0] for name in found.equivalent} == {"minimum", "maximum"}


def test_discriminate_division_by_one_equivalent():
    b, p = linear()
    found = judged(b.done(b.op("relu", b.op("div", p, Const(1.0)))))
    assert found.reason is None
    assert [name.split()[0] for name in found.equivalent] == ["div"]


def test_discriminate_bias_before_batch_norm_equivalent():
    found = judged(batch_norm())
    assert found.reason is None
    assert any("without bias" in name for name in found.equivalent)


def test_discriminate_threshold_that_no_class_reaches_brings_a_scale(monkeypatch):
    """min(x, 20): N(0, 1) never gets there, ten times as much does."""
    monkeypatch.setattr(discrimination, "CLASSES", (BY_NAME["unit"], BY_NAME["small"]))
    b, p = linear()
    found = judged(b.done(b.op("minimum", p, Const(20.0))))
    assert found.reason is None
    assert found.equivalent == ()
    assert any(chosen.name.startswith("unit_x") for chosen in found.classes)


def test_discriminate_unreachable_threshold_equivalent():
    b, p = linear()
    found = judged(b.done(b.op("minimum", b.op("sigmoid", p), Const(2.0))))
    assert found.reason is None
    assert [name.split()[0] for name in found.equivalent] == ["minimum"]


def test_discriminate_class_that_overflows_does_not_count():
    b, p = linear()
    found = judged(b.done(b.op("exp", p)))
    assert found.reason is None
    assert "large" not in found.counting and "large" not in {chosen.name for chosen in found.classes}


def test_few_rows_never_more_than_given_and_bounded_work():
    assert few_rows(gelu(), (3,)) == (3,)
    assert few_rows(gelu(), (100_000,)) == (64,)
    assert few_rows(gelu(k=8192, n=8192), (1024,)) == (8,)
    assert few_rows(attention_scores(), (12, 197)) == (2, 64)


def test_discriminate_symbolic_depth_keeps_its_size():
    b = Builder(("m",), ("k",))
    x = b.input(("m",), ("k",), InputRole.LHS)
    w = b.input((1,), ("k", 16), InputRole.RHS)
    task = b.done(b.op("relu", b.gemm(x, w)))
    assert few_rows(task, (500, 24)) == (64, 24)
    found = discriminate(bench_of(task), (500, 24))
    assert found.reason is None


def test_discriminate_dead_mask_input_does_not_hide_its_where():
    b, p = linear()
    keep = b.op("gt", p, Const(0.0), dtype="bool")
    task = b.done(b.op("where", keep, p, b.op("mul", p, Const(0.01))))
    found = judged(task)
    assert found.reason is None
    assert checked(task, eager(task)).passed
