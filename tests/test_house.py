"""The rules of the house, checked on the text of the package: sizes, layers, homes of effects, words."""

from __future__ import annotations

import ast
import functools
import inspect
import pathlib
import re
import subprocess

import pytest

import kforge_dynamo

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "kforge_dynamo"
FILE_LINES = 400
FUNCTION_LINES = 60

LAYERS: tuple[frozenset[str], ...] = tuple(
    frozenset(group.split())
    for group in (
        "errors",
        "records domains torch_logs surroundings",
        "semantics peaks settings",
        "targets languages store",
        "ledger inductor_entry sites",
        "reference keeper",
        "prover",
        "lowering codegen sandbox agents runtime",
        "forge",
        "evaluation",
        "rechecks",
        "answers submission",
        "graph_pass",
        "backend scale placement",
        "pages",
        "cli",
    )
)
"""A room may import rooms of earlier groups and its own; `__init__` of the package may import any."""

ENVIRONMENT_HOMES = ("settings.py",)
PROCESS_HOMES = ("sandbox/worker.py", "sandbox/forks.py", "sandbox/profile/external.py", "languages/")
PRINT_HOMES = ("cli/",)
BROAD_EXCEPT_HOMES = ("sandbox/", "runtime.py", "reference.py", "graph_pass.py", "backend.py")
PRIVATE_TORCH_HOMES = (
    "inductor_entry.py",
    "languages/allocation.py",
    "languages/triton_direct.py",
    "ledger.py",
    "lowering/inductor.py",
    "lowering/symbols.py",
    "prover.py",
    "reference.py",
    "runtime.py",
    "sandbox/baseline.py",
    "sandbox/trap.py",
    "settings.py",
    "torch_logs.py",
)
NO_OTHER_NAME = re.compile(r"torch\._ops(\.|$)|torch\._inductor(\.(list_options|list_mode_options))?$")
"""The types behind torch.ops have no public name; the two lists are what torch.compile's own documentation sends users to."""

SOURCES = sorted(path for folder in ("kforge_dynamo", "benchmarks", "scripts", "tests") for path in (ROOT / folder).rglob("*.py"))
OWN = [path for path in SOURCES if PACKAGE in path.parents]


@functools.cache
def tree_of(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def name_of(path: pathlib.Path) -> str:
    """The path below the package, with slashes."""
    return path.relative_to(PACKAGE).as_posix()


def at_home(path: pathlib.Path, homes: tuple[str, ...]) -> bool:
    return any(name_of(path) == home or (home.endswith("/") and name_of(path).startswith(home)) for home in homes)


def functions(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def imported(node: ast.AST) -> list[str]:
    """Dotted names that an import statement brings in."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module or '.'}.{alias.name}" for alias in node.names]
    return []


def dotted(node: ast.AST) -> str:
    """`a.b.c` for such an attribute chain, else an empty text."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def tracked() -> list[pathlib.Path]:
    """The repository's files as git knows them; without git, all text files beside the package."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    names = [name for name in listed.stdout.split("\0") if name] if listed.returncode == 0 else []
    paths = [ROOT / name for name in names] or [path for path in ROOT.rglob("*") if path.is_file() and ".venv" not in path.parts]
    return [path for path in paths if path.is_file()]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_file_and_its_functions_stay_small(path):
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") < FILE_LINES, f"{path}: split it where the code asks for it"
    long = [f"{f.name} at {f.lineno}" for f in functions(tree_of(path)) if f.end_lineno - f.lineno + 1 > FUNCTION_LINES]
    assert not long, f"{path}: longer than {FUNCTION_LINES} lines: {long}"


@pytest.mark.parametrize("path", OWN, ids=name_of)
def test_own_imports_stand_at_the_top(path):
    inner = [
        f"line {node.lineno}"
        for function in functions(tree_of(path))
        for node in ast.walk(function)
        if any(name.startswith(("kforge_dynamo", ".")) for name in imported(node))
    ]
    relative = [node.lineno for node in ast.walk(tree_of(path)) if isinstance(node, ast.ImportFrom) and node.level]
    assert not inner, f"{path}: a layer is wrong where an own import hides in a function: {inner}"
    assert not relative, f"{path}: relative imports at {relative}"


def rank(room: str) -> int:
    ranks = [index for index, group in enumerate(LAYERS) if room in group]
    assert ranks, f"{room} is in no layer: add it to LAYERS where the design puts it"
    return ranks[0]


def rooms_imported(path: pathlib.Path) -> set[str]:
    names = [name for node in ast.walk(tree_of(path)) for name in imported(node) if name.startswith("kforge_dynamo.")]
    return {name.split(".")[1] for name in names}


def test_layers_import_only_to_the_left():
    wrong = []
    for path in OWN:
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if room in ("__init__", "__main__"):
            continue
        for other in rooms_imported(path) - {room}:
            if ((PACKAGE / other).exists() or (PACKAGE / f"{other}.py").exists()) and rank(other) >= rank(room):
                wrong.append(f"{name_of(path)} imports {other}")
    assert not wrong, wrong


def test_print_stays_in_cli():
    wrong = [
        f"{name_of(path)}:{node.lineno}"
        for path in OWN
        if not at_home(path, PRINT_HOMES)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and dotted(node.func) == "print"
    ]
    assert not wrong, wrong


def test_environment_is_read_in_settings_only():
    reads = ("os.environ", "os.getenv", "os.putenv")
    wrong = [
        f"{name_of(path)}:{node.lineno}"
        for path in OWN
        if not at_home(path, ENVIRONMENT_HOMES)
        for node in ast.walk(tree_of(path))
        if dotted(node) in reads or any(name in reads for name in imported(node))
    ]
    assert not wrong, wrong


def test_processes_start_in_the_sandbox_and_languages_only():
    starts = re.compile(
        r"(subprocess|pty)(\.|$)|os\.(fork|system|popen|spawn\w*|exec\w+|posix_spawn\w*)$|multiprocessing\.(Process|Pool|get_context)$"
    )
    wrong = [
        f"{name_of(path)}:{node.lineno}"
        for path in OWN
        if not at_home(path, PROCESS_HOMES)
        for node in ast.walk(tree_of(path))
        if starts.match(dotted(node)) or any(starts.match(name) for name in imported(node))
    ]
    assert not wrong, wrong


def test_broad_except_has_its_reason_beside_it_and_its_home():
    wrong = []
    for path in OWN:
        lines = path.read_text(encoding="utf-8").splitlines()
        for node in ast.walk(tree_of(path)):
            if not isinstance(node, ast.ExceptHandler):
                continue
            caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            if node.type is not None and not any(dotted(kind) in ("Exception", "BaseException") for kind in caught):
                continue
            if any(isinstance(inner, ast.Raise) and inner.exc is None for inner in node.body):
                continue  # it cleans up and passes the error on
            comment = lines[node.lineno - 1].partition("#")[2].removeprefix(" noqa: BLE001").strip(" -:")
            if not comment or not at_home(path, BROAD_EXCEPT_HOMES):
                wrong.append(f"{name_of(path)}:{node.lineno}")
    assert not wrong, f"broad excepts without a reason on their line, or away from home: {wrong}"


def test_private_torch_names_have_one_home_that_names_the_versions():
    wrong, nameless = [], []
    private = re.compile(r"torch\.(?:\w+\.)*_[a-z]")
    for path in OWN:
        names = [text for node in ast.walk(tree_of(path)) for text in (dotted(node), *imported(node)) if private.match(text)]
        names = [name for name in names if not NO_OTHER_NAME.match(name)]
        if names and not at_home(path, PRIVATE_TORCH_HOMES):
            wrong.append(f"{name_of(path)}: {sorted(set(names))[:3]}")
        if names and not re.search(r"2\.1[1-9]", path.read_text(encoding="utf-8")):
            nameless.append(name_of(path))
    assert not wrong, wrong
    assert not nameless, f"say in which torch versions the private names were read: {nameless}"


def test_nothing_is_unpickled():
    picklers = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
    wrong = [
        f"{name_of(path)}:{node.lineno}"
        for path in OWN
        for node in ast.walk(tree_of(path))
        if any(name.split(".")[0] in picklers for name in imported(node)) or dotted(node) == "torch.load"
    ]
    assert not wrong, wrong


def own_names() -> list[str]:
    """Names that this repository gives: files, functions, classes, arguments, variables."""
    names = [f"{path.relative_to(ROOT).as_posix()}" for path in SOURCES]
    for path in SOURCES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.append(f"{path.name}:{node.name}")
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.append(f"{path.name}:{node.id}")
    return names


def test_names_say_what_a_thing_is():
    vague = re.compile(
        r"(?:^|[/_.:])(?:util|utils|helper|helpers|manager|managers)(?:$|[/_.])|(?:^|/)(?:misc|common)(?:/|[.]py)|Helper|Manager|Utils"
    )
    wrong = [name for name in own_names() if vague.search(name)]
    assert not wrong, wrong


def test_words_stay_with_the_product():
    foreign = re.compile(
        r"\b[Ss]essions?\b|/work/|/root/|/home/\w|\bTODO\b|\bFIXME\b|pypi\.org|pythonhosted|pytorch\.org/whl|registry\.npmjs"
    )
    allowed = re.compile(r"request\.session|scope=\"session\"")  # pytest's own names
    wrong = []
    for path in tracked():
        if path == pathlib.Path(__file__).resolve() or path.suffix not in (
            ".py",
            ".md",
            ".toml",
            ".json",
            ".txt",
            ".yml",
            ".cfg",
            "",
        ):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if foreign.search(allowed.sub("", line)):
                wrong.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert not wrong, wrong


def test_all_lists_exactly_the_public_names():
    listed = list(kforge_dynamo.__all__)
    rooms = {path.stem for path in PACKAGE.iterdir()}
    public = {name for name, value in vars(kforge_dynamo).items() if not name.startswith("_") and not inspect.ismodule(value)}
    public -= {"annotations"} | (rooms & public if not listed else set())
    assert set(listed) == public, f"missing from __all__: {public - set(listed)}; not there: {set(listed) - public}"
    assert listed == sorted(listed), "kept in order, so that a change is one line"


@pytest.mark.parametrize("path", OWN, ids=name_of)
def test_public_things_have_docstrings(path):
    tree = tree_of(path)
    if path.name == "__init__.py" and not tree.body:
        return
    assert ast.get_docstring(tree), f"{path}: no module docstring"
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    silent = []
    for node in tree.body:
        inner = node.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_") else []
        for thing in (node, *inner):
            if isinstance(thing, kinds) and not thing.name.startswith("_") and not ast.get_docstring(thing):
                silent.append(f"{thing.name} at {thing.lineno}")
    assert not silent, f"{path}: say what is promised: {silent}"


def test_test_files_have_names_of_their_own():
    stems: dict[str, list[str]] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        stems.setdefault(path.stem, []).append(path.relative_to(ROOT).as_posix())
    twice = [paths for paths in stems.values() if len(paths) > 1]
    assert not twice, f"pytest imports test files by their stem; these collide: {twice}"
