"""The README says what is so."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest
import typer

import kforge_dynamo
from benchmarks import report
from kforge_dynamo.cli.main import app
from kforge_dynamo.settings import settings_table

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def generator():
    """`scripts/readme.py` as a module."""
    spec = importlib.util.spec_from_file_location("readme_parts", ROOT / "scripts" / "readme.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def code_blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.M | re.S)


def test_generated_files_are_as_the_generator_writes_them():
    for path, content in generator().files().items():
        assert path.read_text(encoding="utf-8") == content, f"{path.name}: run python scripts/readme.py"


@pytest.mark.parametrize("row", settings_table(), ids=lambda row: row[1])
def test_every_setting_has_its_line(row):
    option, environment, _, default, meaning = row
    line = next(line for line in TEXT.splitlines() if f"| `{environment}` |" in line)
    assert (option == "-" or f"`{option}`" in line) and meaning in line and default in line


def test_every_counter_is_explained():
    counters = re.findall(r"^\| (`.*?`) \| ", TEXT.partition("| counter |")[2].partition("\n\n")[0], re.M)
    explained = {name for cell in counters for name in re.findall(r"`(\w+)`", cell)}
    assert explained == set(kforge_dynamo.stats())


def test_every_command_of_the_program_has_its_line():
    listed = set(re.findall(r"^\| `kforge (\w+)", TEXT, re.M))
    assert listed == set(typer.main.get_command(app).commands)


def test_every_public_name_appears():
    missing = [name for name in kforge_dynamo.__all__ if f"kforge_dynamo.{name}" not in TEXT and name != "RegionReport"]
    assert not missing


def test_commands_of_the_two_lines_exist_and_are_executable():
    (block,) = code_blocks("sh")
    commands = [line.split()[0] for line in block.splitlines()]
    assert commands == ["./demo.sh", "./test.sh"]
    assert all(os.access(ROOT / command, os.X_OK) for command in commands)


def test_continuous_integration_runs_the_test_command():
    assert "./test.sh" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    steps = (ROOT / "test.sh").read_text(encoding="utf-8")
    assert all(step in steps for step in ("ruff format --check .", "ruff check .", "mypy", "python -m pytest"))


def test_python_floor_is_the_packages():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")  # tomllib is not in Python 3.10
    floor = re.search(r'^requires-python = ">=(.*)"', project, re.M)[1]
    assert f"Python {floor} or newer" in TEXT and f"sys.version_info < {tuple(map(int, floor.split('.')))}" in (
        ROOT / "scripts" / "environment.sh"
    ).read_text(encoding="utf-8")
    torch_floor = re.search(r'^    "torch>=(.*)"', project, re.M)[1]
    assert f"torch {torch_floor} or newer" in TEXT


def test_links_and_folders_exist():
    for link in re.findall(r"\]\(([^)#:]+)\)", TEXT):
        assert (ROOT / link).exists(), link
    for name in re.findall(r"`((?:[a-z_]+/)+)`", TEXT):
        assert (ROOT / name).is_dir() or (ROOT / "kforge_dynamo" / name).is_dir(), name


@pytest.mark.slow
def test_python_in_the_readme_runs(tmp_path):
    program = "\n".join(code_blocks("python"))
    env = {**os.environ, "KFORGE_CACHE_DIR": str(tmp_path), "KFORGE_BUDGET_S": "5", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert "torch.Size([16, 64])" in done.stdout and "'regions': " in done.stdout


def test_tables_come_from_rows_on_disk():
    between = TEXT.partition(report.BEGIN)[2].partition(report.END)[0]
    found = report.read(report.result_files())
    lines = [line for line in between.splitlines() if line.startswith(tuple(f"| {key[0]}" for key in found))]
    assert len(lines) == len(found)
    tables = (ROOT / "benchmarks" / "results" / "README.md").read_text(encoding="utf-8")
    assert tables.count("### ") == len(found)
