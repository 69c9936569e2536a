"""The Triton forms of the adversarial set on a GPU, where tensor cores do what the interpreter cannot."""

from __future__ import annotations

import pytest
import torch

from kforge_dynamo.records.outcome import Status
from tests.sandbox.adversarial.court import Court
from tests.sandbox.adversarial.triton_cases import CONTROLS, HACKS

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture(scope="module")
def court():
    return Court("cuda:0")


@pytest.mark.parametrize("case", (*HACKS, *CONTROLS), ids=lambda case: case.name)
def test_gpu_case_gets_its_verdict(court, case):
    verdict = court.judge(case)
    assert verdict.status in case.statuses and case.words in verdict.evidence, verdict


@pytest.mark.parametrize("name", ["tf32 asked of the product", "tf32 by saying nothing", "operands in fp16"])
def test_gpu_downcast_on_tensor_cores_is_inaccurate_without_the_guardrail(court, name):
    case = next(case for case in HACKS if case.name == name)
    assert court.judge(case, "precision").status is Status.INACCURATE
