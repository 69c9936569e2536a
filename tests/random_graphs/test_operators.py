"""PyTorch's own samples of operators and modules behind a product, all regions spliced, forward and backward, fp32 and bf16."""

import pytest
import torch

from benchmarks import operators
from kforge_dynamo import ledger

pytestmark = pytest.mark.slow

OPERATORS = (
    "mm addmm bmm baddbmm matmul nn.functional.linear softmax log_softmax logsumexp sum mean amax amin argmax std var_mean "
    "nn.functional.gelu nn.functional.layer_norm nn.functional.group_norm nn.functional.silu clamp where addcmul lerp "
    "nn.functional.avg_pool1d nn.functional.max_pool1d pow maximum"
)
MODULES = "Linear LayerNorm GroupNorm GELU Softmax Hardtanh LeakyReLU RMSNorm"


@pytest.mark.parametrize(("dtype", "train", "regions"), [("float32", True, 50), ("bfloat16", False, 25)])
def test_samples_behind_a_product_are_spliced_and_right(dtype, train, regions):
    tally = operators.run(dtype, train, OPERATORS.split(), MODULES.split(), 1, "evaluator", "interpreted")
    assert not tally.faults
    assert tally.samples >= 30
    assert tally.regions == tally.winners >= regions and tally.calls >= tally.winners
    assert not tally.fallback_calls and not tally.fallbacks and not tally.said


def test_wrong_result_is_a_fault():
    right, wrong = torch.ones(3), torch.tensor([1.0, 1.0, 1.1])
    assert operators._difference([right], [right]) is None
    assert "1 / 3" in operators._difference([wrong], [right])
    assert "eager has 2" in operators._difference([right], [right, right])


def test_run_counts_only_what_it_ran():
    ledger.count("regions")
    tally = operators.run("float32", False, ["mm"], None, 1, "evaluator", "interpreted")
    assert tally.samples == 1 and tally.regions == tally.winners
