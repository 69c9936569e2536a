"""The worked examples are right: a writer of kernels starts from them."""

import os
import pathlib
import subprocess
import sys

import pytest
import torch

from kforge_dynamo.codegen.builtin import BuiltinGenerator
from kforge_dynamo.languages import triton_syntax
from kforge_dynamo.languages.base import canonical_dims
from kforge_dynamo.languages.cpp import LANGUAGE
from kforge_dynamo.languages.examples import EXAMPLES, TASK
from kforge_dynamo.records.candidate import Candidate
from kforge_dynamo.settings import LANGUAGE_NAMES
from kforge_dynamo.targets import detect

ROOT = pathlib.Path(__file__).resolve().parents[2]
INTERPRETED = """
import torch
from pathlib import Path
from kforge_dynamo.languages.base import canonical_dims
from kforge_dynamo.languages.examples import EXAMPLES, TASK
from kforge_dynamo.languages.triton import LANGUAGE
from kforge_dynamo.records.candidate import Candidate
from kforge_dynamo.targets import detect
import sys

example = EXAMPLES["triton"]
candidate = Candidate("triton", example.source, example.plan, "", "ieee", "example")
artifact = LANGUAGE.build(candidate, TASK, detect(torch.device("cpu")), Path(sys.argv[1]))
launch = LANGUAGE.load(artifact, candidate, TASK, canonical_dims(TASK))
torch.manual_seed(0)
x, w, bias, y = torch.randn(37, 96), torch.randn(1, 96, 64), torch.randn(1, 64), torch.full((37, 64), torch.nan)
launch([x, w, bias], [y], [37])
torch.testing.assert_close(y, torch.relu(x @ w[0] + bias))
print("right")
"""


def test_every_language_has_an_example_that_its_generator_could_write():
    assert set(EXAMPLES) == set(LANGUAGE_NAMES)
    assert BuiltinGenerator().rejects(TASK, detect(torch.device("cpu"))) is None


@pytest.mark.parametrize("rows", [1, 4, 37])
def test_cpp_example_is_right_for_tails_and_pitches_and_passes_a_nan_on(rows, tmp_path):
    example = EXAMPLES["cpp"]
    candidate = Candidate("cpp", example.source, example.plan, "", "ieee", "example")
    launch = LANGUAGE.load(
        LANGUAGE.build(candidate, TASK, detect(torch.device("cpu")), tmp_path), candidate, TASK, canonical_dims(TASK)
    )
    torch.manual_seed(0)
    x, w, bias = torch.randn(rows, 96), torch.randn(1, 96, 64), torch.randn(1, 64)
    x[0, 3] = torch.nan
    y = torch.full((rows, 64), 7.0)
    launch([x, w, bias], [y], [rows])
    torch.testing.assert_close(y, torch.relu(x.double() @ w[0].double() + bias).float(), equal_nan=True, rtol=1e-5, atol=1e-4)


def test_triton_example_is_right_in_the_interpreter(tmp_path):
    triton_syntax.check(EXAMPLES["triton"].source)
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", INTERPRETED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.stdout.strip() == "right", done.stderr
