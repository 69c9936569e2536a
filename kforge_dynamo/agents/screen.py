"""What a written kernel may say at all, judged on its text before anything is built from it.

The sandbox judges what a kernel does. This judges what it says: code that reaches for processes, files, the network or the
memory of others has no business in a kernel, and words that address the judge or a later reader of the source are an attempt
to steer them. Both are refused with the reason; the source of a refused kernel never enters a later prompt.
"""

from __future__ import annotations

import re

from kforge_dynamo.records.candidate import Candidate

MOST_LETTERS = 120_000


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


INCLUDES = _words(
    """algorithm array atomic barrier bit cassert cfloat climits cmath complex cstddef cstdint cstdlib cstring float.h functional
    immintrin.h arm_neon.h arm_sve.h x86intrin.h xmmintrin.h emmintrin.h limits limits.h math.h numeric omp.h stdbool.h stddef.h
    stdint.h stdlib.h string.h type_traits utility tuple cuda_fp16.h cuda_bf16.h cuda_runtime.h cuda_pipeline.h mma.h
    cooperative_groups.h"""
)
"""Headers that a C++ or CUDA kernel may include."""

_CALLS = _words(
    """system popen fork vfork clone execl execle execlp execv execve execvp posix_spawn dlopen dlsym dlclose mmap munmap mprotect
    mremap madvise ptrace process_vm_readv process_vm_writev syscall open openat creat fopen freopen fdopen read write pread
    pwrite socket connect bind listen send recv kill raise abort exit _exit _Exit quick_exit atexit signal sigaction setenv
    putenv getenv secure_getenv setrlimit unlink remove rename rmdir mkdir chmod chown pthread_create pthread_atfork longjmp
    setjmp clock_settime usleep nanosleep sleep omp_set_num_threads printf fprintf"""
)
_CPP = (
    (rf"(?<![\w.>])(?:{'|'.join(sorted(_CALLS))})\s*\(", "calls {0}, which no kernel needs"),
    (
        r'\b(?:asm|__asm|__asm__)\b(?!\s*(?:volatile|__volatile__)?\s*\(\s*""\s*[:)])',
        "holds inline assembler, which cannot be read here",
    ),
    (r"__attribute__\s*\(\(\s*(?:__)?(?:constructor|destructor|weak|alias|ifunc)", "runs or replaces code outside its entry"),
    (r"\b(?:std::thread|std::async|std::jthread|fstream|iostream|filesystem)\b", "uses {0}, which no kernel needs"),
    (r"/proc/|/dev/|/sys/|/etc/", "names {0}, a path of the machine"),
    (r"#\s*(?:pragma\s+GCC\s+(?:poison|system_header)|embed|include_next)", "uses {0}"),
    (r"\b(?:environ|__libc_\w+|_dl_\w+)\b", "reaches for {0}"),
)
_TALK = (
    r"\b(?:ignore|disregard|forget|override)\b[^.\n]{0,40}\b(?:previous|prior|above|earlier|all|any|your|these|system)\b"
    r"[^.\n]{0,30}\b(?:instruction|prompt|rule|guardrail|message|check|test)s?\b",
    r"\byou are (?:now )?(?:an?|the) (?:assistant|judge|evaluator|grader|reviewer|verifier|language model|ai)\b",
    r"\b(?:dear|attention|note to|message to|hey,?) (?:the )?(?:evaluator|judge|grader|reviewer|verifier|model|"
    r"assistant|llm|ai)\b",
    r"<\|?(?:im_start|im_end|system|endoftext)\|?>|\[/?INST\]|^\s*(?://|#|\*)?\s*(?:system|assistant|developer)\s*:",
    r"\b(?:mark|report|return|give|set|accept|treat)\b[^.\n]{0,30}\b(?:verdict|this kernel|the candidate|the result)\b"
    r"[^.\n]{0,20}\b(?:passed|correct|right|valid|verified|winner)\b",
)


def objection(candidate: Candidate) -> str | None:
    """Why the text of `candidate` is refused, in one sentence; None where nothing speaks against it."""
    source = candidate.source
    if len(source) > MOST_LETTERS:
        return f"refused: the source has {len(source):,} letters, at most {MOST_LETTERS:,} are read"
    if not source.strip():
        return "refused: the source is empty"
    if "\0" in source:
        return "refused: the source holds a zero byte"
    if any(re.search(pattern, source, re.IGNORECASE | re.MULTILINE) for pattern in _TALK):
        return "refused: the source addresses its reader (instructions in a comment or a text), not the machine"
    if candidate.language in ("cpp", "cuda"):
        return _of_cpp(source)
    return None


def _of_cpp(source: str) -> str | None:
    code = without_comments(source)
    for match in re.finditer(r"^[ \t]*#\s*include\s*(.*)$", code, re.MULTILINE):
        name = match[1].strip()
        if not (name[:1] == "<" and name.rstrip()[-1:] == ">" and name[1:-1].strip() in INCLUDES):
            return (
                f"refused: it includes {name[:60]}; allowed are {', '.join(sorted(INCLUDES)[:12])}, ... of the standard library"
            )
    for pattern, words in _CPP:
        found = re.search(pattern, code)
        if found is not None:
            return f"refused: it {words.format(found[0].rstrip('( ').strip())}"
    return None


def without_comments(source: str) -> str:
    """C++ text with line ends joined and comments replaced by a blank; texts in quotes stay."""
    joined = re.sub(r"\\\r?\n", "", source)
    pattern = r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?(?:\*/|\Z)'
    return re.sub(pattern, lambda match: match[0] if match[0][0] in "\"'" else " ", joined, flags=re.DOTALL)
