"""What the text and the object of a C++ or CUDA candidate may not say: every guardrail has a source that breaks it, by name."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from kforge_dynamo.languages import c_guardrails, object_file, triton_syntax
from kforge_dynamo.languages.c_guardrails import CPP, CUDA, violations
from kforge_dynamo.languages.formats import scheme_refusal
from kforge_dynamo.languages.triton import EXAMPLE
from kforge_dynamo.records.target import Numerics
from tests.sandbox.sandbox_tasks import gelu

BROKEN = {
    "a trigraph": ("text", "int a; ??=define b"),
    "a line splice": ("text", "int a; // \\\nint b;"),
    "a raw string": ("text", 'const char* s = R"(x)";'),
    "a digraph": ("text", "%:define A"),
    "a letter of another alphabet": ("text", "int \u0430 = 1;"),
    "a byte": ("text", "int a;\x00"),
    "a system header": ("include", "#include <unistd.h>"),
    "a file beside it": ("include", '#include "/etc/passwd"'),
    "an include by macro": ("include", "#include HEADER"),
    "another directive": ("macro", "#import <math.h>"),
    "an undefinition": ("macro", "#undef W"),
    "a joined token": ("macro", "#define J(a, b) a##b"),
    "a token made text": ("macro", "#define S(a) #a"),
    "a keyword defined": ("macro", "#define static"),
    "a refused word defined": ("macro", "#define pthread_create f"),
    "a pragma of the compiler": ("pragma", "#pragma GCC push_options"),
    "a pragma in the text": ("reserved", '_Pragma("omp parallel")'),
    "thread-private memory": ("pragma", "#pragma omp threadprivate(x)"),
    "a system call in assembly": ("assembly", 'void f() { asm volatile("syscall"); }'),
    "assembly between functions": ("assembly", 'asm(".globl x");'),
    "another name for a function": ("assembly", 'int f() asm("open");'),
    "a constructor": ("attribute", "__attribute__((constructor)) void f();"),
    "a constructor in brackets": ("attribute", "[[gnu::constructor]] void f();"),
    "an indirect function": ("attribute", '__attribute__((ifunc("r"))) void f();'),
    "a section": ("attribute", '__attribute__((section(".init"))) int f();'),
    "an alias": ("attribute", '__attribute__((alias("g"))) void f();'),
    "a function of libc": ("linkage", 'extern "C" int puts(const char*);'),
    "functions of libc in a block": ("linkage", 'extern "C" { int omp_get_thread_num(void); long random(void); }'),
    "a variable from elsewhere": ("linkage", "extern char** names;"),
    "a static counter": ("static", "void f() { static long n; ++n; }"),
    "a static array": ("static", "static float kept[64];"),
    "a static pointer to constants": ("static", "static const float* kept = nullptr;"),
    "memory of a thread": ("storage", "thread_local int x;"),
    "the older word for it": ("storage", "__thread int x;"),
    "a system call": ("process", "void f() { syscall(1); }"),
    "a child": ("process", "void f() { fork(); }"),
    "the environment": ("process", 'void f() { getenv("HOME"); }'),
    "rounding for all that follows": ("process", "void f() { _MM_SET_FLUSH_ZERO_MODE(1); }"),
    "a file": ("file", 'void f() { fopen("x", "w"); }'),
    "a file by a common word": ("file", 'void f() { open("x", 0); }'),
    "a global name of a common word": ("file", "void f() { ::write(1, 0, 0); }"),
    "a line of output": ("output", 'void f() { printf("x"); }'),
    "a socket": ("network", "void f() { socket(1, 2, 3); }"),
    "a thread": ("thread", "void f() { std::thread t; }"),
    "the number of threads for all that follows": ("thread", "void f() { omp_set_num_threads(9); }"),
    "the clock": ("clock", "void f() { omp_get_wtime(); }"),
    "the counter of cycles": ("clock", "void f() { __rdtsc(); }"),
    "a library's function": ("loader", 'void f() { dlsym(0, "x"); }'),
    "memory of its own": ("memory", "void f() { malloc(4); }"),
    "memory by new": ("memory", "void f() { new float[4]; }"),
    "an exception": ("control", "void f() { throw 1; }"),
    "a builtin that is not listed": ("reserved", "void f() { __builtin_return_address(0); }"),
    "the table of addresses": ("reserved", "void f() { &_GLOBAL_OFFSET_TABLE_; }"),
    "a number format": ("downcast", "void f(float x) { (float)(_Float16)x; }"),
}
FINE = (
    "#include <math.h>\n#define INLINE static inline __attribute__((always_inline))\nINLINE float f(float x) { return expf(x); }",
    'void f() { asm("" : "+v"(x)); }',
    "static const int table[4] = {1, 2, 3, 4};",
    "static float* const none = nullptr;",
    'extern "C" __attribute__((visibility("default"))) void kforge_entry(int* const* in, int n) { int time = n; read(time); }\n'
    "static void read(int x) { }",
    "void f(Call c) { c.write(1); int close = 2; close++; }",
    "#pragma omp parallel for num_threads(threads)\nfor (;;) {}",
)


@pytest.mark.parametrize("what", BROKEN)
def test_violation_named_with_its_place(what):
    guardrail, source = BROKEN[what]
    found = violations("int first;\n" + source, CPP, gelu())
    assert guardrail in {item.guardrail for item in found}, found
    item = next(item for item in found if item.guardrail == guardrail)
    assert item.line >= 2 and item.column >= 1


@pytest.mark.parametrize("source", FINE)
def test_source_without_a_violation_has_none(source):
    assert violations(source, CPP, gelu()) == ()


def test_every_guardrail_of_the_table_has_a_source_that_breaks_it():
    assert {guardrail for guardrail, _ in BROKEN.values()} == {item.name for item in c_guardrails.GUARDRAILS}
    assert all(item.reason for item in c_guardrails.GUARDRAILS)


def test_cuda_takes_its_own_words_and_instructions_and_no_others():
    kernel = "__global__ void k(float* x) { __shared__ float s[32]; s[threadIdx.x] = x[0]; __syncthreads(); %s }"
    assert violations(kernel % 'asm volatile("cp.async.wait_all;" ::);', CUDA) == ()
    assert [item.guardrail for item in violations(kernel % 'asm volatile("trap;" ::);', CUDA)] == ["assembly"]
    assert [item.guardrail for item in violations(kernel % "clock64();", CUDA)] == ["clock"]
    assert [item.guardrail for item in violations("__managed__ int x;", CUDA)] == ["storage"]
    assert violations(kernel % "", CPP), "C++ does not know CUDA's words"


OBJECTS = {
    "a name of libc that no text rule knows": ("symbol", "extern \"C\" long lrand48(); long f() { return lrand48(); }"),
    "a global": ("state", "long calls = 3; long f() { return ++calls; }"),
    "zeroed memory": ("state", "float kept[64]; float f() { return kept[3]++; }"),
    "memory of a thread": ("state", "thread_local int n; int f() { return ++n; }"),
    "code at load time": ("load", "double g(); static double h() { volatile double x = 1; return x; } const double v = h(); "
                                  "double f() { return v; }"),
    "a constructor": ("load", "__attribute__((constructor)) void f() {}"),
}  # fmt: skip


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("what", OBJECTS)
def test_compiled_object_says_what_its_text_may_hide(what, tmp_path):
    guardrail, source = OBJECTS[what]
    (tmp_path / "k.cpp").write_text(source)
    subprocess.run(["g++", "-O2", "-fPIC", "-c", "k.cpp", "-o", "k.o"], cwd=tmp_path, check=True)
    assert guardrail in {item.guardrail for item in object_file.violations(tmp_path / "k.o", source, library=False)}


def test_object_of_another_format_is_not_judged(tmp_path):
    (tmp_path / "k.o").write_bytes(b"\xcf\xfa\xed\xfe" + b"\0" * 100)
    assert object_file.violations(tmp_path / "k.o", "", library=False) == ()


@pytest.mark.parametrize(
    ("said", "scheme", "names"),
    [
        ("x.to(tl.float16)", "ieee", "float16"),
        ("x.to(tl.bfloat16)", "tf32x3", "bfloat16"),
        ("tl.dot(x, x)", "ieee", "without input_precision"),
        ("tl.dot(x, x, input_precision='tf32')", "ieee", "tf32"),
        ("tl.dot(x, x, allow_tf32=True)", "ieee", "tf32"),
        ("x.to(tl.float16)", "fp16x3", None),
        ("tl.dot(x, x, input_precision='ieee')", "ieee", None),
        ("tl.dot(x, x, input_precision='tf32x3')", "tf32x3", None),
    ],
)
def test_triton_downcast_is_named_where_the_scheme_does_not_name_it(said, scheme, names):
    source = "import triton\nimport triton.language as tl\n@triton.jit\ndef f(x):\n    y = " + said + "\n"
    triton_syntax.check(source)
    found = triton_syntax.downcasts(source, gelu(), scheme)
    assert bool(found) is (names is not None), found
    assert names is None or (names in found[0].words and found[0].line == 5)


@pytest.mark.parametrize(
    ("setting", "scheme", "fits"),
    [("highest", "tf32", False), ("highest", "tf32x3", True), ("highest", "fp16x3", True), ("strict", "fp16x3", False),
     ("strict", "bf16x6", True), ("highest", "bf16x3", False), ("high", "tf32", True), ("high", "bf16", False),
     ("high", "fp16_rows", True), ("highest", "fp16_rows", False), ("medium", "bf16", True), ("mixed", "fp16", True),
     ("highest", "ieee", True)],
)  # fmt: skip
def test_scheme_that_a_setting_does_not_allow_is_called_a_downcast(setting, scheme, fits):
    words = scheme_refusal(gelu(), scheme, Numerics(setting, False, False, False))
    assert (words is None) is fits
    assert words is None or "downcast" in words


def test_triton_example_has_no_downcast():
    assert triton_syntax.downcasts(EXAMPLE, gelu(), "ieee") == ()
