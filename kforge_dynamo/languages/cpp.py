"""C++ for CPUs: built by g++ or clang++ into a shared library, called through ctypes with no torch header in sight.

The library shares torch's OpenMP runtime (a second one in a process oversubscribes the cores and can dead-lock) and, where
the candidate's plan says so, the GEMM that ships inside torch: the loader looks its address up and stores it in the
library's `kforge_sgemm` and `kforge_bgemm`.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from kforge_dynamo.errors import BuildError, ToolchainError
from kforge_dynamo.languages import c_guardrails, cpp_facts, object_file
from kforge_dynamo.languages.base import Launcher, RawDims
from kforge_dynamo.languages.cpp_call import check_entry, prepare
from kforge_dynamo.languages.text_rules import check_text
from kforge_dynamo.records.candidate import Candidate
from kforge_dynamo.records.guardrail import ALL, Guards, Violation
from kforge_dynamo.records.profile import Capture, Profile
from kforge_dynamo.records.target import Target
from kforge_dynamo.records.task import Task
from kforge_dynamo.settings import named_compiler

COMPILERS = ("g++", "clang++", "c++")
"""What is looked for in PATH, in order; g++ first because its OpenMP runtime is the one that ships in torch."""
TIMEOUT_S = 120
_COMMON = ("-std=c++17", "-O3", "-shared", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math",
           "-ffp-contract=fast", "-w")  # fmt: skip
_LINK = ("-Wl,-z,relro,-z,now",) if sys.platform == "linux" else ()
"""All addresses are written when the library is loaded, and protected then: afterwards only variables can be written."""
_ISA = {"avx2": ("-mavx2", "-mfma", "-mf16c"), "sse2": ("-msse2",)}


@functools.cache
def library_symbols() -> dict[str, int]:
    """Addresses of the GEMMs inside torch, by their names; those that this build of torch lacks are left out."""
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    if not path.exists():
        return {}
    library = ctypes.CDLL(str(path))
    found = {}
    for name in ("sgemm_", "cblas_gemm_bf16bf16f32"):
        if hasattr(library, name):
            address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
            if address:
                found[name] = address
    return found


class CppLanguage:
    """The `Language` of C++; `compiler` is a path or a name in PATH, None for the one of the environment or the usual ones."""

    name = "cpp"
    device_code = True

    def __init__(self, compiler: str | None = None, guards: Guards = ALL) -> None:
        self._wanted, self._guards = compiler, guards

    @functools.cached_property
    def compiler(self) -> str | None:
        """Absolute path of the compiler, None when there is none.

        KFORGE_CXX decides alone. CXX, which other programs read as well, counts where it is one program that says it is GCC's
        or clang's: the flags here are theirs.
        """
        if self._wanted:
            return shutil.which(self._wanted)
        named = named_compiler()
        if named is not None:
            found = shutil.which(named[1])
            if named[0] == "KFORGE_CXX" or (found is not None and _is_known(found)):
                return found
        return next((found for name in COMPILERS if (found := shutil.which(name))), None)

    @functools.cached_property
    def _version(self) -> str:
        done = subprocess.run([self._found(), "--version"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        return done.stdout.splitlines()[0] if done.stdout else "unknown version"

    def missing(self, target: Target) -> str | None:
        """What keeps C++ from `target` here; None when nothing does."""
        if target.kind != "cpu":
            return f"C++ kernels are for CPUs, the target is {target.kind}"
        return self._absence if self.compiler is None else None

    @property
    def _absence(self) -> str:
        named = named_compiler()
        tried = self._wanted or (named[1] if named is not None and named[0] == "KFORGE_CXX" else ", ".join(COMPILERS))
        return f"no C++ compiler: looked for {tried} in PATH; install g++ (apt-get install g++) or name one in KFORGE_CXX"

    def toolchain(self) -> str:
        """Name and version of the compiler. Raises: ToolchainError when there is none."""
        return self._version

    def build(self, candidate: Candidate, task: Task, target: Target, folder: Path) -> Path:
        """Compiles the candidate's source into `folder`; a library that is there already is kept.

        Raises: GuardrailError where text or object say what a kernel may not, BuildError with the compiler's words,
        ToolchainError when there is no compiler.
        """
        check_text(candidate.source, c_guardrails.GUARDRAILS, self._violations(candidate, task))
        check_entry(candidate.plan)
        flags = self._flags(target)
        identity = "\0".join([candidate.source, str(candidate.plan.library), self._version, *flags])
        artifact = folder / f"kernel-{hashlib.sha256(identity.encode()).hexdigest()[:32]}.so"
        if not artifact.exists():
            folder.mkdir(parents=True, exist_ok=True)
            self._compile(candidate, flags, artifact)
        return artifact

    def _violations(self, candidate: Candidate, task: Task) -> Callable[[], Sequence[Violation]]:
        guards = self._guards

        def found() -> Sequence[Violation]:
            scheme = candidate.scheme if guards.precision else "fp16"
            known = c_guardrails.violations(candidate.source, c_guardrails.CPP, task if guards.precision else None, scheme)
            return [item for item in known if guards.source or item.guardrail == "downcast"]

        return found

    def load(self, artifact: Path, candidate: Candidate, task: Task, raw_dims: RawDims) -> Launcher:
        """The launcher of a built candidate.

        Raises: BuildError when the library does not load, lacks its entry or brings an OpenMP runtime of its own.
        """
        before = _openmp_runtimes()
        try:
            library = ctypes.CDLL(str(artifact))
            launcher = prepare(library, candidate.plan, task, raw_dims)
        except (OSError, AttributeError) as error:
            raise BuildError(f"{artifact.name} does not load: {error}") from error
        if len(_openmp_runtimes()) > max(1, len(before)):
            raise BuildError(f"{artifact.name} loads a second OpenMP runtime beside torch's; build it with g++ -fopenmp")
        if candidate.plan.library:
            _bind_library(library)
        return launcher

    def facts(self, artifact: Path, launcher: Launcher) -> Profile:
        """See `languages.base.Describing`: the hottest loops of the machine code."""
        del launcher
        return cpp_facts.facts(artifact)

    def remarks(self, candidate: Candidate, target: Target, launcher: Launcher, folder: Path) -> Capture:
        """See `languages.base.Describing`: the loops left scalar, with the compiler's reasons."""
        del launcher
        clang = "clang" in self._version
        return cpp_facts.remarks(self._found(), self._flags(target), candidate.source, folder, clang=clang)

    def _found(self) -> str:
        if self.compiler is None:
            raise ToolchainError(self._absence)
        return self.compiler

    def _flags(self, target: Target) -> tuple[str, ...]:
        native = "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"
        flags = (*_COMMON, *_ISA.get(target.arch, (native,)))
        runtime = Path(torch.__file__).parent / "lib" / "libgomp.so.1"
        # clang's -fopenmp would link LLVM's runtime: its kernels call torch's by name instead
        return (*flags, str(runtime)) if "clang" in self._version and runtime.exists() else (*flags, "-fopenmp")

    def _compile(self, candidate: Candidate, flags: Sequence[str], artifact: Path) -> None:
        """Compiles, looks at the object, links."""
        with tempfile.TemporaryDirectory(dir=artifact.parent) as name:
            text, object_, built = Path(name) / "kernel.cpp", Path(name) / "kernel.o", Path(name) / "kernel.so"
            text.write_text(candidate.source)
            self._run([*flags, "-c", str(text), "-o", str(object_)])
            if self._guards.object:
                broken = object_file.violations(object_, candidate.source, candidate.plan.library)
                check_text(candidate.source, object_file.GUARDRAILS, lambda: broken)
            self._run([*flags, *_LINK, str(object_), "-o", str(built)])
            os.replace(built, artifact)

    def _run(self, arguments: Sequence[str]) -> None:
        try:
            done = subprocess.run([self._found(), *arguments], capture_output=True, timeout=TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise BuildError(f"the compiler took longer than {TIMEOUT_S} s") from error
        if done.returncode != 0:
            words = done.stderr.decode(errors="replace").strip()[:4000]
            raise BuildError(words or f"the compiler ended with status {done.returncode}")


def _is_known(compiler: str) -> bool:
    """Whether a program calls itself GCC or clang."""
    try:
        done = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "clang" in done.stdout or "Free Software Foundation" in done.stdout


def _bind_library(library: ctypes.CDLL) -> None:
    """Stores the addresses of torch's GEMMs in the kernel's pointers, where it has them."""
    for symbol, pointer in (("sgemm_", "kforge_sgemm"), ("cblas_gemm_bf16bf16f32", "kforge_bgemm")):
        address = library_symbols().get(symbol)
        if address is None:
            continue
        try:
            ctypes.c_void_p.in_dll(library, pointer).value = address
        except ValueError:
            continue


def _openmp_runtimes() -> frozenset[str]:
    """Paths of the OpenMP runtimes mapped into this process (Linux; elsewhere nothing is known and nothing is said)."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return frozenset()
    paths = {line.split(maxsplit=5)[5] for line in lines if line.count(" ") >= 5 and "/" in line}
    return frozenset(path for path in paths if os.path.basename(path).startswith(("libgomp", "libomp", "libiomp")))


LANGUAGE = CppLanguage()
"""The C++ of this machine."""

__all__ = ["LANGUAGE", "CppLanguage", "library_symbols"]
