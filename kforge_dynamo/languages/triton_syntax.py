"""What the source of a Triton candidate may say: imports of Triton and `@triton.jit` functions, from an allowed syntax.

Triton evaluates parts of a kernel on the host while it compiles (attributes of modules, calls of plain functions), so a
kernel's body is host code as well until its names are checked: only `tl` and `triton` are reached from outside, and of
them only the functions listed here.
"""

from __future__ import annotations

import ast

from kforge_dynamo.errors import BuildError

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
    minimum mul multiple_of num_programs permute pointer_type program_id range ravel reduce reduce_or reshape rsqrt sigmoid sin
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


def check(source: str) -> None:
    """Raises: BuildError with line and reason when `source` says more than a candidate may."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise BuildError(f"the source does not parse: line {error.lineno}: {error.msg}") from error
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            _check_import(node)
        elif isinstance(node, ast.FunctionDef):
            _check_function(node, functions)
        elif not _is_docstring(node):
            raise _refused(node, "only imports of triton and @triton.jit functions stand at module level")


def _check_import(node: ast.Import | ast.ImportFrom) -> None:
    if isinstance(node, ast.ImportFrom):
        raise _refused(node, "write `import triton` and `import triton.language as tl`")
    for alias in node.names:
        if (alias.name, alias.asname) not in (("triton", None), ("triton.language", "tl")):
            raise _refused(node, f"import of {alias.name}: write `import triton` and `import triton.language as tl`")


def _check_function(node: ast.FunctionDef, functions: set[str]) -> None:
    if [ast.unparse(decorator) for decorator in node.decorator_list] != ["triton.jit"]:
        raise _refused(node, f"function {node.name} is not decorated with @triton.jit alone")
    arguments = node.args
    if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs:
        raise _refused(node, f"function {node.name} takes * or ** arguments")
    for argument in arguments.args:
        if argument.annotation is not None and ast.unparse(argument.annotation) != "tl.constexpr":
            raise _refused(node, f"argument {argument.arg} has an annotation that is not tl.constexpr")
    if any(not isinstance(default, ast.Constant) for default in arguments.defaults) or node.returns is not None:
        raise _refused(node, f"function {node.name} has a default that is no constant, or a return annotation")
    names = {argument.arg for argument in arguments.args} | _assigned(node)
    clash = names & (functions | _BUILTINS | {"tl", "triton"})
    if clash:
        raise _refused(node, f"function {node.name} assigns to {sorted(clash)[0]}")
    for child in node.body:
        _check_node(child, names | functions)


def _assigned(function: ast.FunctionDef) -> set[str]:
    return {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _check_node(node: ast.AST, known: set[str]) -> None:
    if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) != "tl.constexpr":
        raise _refused(node, "an annotation that is not tl.constexpr")
    if not isinstance(node, _STATEMENTS + _EXPRESSIONS):
        raise _refused(node, f"{type(node).__name__} is outside the allowed syntax")
    if isinstance(node, ast.Name) and (node.id.startswith("__") or node.id not in known | _BUILTINS | {"tl"}):
        raise _refused(node, f"the name {node.id} is not known")
    if isinstance(node, ast.Attribute):
        _check_attribute(node, known)
        return
    for child in ast.iter_child_nodes(node):
        _check_node(child, known)


def _check_attribute(node: ast.Attribute, known: set[str]) -> None:
    path = _dotted(node)
    if path is not None and path[0] in ("tl", "triton"):
        allowed = (
            (len(path) == 2 and path[1] in (_LANGUAGE if path[0] == "tl" else _TRITON))
            or (len(path) == 3 and path[:2] == ["tl", "math"] and path[2] in _MATH)
            or (len(path) == 3 and path[:2] == ["tl", "PropagateNan"])
        )
        if not allowed:
            raise _refused(node, f"{'.'.join(path)} is not among the allowed functions")
        return
    if node.attr not in _METHODS:
        raise _refused(node, f"the attribute .{node.attr} is not among the allowed ones")
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


def _refused(node: ast.AST, reason: str) -> BuildError:
    return BuildError(f"line {getattr(node, 'lineno', 0)}: {reason}")
