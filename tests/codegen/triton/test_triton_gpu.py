"""Every schedule of the space on a GPU, on random tasks, against the reference evaluator in fp64."""

from __future__ import annotations

import pathlib
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from triton_interpreter import judged, tensor_for
from triton_tasks import Builder, gate, named_tasks, random_task

from kforge_dynamo import targets
from kforge_dynamo.codegen import triton as generator
from kforge_dynamo.errors import BuildError
from kforge_dynamo.languages.base import canonical_dims
from kforge_dynamo.languages.triton import LANGUAGE
from kforge_dynamo.records.target import Numerics
from kforge_dynamo.records.task import InputRole, Task
from kforge_dynamo.semantics.evaluate import Mode, Policy, evaluate

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
HIGHEST = Numerics("highest", fp16_reduced=False, bf16_reduced=False, deterministic=False)
NAMED = named_tasks()


def run_space(task: Task, sizes: tuple[int, ...], folder: pathlib.Path, fill: str = "normal", most: int = 64) -> None:
    """Compiles all schedules in parallel, runs each twice, and holds each to the oracle."""
    device = torch.device("cuda", torch.cuda.current_device())
    target = targets.detect(device)
    assert target is not None
    named = dict(zip(task.axes, sizes, strict=True))
    noise = torch.Generator().manual_seed(1)
    inputs = [tensor_for(spec, named, noise, fill).to(device) for spec in task.inputs]
    eager = evaluate(task, inputs, named)
    oracle = evaluate(task, inputs, named, Policy(Mode.ORACLE))
    launchers = {}
    for schedule in generator.space(task, sizes, target, HIGHEST)[:most]:
        candidate = generator.emit(task, schedule, sizes, target, HIGHEST)
        artifact = LANGUAGE.build(candidate, task, target, folder)
        launchers[schedule] = LANGUAGE.load(artifact, candidate, task, canonical_dims(task))
    strides = [tensor.stride() for tensor in inputs]
    with ThreadPoolExecutor(8) as pool:
        compiles = {schedule: pool.submit(launcher.prepare, sizes, strides, device) for schedule, launcher in launchers.items()}
    failures = []
    for schedule, launcher in launchers.items():
        try:
            compiles[schedule].result()
            for _ in range(2):  # the second call takes the short way
                outputs = [torch.full(tensor.shape, 7, dtype=tensor.dtype, device=device) for tensor in eager]
                launcher(inputs, outputs, sizes)
                torch.cuda.synchronize()
                gate({"changed": False, "outputs": [judged(*group) for group in zip(outputs, eager, oracle, strict=True)]})
        except (BuildError, AssertionError) as error:
            failures.append(f"{schedule}: {str(error)[:300]}")
    assert not failures, f"{len(failures)} of {len(launchers)}\n" + "\n".join(failures)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("seed", range(4))
def test_every_schedule_of_a_random_task_matches_the_oracle(tmp_path, seed, dtype):
    n, k, m = ((512, 256, 300), (96, 64, 129), (1000, 128, 17), (256, 1024, 1))[seed]
    run_space(random_task(seed, n, k, dtype), (m,), tmp_path, most=24)


@pytest.mark.parametrize("name", NAMED)
def test_named_task_matches_the_oracle(tmp_path, name):
    task, sizes = NAMED[name]
    run_space(task, sizes, tmp_path, most=6)


@pytest.mark.parametrize("name", ["gelu", "softmax", "logsumexp", "groups"])
def test_infinities_and_nans_appear_where_eager_has_them(tmp_path, name):
    task, sizes = NAMED[name]
    run_space(task, sizes, tmp_path, fill="edges", most=6)


def test_batched_product_matches_the_oracle(tmp_path):
    builder = Builder("b", "m")
    x = builder.input((64,), rows=("b", "m"), role=InputRole.LHS)
    w = builder.input((64, 128), rows=("b", 1), strides=("dense", 0, 1, "dense"), role=InputRole.RHS)
    run_space(builder.task(builder.softmax(builder.gemm(x, w, alpha=0.125))), (6, 100), tmp_path, most=8)


def test_launcher_replays_inside_a_cuda_graph(tmp_path):
    task, sizes = NAMED["softmax"]
    device = torch.device("cuda", torch.cuda.current_device())
    target = targets.detect(device)
    schedule = generator.space(task, sizes, target, HIGHEST)[0]
    candidate = generator.emit(task, schedule, sizes, target, HIGHEST)
    launcher = LANGUAGE.load(LANGUAGE.build(candidate, task, target, tmp_path), candidate, task, canonical_dims(task))
    noise = torch.Generator().manual_seed(1)
    inputs = [tensor_for(spec, {"m": sizes[0]}, noise, "normal").to(device) for spec in task.inputs]
    (wanted,) = evaluate(task, inputs, {"m": sizes[0]})
    output = torch.empty_like(wanted)
    launcher(inputs, [output], sizes)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launcher(inputs, [output], sizes)
    output.zero_()
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(output, wanted, rtol=1e-4, atol=1e-5)


def test_misaligned_input_takes_the_long_way_and_is_right(tmp_path):
    task, sizes = NAMED["bare"]
    device = torch.device("cuda", torch.cuda.current_device())
    target = targets.detect(device)
    schedule = next(s for s in generator.space(task, sizes, target, HIGHEST) if not s.descriptors)
    candidate = generator.emit(task, schedule, sizes, target, HIGHEST)
    launcher = LANGUAGE.load(LANGUAGE.build(candidate, task, target, tmp_path), candidate, task, canonical_dims(task))
    x = torch.randn(sizes[0] * 40 + 1, device=device)[1:].view(sizes[0], 40)
    w = torch.randn(72, 40, device=device)
    output = torch.empty(sizes[0], 72, device=device)
    for _ in range(2):
        launcher([x, w.t()[None]], [output], sizes)
    torch.testing.assert_close(output, x @ w.t(), rtol=1e-4, atol=1e-4)
