"""`kforge mcp DIR`: the tasks of a folder for any coding agent, by the Model Context Protocol over standard input and output."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from kforge_dynamo.cli.verify import Seconds
from kforge_dynamo.cli.workbench import Workbench
from kforge_dynamo.errors import KforgeError, SettingsError
from kforge_dynamo.settings import Settings
from kforge_dynamo.sites import store_of
from kforge_dynamo.targets import kforge_version

INSTRUCTIONS = """Write kernels that replace PyTorch functions. list_tasks names them; show_task has the rules, the function, the
device and an example; evaluate_kernel judges one and says what to change; submit_kernel keeps one that wins."""

Tasks = Annotated[Path, typer.Argument(metavar="DIR", help="a folder of tasks, as kforge task export TARGET --to DIR writes it")]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(name="mcp")(serve)


def serve(folder: Tasks, timeout: Seconds = 120.0) -> None:
    """Serve tasks to a coding agent by the Model Context Protocol, on standard input and output, until it hangs up."""
    if not folder.is_dir():
        raise SettingsError(f"folder {str(folder)!r} does not exist; make one with kforge task export TARGET --to DIR")
    workbench = Workbench(folder, store_of(Settings.parse()[0]), timeout)
    try:
        server(workbench).run("stdio")
    finally:
        workbench.close()


def server(workbench: Workbench) -> Any:
    """The server over `workbench`, an `mcp.server.mcpserver.MCPServer`. Raises: SettingsError without the package."""
    try:
        from mcp.server.mcpserver import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
    except ImportError as error:
        raise SettingsError(f'kforge mcp needs the package mcp: pip install "kforge-dynamo[mcp]" ({error})') from error
    made = MCPServer("kforge", version=kforge_version(), instructions=INSTRUCTIONS, log_level="WARNING")

    def list_tasks() -> list[dict[str, Any]]:
        """The tasks: name, what is computed, device, sizes, and the speed-up of the stored winner, if there is one."""
        return workbench.tasks()

    def show_task(task: str) -> str:
        """All that is needed to write a kernel for a task: rules, the function in PyTorch, sizes, device, an example with its
        launch plan, and how the kernels tried here went."""
        return workbench.show(task)

    def evaluate_kernel(
        task: str, source: str, plan: dict[str, Any] | None = None, scheme: str = "", instruments: list[str] | None = None
    ) -> dict[str, Any]:
        """Builds a kernel, compares it with fp64 on hidden inputs, and times it beside PyTorch's compiler. `plan` is the launch
        plan as show_task shows one (C++ needs none without buffers), `scheme` names how the product's operands are rounded
        where they are, `instruments` adds measurements: compiler, torch, perf, ncu, nsys. Nothing is kept."""
        return workbench.evaluate(task, source, plan, scheme, instruments or [])

    def submit_kernel(task: str, source: str, plan: dict[str, Any] | None = None, scheme: str = "") -> dict[str, Any]:
        """As evaluate_kernel with more hidden inputs and all sizes; keeps the kernel where it beats PyTorch's compiler and the
        winner stored before, so that later compiles on this machine use it."""
        return workbench.submit(task, source, plan, scheme)

    def read_verdict(kernel: str) -> dict[str, Any]:
        """Everything of a kernel judged before, by its number: the verdict with its evidence, all samples in us, the profile."""
        return workbench.verdict(kernel)

    for tool in (list_tasks, show_task, evaluate_kernel, submit_kernel, read_verdict):
        made.tool()(_told(tool, ToolError))
    return made


def _told(tool: Callable[..., Any], kind: type[Exception]) -> Callable[..., Any]:
    """`tool`, whose sentences reach the agent: the server shows those of `kind` and hides all others."""

    @functools.wraps(tool)
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            return tool(*arguments, **named)
        except KforgeError as error:
            raise kind(" ".join(str(error).split())) from error

    return call
