"""What a worker takes over from the environment of its parent, and which folders compilers need. Pure functions of the
environment; `settings` reads it."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from typing import Any

KEY_NAMES = (
    "ANTHROPIC_API_KEY",
    "AZURE_API_KEY",
    "DEEPSEEK_API_KEY",
    "GEMINI_API_KEY",
    "GROQ_API_KEY",
    "MISTRAL_API_KEY",
    "OPENAI_API_KEY",
    "OPENROUTER_API_KEY",
    "XAI_API_KEY",
)
"""Environment names under which language-model providers keep their keys. A value is read only to ask that provider."""
SANDBOX_LAYERS = ("runner", "limits", "namespaces", "capabilities", "landlock", "seccomp")
"""What KFORGE_SANDBOX may leave out: the candidate's own process, and the layers of `sandbox.confine`."""

_INHERITED = (
    "CC", "CPATH", "CPLUS_INCLUDE_PATH", "CXX", "C_INCLUDE_PATH", "CONDA_PREFIX", "HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH",
    "LD_PRELOAD", "LIBRARY_PATH", "LOGNAME", "PATH", "PYTHONHASHSEED", "PYTHONHOME", "TEMP", "TMP", "TMPDIR", "TZ", "USER",
    "VIRTUAL_ENV", "XDG_CACHE_HOME",
)  # fmt: skip
_PREFIXES = (
    "ATEN_", "CUBLAS_", "CUDA_", "CUDNN_", "DNNL_", "GOMP_", "HIP_", "HSA_", "KFORGE_", "KMP_", "LC_", "MALLOC_", "MKL_",
    "NVIDIA_", "OMP_", "ONEDNN_", "OPENBLAS_", "PYTORCH_", "ROCR_", "TORCHINDUCTOR_", "TORCH_", "TRITON_",
)  # fmt: skip
TRITON_FOLDER = ".triton"
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)
_PATHS = ("PATH", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH")
_ROOTS = ("CONDA_PREFIX", "VIRTUAL_ENV", "CUDA_HOME", "CUDA_PATH")
_CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH", "TMPDIR")


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """What compilers, torch and devices go by; nothing else, and nothing whose name tells of a secret."""
    kept = {name: value for name, value in environment.items() if name in _INHERITED or name.startswith(_PREFIXES)}
    return {name: value for name, value in kept.items() if not _SECRET.search(name)}


def compiler_folders(environment: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Folders that compilers read beside the system's own, and folders that they keep their caches in."""
    home = os.path.expanduser("~")
    read = []
    for entry in os.pathsep.join(environment.get(name, "") for name in _PATHS).split(os.pathsep):
        path = os.path.realpath(entry) if entry else "/"
        whole = os.path.dirname(path) if os.path.basename(path) in ("bin", "sbin") else path  # with its lib and include
        read += [place for place in (path, whole) if place not in ("/", home)]
    read += [environment[name] for name in _ROOTS if environment.get(name)]
    write = [environment.get(name, "") for name in _CACHES] + [tempfile.gettempdir(), os.path.join(home, ".nv")]
    write.append(os.path.join(environment.get("TRITON_HOME") or home, TRITON_FOLDER))
    return tuple(dict.fromkeys(read)), tuple(dict.fromkeys(path for path in write if path))


def layers_left_out(value: Any) -> tuple[str, ...]:
    """`-landlock,-seccomp` as names; "on" is none, "off" is all."""
    words = str(value).lower().replace(",", " ").split()
    if words in (["on"], ["off"]):
        return SANDBOX_LAYERS if words == ["off"] else ()
    names = tuple(dict.fromkeys(word.removeprefix("-") for word in words))
    if not all(word.startswith("-") for word in words) or not set(names) <= set(SANDBOX_LAYERS):
        raise ValueError
    return names
