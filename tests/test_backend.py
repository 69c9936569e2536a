"""The backend by name: options, modes, fallbacks. What the regions compute is in tests/end_to_end."""

import logging

import pytest
import torch
from torch import nn

from kforge_dynamo import backend, graph_pass, inductor_entry, ledger
from kforge_dynamo.errors import MissError, SettingsError


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("KFORGE_CACHE_DIR", str(tmp_path / "kforge"))
    monkeypatch.setenv("KFORGE_ON_MISS", "fallback")
    torch.compiler.reset()
    ledger.reset()
    with inductor_entry.without_caches():
        yield


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 32), nn.GELU(), nn.Linear(32, 10), nn.Softmax(-1)).eval()


def run(**arguments):
    """The compiled model's result beside eager's."""
    model, x = net(), torch.randn(6, 24)
    with torch.no_grad():
        found, wanted = torch.compile(model, **{"backend": "kforge", **arguments})(x), model(x)
    torch.testing.assert_close(found, wanted)


def test_backend_by_name_is_listed_and_right():
    assert "kforge" in torch._dynamo.list_backends()
    run()
    assert ledger.stats()["regions"] == 2
    assert [item.state for item in ledger.report()] == ["not_searched", "not_searched"]


def test_option_with_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(Exception, match="nearest name is 'on_miss'") as caught:
        run(options={"on_mis": "fallback"})
    assert inductor_entry.cause(caught.value, SettingsError) is not None


def test_option_of_inductor_reaches_inductor(monkeypatch):
    seen = {}
    original = inductor_entry.compile_fx

    def recording(gm, inputs, config_patches):
        seen.update(config_patches)
        return original(gm, inputs, config_patches=config_patches)

    monkeypatch.setattr(inductor_entry, "compile_fx", recording)
    run(options={"on_miss": "fallback", "max_fusion_size": 7})
    assert seen["max_fusion_size"] == 7
    assert "on_miss" not in seen


def test_mode_reaches_inductor(monkeypatch):
    seen = {}
    original = inductor_entry.compile_fx

    def recording(gm, inputs, config_patches):
        seen.update(config_patches)
        return original(gm, inputs, config_patches={key: config_patches[key] for key in ("post_grad_custom_pre_pass",)})

    monkeypatch.setattr(inductor_entry, "compile_fx", recording)
    run(mode="max-autotune-no-cudagraphs")
    assert seen["max_autotune"] is True


def test_pass_of_the_user_runs_before_ours():
    calls = []

    class Mine(torch._inductor.custom_graph_pass.CustomGraphPass):
        def __call__(self, graph):
            calls.append(len(graph.nodes))

        def uuid(self):
            return "mine"

    run(options={"post_grad_custom_pre_pass": Mine()})
    assert len(calls) == 1
    assert ledger.stats()["regions"] == 2


def test_disabled_by_the_environment_leaves_all_to_inductor(monkeypatch):
    monkeypatch.setenv("KFORGE_DISABLE", "1")
    run()
    assert ledger.stats()["regions"] == 0


def test_miss_under_error_raises_with_the_next_step():
    with pytest.raises(Exception, match="kforge warm") as caught:
        run(options={"on_miss": "error"})
    assert inductor_entry.cause(caught.value, MissError) is not None


@pytest.mark.parametrize("where", ["prepare", "partition", "splice"])
def test_failure_of_ours_leaves_the_graph_to_inductor_with_one_line(monkeypatch, caplog, where):
    def broken(*args, **kwargs):
        raise ZeroDivisionError("planted")

    if where == "prepare":
        monkeypatch.setattr(backend, "prepare", broken)
    elif where == "partition":
        monkeypatch.setattr(graph_pass, "partition", broken)
    else:
        monkeypatch.setattr(graph_pass.GraphWork, "_regions", broken)
    with caplog.at_level(logging.WARNING, logger="kforge"):
        run()
        run()
    lines = [record.getMessage() for record in caplog.records if "planted" in record.getMessage()]
    assert len(lines) == 1
    assert "Inductor" in lines[0]


def test_failure_inside_inductor_with_our_pass_compiles_again_without_it(monkeypatch):
    original = inductor_entry.compile_fx

    def broken_with_pass(gm, inputs, config_patches):
        if "post_grad_custom_pre_pass" in config_patches:
            raise RuntimeError("planted lowering failure")
        return original(gm, inputs, config_patches=config_patches)

    monkeypatch.setattr(inductor_entry, "compile_fx", broken_with_pass)
    run()
    assert ledger.stats()["fallbacks"] == 1


def test_machine_without_a_compiler_runs_uncompiled_with_one_line(monkeypatch, caplog):
    def no_compiler(*args, **kwargs):
        raise torch._inductor.exc.InvalidCxxCompiler

    monkeypatch.setattr(inductor_entry, "compile_fx", no_compiler)
    with caplog.at_level(logging.WARNING, logger="kforge"):
        run()
    assert any("uncompiled" in record.getMessage() and "g++" in record.getMessage() for record in caplog.records)


def test_error_of_the_model_is_the_users():
    def broken(x):
        return x @ torch.zeros(3, 3)

    with pytest.raises(Exception, match=r"same reduction dim|mat1 and mat2|cannot be multiplied"):
        torch.compile(broken, backend="kforge")(torch.zeros(2, 4))


def test_overlap_pattern_tells_shared_memory_from_separate():
    block = torch.zeros(12)
    shared = inductor_entry.overlap_pattern([block[:6], block[3:9]])
    assert shared != inductor_entry.overlap_pattern([torch.zeros(6), torch.zeros(6)])
    assert shared != inductor_entry.overlap_pattern([block[:6], block[4:10]])


def test_cause_finds_an_error_behind_inductors_own():
    try:
        try:
            raise MissError("inner")
        except MissError as error:
            raise RuntimeError("outer") from error
    except RuntimeError as error:
        assert str(inductor_entry.cause(error, MissError)) == "inner"
        assert inductor_entry.cause(error, KeyError) is None
