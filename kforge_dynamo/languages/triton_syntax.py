"""What the source of a Triton candidate may say: imports of Triton and `@triton.jit` functions, from an allowed syntax.

Triton evaluates parts of a kernel on the host while it compiles (attributes of modules, calls of plain functions), so a
kernel's body is host code as well until its names are checked: only `tl` and `triton` are reached from outside, and of
them only the functions listed here. There is no name by which a body could reach torch, a file, a clock or a thread.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from kforge_dynamo.errors import BuildError, GuardrailError
from kforge_dynamo.languages.c_guardrails import CUDA
from kforge_dynamo.languages.formats import allowed_formats
from kforge_dynamo.records.guardrail import Guardrail, Violation
from kforge_dynamo.records.task import Task

GUARDRAILS: tuple[Guardrail, ...] = (
    Guardrail("import", "a kernel needs triton and triton.language; other modules are host code"),
    Guardrail("module", "what stands at module level runs on the host when the file is loaded"),
    Guardrail("decorator", "decorators, defaults and annotations run on the host"),
    Guardrail("syntax", "statements of host code: what is not listed is not taken"),
    Guardrail("name", "names from outside the kernel, and attributes that lead out of it"),
    Guardrail("assembly", "instructions written as text: matrices, copies, barriers and mathematics only"),
    Guardrail("downcast", "a number format narrower than the task's, which the candidate's precision scheme does not name"),
)
"""By name, with the reason. A violation adds the place."""

_STATEMENTS = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.For, ast.While, ast.If, ast.Return, ast.Pass, ast.Assert)
_EXPRESSIONS = (
    ast.Name, ast.Constant, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Call, ast.Attribute, ast.Subscript, ast.Slice,
    ast.Tuple, ast.List, ast.IfExp, ast.keyword, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context,
)  # fmt: skip


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_LANGUAGE = _words(
    """PropagateNan abs add advance arange argmax argmin associative_scan assume atomic_add atomic_and atomic_cas atomic_max
    atomic_min atomic_or atomic_xchg atomic_xor bfloat16 broadcast broadcast_to cast cat cdiv ceil clamp const constexpr cos
    cumprod cumsum debug_barrier div_rn dot dot_scaled erf exp exp2 expand_dims fdiv flip float16 float32 float64 float8e4nv
    float8e5 floor fma full gather histogram inline_asm_elementwise interleave int1 int16 int32 int64 int8 join load
    load_tensor_descriptor log log2 make_block_ptr make_tensor_descriptor max max_constancy max_contiguous maximum min
    minimum mul multiple_of num_programs permute program_id range ravel reduce reduce_or reshape rsqrt sigmoid sin
    softmax sort split sqrt sqrt_rn squeeze static_assert static_range store store_tensor_descriptor sub sum swizzle2d topk
    trans uint16 uint32 uint64 uint8 umulhi unsqueeze view where xor_sum zeros zeros_like"""
)
_MATH = _words("abs ceil cos div_rn erf exp exp2 fdiv floor fma log log2 rsqrt sin sqrt sqrt_rn umulhi")
_TRITON = _words("cdiv next_power_of_2 jit")
_METHODS = _words(
    """to load store T dtype element_ty shape type gather scatter atomic_add broadcast_to reshape permute trans sum max min abs
    is_fp16 is_bf16 is_fp32 is_floating primitive_bitwidth value"""
)
_BUILTINS = _words("range min max abs len float int bool")


_NARROW = {"float16": "float16", "bfloat16": "bfloat16", "float8e4nv": "float8", "float8e5": "float8"}
_DOT_FORMATS = {"ieee": ("ieee",), "tf32": ("tf32", "ieee")}


def violations(source: str) -> tuple[Violation, ...]:
    """The first place where `source` says more than a candidate may. Raises: BuildError where it is no Python."""
    try:
        _check_module(_parsed(source))
    except _Refusal as refusal:
        return (refusal.violation,)
    except RecursionError:
        return (Violation("syntax", 0, 0, "expressions are nested too deep to be read"),)
    return ()


def check(source: str) -> None:
    """Raises: GuardrailError with guardrail, place and reason when `source` says more than a candidate may; BuildError where it
    is no Python."""
    for violation in violations(source):
        raise GuardrailError(str(violation))


def downcasts(source: str, task: Task, scheme: str) -> tuple[Violation, ...]:
    """Places of a source that `check` accepts where it rounds to a format that neither `task` nor `scheme` names."""
    allowed, found = allowed_formats(task, scheme), []
    for node in ast.walk(_parsed(source)):
        if isinstance(node, ast.Attribute) and node.attr in _NARROW and _dotted(node) == ["tl", node.attr]:
            narrow = _NARROW[node.attr]
            if narrow not in allowed:
                found.append(_downcast(node, f"tl.{node.attr} rounds to {narrow}", scheme))
        elif isinstance(node, ast.Call) and _dotted(node.func) == ["tl", "dot"]:
            said = _dot_precision(node)
            if _multiplies_fp32(task, allowed) and said not in _dot_allowed(scheme):
                words = (
                    f"tl.dot with input_precision {said!r}" if said else "tl.dot without input_precision, which is tf32 for fp32,"
                )
                found.append(_downcast(node, f"{words} rounds operands", scheme))
        elif isinstance(node, ast.Call) and _dotted(node.func) == ["tl", "dot_scaled"] and "float8" not in allowed:
            found.append(_downcast(node, "tl.dot_scaled multiplies in 8 bits or fewer", scheme))
    return tuple(found)


def _downcast(node: ast.expr, words: str, scheme: str) -> Violation:
    return Violation("downcast", node.lineno, node.col_offset + 1, f"{words}, which the scheme {scheme!r} does not name")


def _multiplies_fp32(task: Task, allowed: frozenset[str]) -> bool:
    """Whether the operands of the product are fp32 and a scheme leaves them so."""
    anchor = task.anchor
    return anchor is not None and anchor.out.dtype == "float32" and not allowed & {"float16", "bfloat16", "float8"}


def _dot_precision(node: ast.Call) -> str:
    """What a call of tl.dot says of its operands: a word, "" for nothing, "?" for what is no constant."""
    said = {keyword.arg: keyword.value for keyword in node.keywords}
    if "allow_tf32" in said:
        return "tf32" if not (isinstance(said["allow_tf32"], ast.Constant) and said["allow_tf32"].value is False) else "ieee"
    value = said.get("input_precision", node.args[3] if len(node.args) > 3 else None)
    if value is None:
        return ""
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else "?"


def _dot_allowed(scheme: str) -> Sequence[str]:
    """Operand formats of tl.dot under a scheme: those of a split scheme carry its name."""
    if scheme.startswith("tf32"):
        return (scheme, "tf32", "ieee")
    return (*_DOT_FORMATS.get(scheme, ()), "ieee", scheme)


class _Refusal(Exception):
    def __init__(self, violation: Violation) -> None:
        super().__init__(str(violation))
        self.violation = violation


def _parsed(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except SyntaxError as error:
        raise BuildError(f"the source does not parse: line {error.lineno}: {error.msg}") from error
    except (ValueError, MemoryError, RecursionError) as error:  # null bytes; what is nested too deep for the parser
        raise BuildError(f"the source does not parse: {type(error).__name__}: {str(error)[:200]}") from error


def _check_module(tree: ast.Module) -> None:
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            _check_import(node)
        elif isinstance(node, ast.FunctionDef):
            _check_function(node, functions)
        elif not _is_docstring(node):
            raise _refused(node, "module", "only imports of triton and @triton.jit functions stand at module level")


def _check_import(node: ast.Import | ast.ImportFrom) -> None:
    if isinstance(node, ast.ImportFrom):
        raise _refused(node, "import", "write `import triton` and `import triton.language as tl`")
    for alias in node.names:
        if (alias.name, alias.asname) not in (("triton", None), ("triton.language", "tl")):
            raise _refused(node, "import", f"import of {alias.name}: write `import triton` and `import triton.language as tl`")


def _check_function(node: ast.FunctionDef, functions: set[str]) -> None:
    if [ast.unparse(decorator) for decorator in node.decorator_list] != ["triton.jit"]:
        raise _refused(node, "decorator", f"function {node.name} is not decorated with @triton.jit alone")
    arguments = node.args
    if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs:
        raise _refused(node, "decorator", f"function {node.name} takes * or ** arguments")
    for argument in arguments.args:
        if argument.annotation is not None and ast.unparse(argument.annotation) != "tl.constexpr":
            raise _refused(node, "decorator", f"argument {argument.arg} has an annotation that is not tl.constexpr")
    if any(not isinstance(default, ast.Constant) for default in arguments.defaults) or node.returns is not None:
        raise _refused(node, "decorator", f"function {node.name} has a default that is no constant, or a return annotation")
    names = {argument.arg for argument in arguments.args} | _assigned(node)
    clash = names & (functions | _BUILTINS | {"tl", "triton"})
    if clash:
        raise _refused(node, "name", f"function {node.name} assigns to {sorted(clash)[0]}")
    for child in node.body:
        _check_node(child, names | functions)


def _assigned(function: ast.FunctionDef) -> set[str]:
    return {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _check_node(node: ast.AST, known: set[str]) -> None:
    if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) != "tl.constexpr":
        raise _refused(node, "decorator", "an annotation that is not tl.constexpr")
    if not isinstance(node, _STATEMENTS + _EXPRESSIONS):
        raise _refused(node, "syntax", f"{type(node).__name__} is outside the allowed syntax")
    if isinstance(node, ast.Name) and (node.id.startswith("__") or node.id not in known | _BUILTINS | {"tl"}):
        raise _refused(node, "name", f"the name {node.id} is not known")
    if isinstance(node, ast.Attribute):
        _check_attribute(node, known)
        return
    if isinstance(node, ast.Call) and _dotted(node.func) == ["tl", "inline_asm_elementwise"]:
        _check_assembly(node)
    for child in ast.iter_child_nodes(node):
        _check_node(child, known)


def _check_assembly(node: ast.Call) -> None:
    text = node.args[0] if node.args else next((item.value for item in node.keywords if item.arg == "asm"), None)
    said = text.value if isinstance(text, ast.Constant) else None
    if not isinstance(said, str) or CUDA.assembly.fullmatch(said.strip()) is None:
        raise _refused(node, "assembly", f"inline assembly {said!r}")


def _check_attribute(node: ast.Attribute, known: set[str]) -> None:
    path = _dotted(node)
    if path is not None and path[0] in ("tl", "triton"):
        allowed = (
            (len(path) == 2 and path[1] in (_LANGUAGE if path[0] == "tl" else _TRITON))
            or (len(path) == 3 and path[:2] == ["tl", "math"] and path[2] in _MATH)
            or (len(path) == 3 and path[:2] == ["tl", "PropagateNan"])
        )
        if not allowed:
            raise _refused(node, "name", f"{'.'.join(path)} is not among the allowed functions")
        return
    if node.attr not in _METHODS:
        raise _refused(node, "name", f"the attribute .{node.attr} is not among the allowed ones")
    _check_node(node.value, known)


def _dotted(node: ast.expr) -> list[str] | None:
    """`a.b.c` as its names, None for anything else."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return None if before is None else [*before, node.attr]
    return None


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _refused(node: ast.AST, guardrail: str, reason: str) -> _Refusal:
    return _Refusal(Violation(guardrail, getattr(node, "lineno", 0), getattr(node, "col_offset", -1) + 1, reason))
