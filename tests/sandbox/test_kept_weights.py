"""Candidates whose preparation of weights is kept: what is timed, what the preparation may see, and stale copies."""

from dataclasses import replace

import pytest
import torch
from sandbox_tasks import CPU, HIGHEST, gelu

from kforge_dynamo.errors import RecordError
from kforge_dynamo.languages.base import canonical_dims
from kforge_dynamo.languages.cpp import LANGUAGE
from kforge_dynamo.records.candidate import Buffer, Candidate, Launch, LaunchPlan
from kforge_dynamo.records.request import Request
from kforge_dynamo.records.target import Peak
from kforge_dynamo.records.task import point
from kforge_dynamo.sandbox import race
from kforge_dynamo.sandbox.bench import Bench
from kforge_dynamo.sandbox.candidate_call import candidate_call
from kforge_dynamo.sandbox.inputs import Seeds
from kforge_dynamo.sandbox.plans import check_plan
from kforge_dynamo.sandbox.timing import roofline_us
from kforge_dynamo.semantics.evaluate import evaluate
from kforge_dynamo.targets import detect

DEVICE = torch.device("cpu")
KEPT = replace(HIGHEST, kept=True)
PLAN = LaunchPlan(
    (Buffer("twice", "float32", "64"), Buffer("seen", "float32", "2")),
    (
        Launch("kforge_pack", ("1",), ("in:2", "buf:twice", "buf:seen"), weights_only=True),
        Launch("kforge_entry", ("1",), ("in:0", "in:1", "in:2", "out:0", "buf:twice", "buf:seen")),
    ),
)
_ARGS = "(void* const* inputs, void* const* outputs, void* const* buffers, const int64_t* sizes, const int64_t* strides, int n)"
_DOOR = 'extern "C" __attribute__((visibility("default"))) void'
SOURCE = f"""#include <stdint.h>
{_DOOR} kforge_pack{_ARGS} {{
  for (int i = 0; i < 64; ++i) ((float*)buffers[0])[i] = 2 * ((const float*)inputs[2])[i];
  for (int i = 0; i < 2; ++i) ((float*)buffers[1])[i] = inputs[i] != 0;
}}
{_DOOR} kforge_entry{_ARGS} {{
  for (int64_t m = 0; m < sizes[0]; ++m)
    for (int i = 0; i < 64; ++i)
      ((float*)outputs[0])[m * 64 + i] = ((const float*)buffers[0])[i] + 1000 * ((const float*)buffers[1])[i % 2];
}}
"""
"""Twice the bias, and 1000 more where the preparation could see the activation or the weight."""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    candidate = Candidate("cpp", SOURCE, PLAN, "", "ieee", "test")
    target = detect(DEVICE)
    artifact = LANGUAGE.build(candidate, gelu(), target, tmp_path_factory.mktemp("kept"))
    return LANGUAGE.load(artifact, candidate, gelu(), canonical_dims(gelu()))


def inputs():
    return [torch.randn(5, 48), torch.randn(1, 48, 64), torch.randn(1, 64)]


def test_preparation_runs_once_and_again_only_when_it_is_forgotten(loaded):
    given = inputs()
    kept, whole = (candidate_call(gelu(), (5,), loaded, DEVICE, rules) for rules in (KEPT, HIGHEST))
    before = kept(given)[0]
    given[2].add_(1.0)
    assert torch.equal(kept(given)[0], before), "no launch read the bias"
    kept.forget()
    assert torch.equal(kept(given)[0], (2 * given[2]).expand(5, 64))
    assert not torch.equal(whole(given)[0], before)


def test_preparation_sees_the_inputs_it_names_and_no_other(loaded):
    given = inputs()
    assert torch.equal(candidate_call(gelu(), (5,), loaded, DEVICE, KEPT)(given)[0], (2 * given[2]).expand(5, 64))
    assert (candidate_call(gelu(), (5,), loaded, DEVICE, HIGHEST)(given)[0] > 900).all()


def test_plan_that_prepares_an_activation_is_refused():
    pack = replace(PLAN.launches[0], args=("in:0", "buf:twice"))
    with pytest.raises(RecordError, match="varies by row"):
        check_plan(replace(PLAN, launches=(pack, PLAN.launches[1])), gelu(), (5,))


def test_weight_that_is_not_read_is_no_part_of_the_roofline():
    target = replace(detect(DEVICE), peaks=())
    assert roofline_us(gelu(), (5,), target, (1,)) is None
    target = replace(target, peaks=(Peak("memory_bytes_per_s", 1e9, "B/s", "made up"),))
    assert roofline_us(gelu(), (5,), target) - roofline_us(gelu(), (5,), target, (1,)) == pytest.approx(48 * 64 * 4 / 1e3)


class Lasting:
    """A track whose candidate never makes a copy anew, whatever it is told."""

    def __init__(self, kept):
        self.kept, self.inputs = kept, []

    def first(self, given):
        self.inputs.append(given)
        return evaluate(gelu(), given, {"m": 5})

    def again(self, given):
        return evaluate(gelu(), [given[0], *(self.inputs[0][1:] if self.kept else given[1:])], {"m": 5})


@pytest.mark.parametrize("kept", [True, False])
def test_copy_that_stays_when_it_is_to_be_forgotten_is_found(kept):
    plan = replace(PLAN, launches=PLAN.launches[1:])
    candidate = Candidate("cpp", "", plan, "", "ieee", "test")
    request = Request(gelu(), (5,), point(gelu(), (5,)), candidate, CPU, KEPT, "", "{}", "search", "", True, 60.0, None)
    bench = Bench(gelu(), HIGHEST, DEVICE, Seeds(b"k" * 32))
    track = Lasting(kept)
    stands = race._stands(request, bench, track)
    verdict = race._stale(request, bench, track, stands)
    assert (verdict is not None and "[rule reused]" in verdict.evidence) if kept else verdict is None
