"""Graph forms that Inductor loses something of, and what `repair` makes of them."""

import pytest
import torch
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass

from kforge_dynamo.lowering.repair import repair


class Repair(CustomGraphPass):
    def __init__(self):
        self.changed = 0

    def __call__(self, graph):
        self.changed += repair(graph)

    def uuid(self):
        return None


@pytest.fixture
def compiled():
    torch.compiler.reset()
    step = Repair()

    def compile_and_run(function, *args):
        with config.patch(post_grad_custom_pre_pass=step):
            return torch.compile(function)(*args)

    compile_and_run.step = step
    return compile_and_run


@pytest.mark.parametrize("order", ["product first", "product second"])
def test_add_with_alpha_beside_a_product_keeps_alpha(compiled, order):
    def function(a, b, c):
        product = a @ b
        return torch.add(product, c, alpha=0.875) if order == "product first" else torch.add(c, product, alpha=0.875)

    a, b, c = torch.randn(5, 16), torch.randn(16, 12), torch.randn(12)
    torch.testing.assert_close(compiled(function, a, b, c), function(a, b, c))
    assert compiled.step.changed == 1


def test_add_of_integers_with_alpha_is_left_alone(compiled):
    def function(a, b):
        return torch.add(a, b, alpha=3)

    a, b = torch.arange(6), torch.arange(6)
    assert torch.equal(compiled(function, a, b), function(a, b))
    assert compiled.step.changed == 0


def test_gradient_of_average_pooling_over_the_edge_is_eagers(compiled):
    def function(x):
        return torch.nn.functional.avg_pool2d(x, 3, 2, padding=1, ceil_mode=True)

    x = torch.randn(1, 6, 5, 6, requires_grad=True)
    weights = torch.randn_like(function(x))
    (wanted,) = torch.autograd.grad((function(x) * weights).sum(), x)
    with config.patch(post_grad_custom_pre_pass=compiled.step):  # the backward graph is compiled when it is first run
        (found,) = torch.autograd.grad((torch.compile(function)(x) * weights).sum(), x)
    torch.testing.assert_close(found, wanted)
    assert compiled.step.changed == 1
