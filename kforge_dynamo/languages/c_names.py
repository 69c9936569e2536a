"""Word lists of the C++ and CUDA guardrails: what may be included, which reserved names may be said, which functions may not."""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


KEYWORDS = _words(
    """alignas alignof auto bool break case char class const constexpr continue default do double else enum explicit extern
    false float for friend if inline int long namespace noexcept nullptr operator private public return short signed sizeof
    static static_assert static_cast reinterpret_cast const_cast struct switch template this true typedef typename union
    unsigned using virtual void while asm volatile mutable goto register"""
)

INCLUDES = _words(
    """math.h cmath stdint.h cstdint string.h cstring stddef.h cstddef stdbool.h float.h cfloat limits.h climits limits
    algorithm utility type_traits array numeric tuple bit initializer_list immintrin.h arm_neon.h arm_sve.h omp.h"""
)
CUDA_INCLUDES = INCLUDES - _words("immintrin.h arm_neon.h arm_sve.h omp.h") | _words(
    """cuda_fp16.h cuda_bf16.h cuda_fp8.h mma.h cooperative_groups.h cuda_pipeline.h cuda/barrier cuda/pipeline cuda/ptx
    cuda/std/cstdint cuda/std/limits cuda/std/array cuda/std/utility cuda/std/type_traits"""
)

DIRECTIVES = _words("include define if ifdef ifndef elif else endif pragma")
PRAGMAS = (("GCC", "unroll"), ("GCC", "ivdep"), ("clang", "loop"), ("unroll",), ("nounroll",), ("once",), ("omp",))
OMP_CLAUSES_REFUSED = _words("threadprivate target declare requires task taskloop detach")

ATTRIBUTES = _words(
    """always_inline noinline flatten vector_size ext_vector_type may_alias aligned packed visibility hot cold unused used pure
    const nothrow optimize assume_aligned noreturn target maybe_unused likely unlikely nodiscard gnu default"""
)
CUDA_ATTRIBUTES = ATTRIBUTES

EXTERNS = _words(
    """kforge_entry kforge_pack kforge_call kforge_sgemm kforge_bgemm omp_get_thread_num omp_get_num_threads omp_get_max_threads
    GOMP_parallel GOMP_barrier"""
)
"""Names that may stand in a declaration with C linkage."""

RESERVED = _words(
    """__attribute__ __restrict__ __restrict __inline__ __inline __alignof__ __alignof __typeof__ __typeof __extension__
    __int128 __bf16 __fp16 _Float16 _Bool _OPENMP __SSE2__ __cplusplus __x86_64__ __aarch64__ __clang__ __GNUC__
    __SIZEOF_INT128__ __FAST_MATH__ __FMA__ __F16C__ __ARM_NEON __ARM_FEATURE_BF16 __FLT_MAX__ __FLT_MIN__ __FLT_EPSILON__
    __INT_MAX__ __has_builtin __m64 __m128 __m128i __m128d __m128h __m128bh __m256 __m256i __m256d __m256h __m256bh __m512
    __m512i __m512d __m512h __m512bh __v4sf __v8sf __v16sf __v4si __v8si __v16si __mmask8 __mmask16 __mmask32 __mmask64
    __bfloat16_t __float16_t __atomic_fetch_add __atomic_add_fetch __atomic_load_n __atomic_store_n __atomic_exchange_n
    __atomic_compare_exchange_n __sync_synchronize __ATOMIC_RELAXED __ATOMIC_ACQUIRE __ATOMIC_RELEASE __ATOMIC_ACQ_REL
    __ATOMIC_SEQ_CST _LIBCPP_VERSION"""
)
"""Names that the language keeps for itself and a kernel may say; the patterns beside them are in `c_guardrails`."""
CUDA_RESERVED = RESERVED | _words(
    """__global__ __device__ __forceinline__ __shared__ __constant__ __launch_bounds__ __align__ __grid_constant__
    __cluster_dims__ __syncthreads __syncwarp __threadfence __threadfence_block __shfl_sync __shfl_up_sync __shfl_down_sync
    __shfl_xor_sync __ballot_sync __any_sync __all_sync __activemask __reduce_add_sync __reduce_max_sync __reduce_min_sync
    __half __half2 __nv_bfloat16 __nv_bfloat162 __nv_fp8_e4m3 __nv_fp8_e5m2 __CUDA_ARCH__ __fmaf_rn __fadd_rn __fmul_rn
    __fdividef __expf __exp10f __logf __log2f __powf __sinf __cosf __frcp_rn __fsqrt_rn __frsqrt_rn __float2half
    __float2half_rn __half2float __float2bfloat16 __float2bfloat16_rn __bfloat162float __float22half2_rn __half22float2
    __float22bfloat162_rn __bfloat1622float2 __hadd __hadd2 __hmul __hmul2 __hfma __hfma2 __hmax __hmin __float_as_int
    __int_as_float __float_as_uint __uint_as_float __double2float_rn __ldg __ldcs __ldca __ldcg __stcs __stcg __stwt __popc
    __clz __ffs __brev __umulhi __mulhi __cvta_generic_to_shared __pipeline_memcpy_async __pipeline_commit
    __pipeline_wait_prior __builtin_assume"""
)

BUILTINS = _words(
    """convertvector shufflevector shuffle expect assume_aligned prefetch unreachable bit_cast memcpy memset memmove memcmp fma
    fmaf fmin fminf fmax fmaxf fabs fabsf sqrt sqrtf floor floorf ceil ceilf trunc truncf rint rintf nearbyint nearbyintf
    round roundf copysign copysignf isnan isinf isfinite signbit inf inff huge_val huge_valf nan nanf exp expf exp2 exp2f
    log logf tanh tanhf clz clzl clzll ctz ctzl ctzll popcount popcountl popcountll bswap16 bswap32 bswap64 constant_p
    types_compatible_p choose_expr elementwise_abs elementwise_max elementwise_min elementwise_fma elementwise_exp
    reduce_add reduce_max reduce_min assume"""
)
"""Behind `__builtin_`."""

STATE_INTRINSICS = _words(
    """_mm_setcsr _mm_getcsr _mm_malloc _mm_free _mm_clflush _mm_clflushopt _mm_monitor _mm_mwait _MM_SET_ROUNDING_MODE
    _MM_SET_FLUSH_ZERO_MODE _MM_SET_DENORMALS_ZERO_MODE _MM_SET_EXCEPTION_MASK _MM_SET_EXCEPTION_STATE"""
)
"""Intrinsics that change the processor's state beyond the call, or take memory that no plan declares."""

REFUSED: dict[str, frozenset[str]] = {
    "process": _words(
        """syscall system fork vfork clone clone3 execl execle execlp execv execve execvp execvpe fexecve posix_spawn
        posix_spawnp popen wait waitpid kill tgkill raise ptrace prctl arch_prctl exit _exit _Exit quick_exit abort atexit
        at_quick_exit on_exit signal sigaction sigprocmask setjmp longjmp sigsetjmp siglongjmp getpid getppid nice
        sched_setaffinity sched_yield setenv putenv getenv secure_getenv environ unsetenv usleep nanosleep sleep"""
    ),
    "file": _words(
        """open openat creat fopen fdopen freopen read pread write pwrite close unlink rename remove mkdir mkfifo pipe dup dup2
        fcntl ioctl lseek ftruncate fread fwrite fgets fputs fputc fgetc ifstream ofstream fstream filebuf FILE stdin stdout
        stderr tmpfile mkstemp opendir readdir stat fstat access chmod chdir shm_open memfd_create"""
    ),
    "output": _words("printf fprintf sprintf vprintf puts putchar perror cout cerr clog iostream"),
    "network": _words(
        """socket socketpair connect bind listen accept send sendto sendmsg recv recvfrom recvmsg getaddrinfo gethostbyname
        inet_addr select poll epoll_create epoll_wait"""
    ),
    "thread": _words(
        """pthread_create pthread_join pthread_detach pthread_once pthread_key_create pthread_setspecific pthread_atfork
        thrd_create tss_create thread jthread async future promise omp_set_num_threads omp_set_dynamic omp_set_nested
        omp_set_max_active_levels omp_set_schedule omp_set_default_device call_once"""
    ),
    "clock": _words(
        """clock_gettime clock_settime gettimeofday settimeofday time clock times chrono omp_get_wtime omp_get_wtick _rdtsc
        __rdtsc __rdtscp _rdtscp __rdpmc _rdrand32_step _rdseed32_step timespec_get clock64 globaltimer"""
    ),
    "loader": _words("dlopen dlmopen dlsym dlvsym dladdr dladdr1 dl_iterate_phdr dlinfo dlclose link_map getauxval"),
    "memory": _words(
        """malloc calloc realloc free aligned_alloc posix_memalign memalign valloc mmap mmap64 munmap mprotect mremap madvise
        brk sbrk new delete vector string map unordered_map shared_ptr unique_ptr cudaMalloc cudaFree"""
    ),
    "control": _words("throw try catch typeid dynamic_cast co_await co_yield co_return"),
    "storage": _words("thread_local __thread __managed__"),
}
"""By guardrail: names that stand for what a kernel may not do."""

LOCAL = _words(
    """read write open close wait time clock times signal select poll send accept bind listen connect remove rename access stat
    kill raise nice pipe string map thread future promise free exit abort puts sleep async vector"""
)
"""Those of them that a kernel may use for a function or a variable of its own: refused where they are called, or behind std."""

DOWNCASTS: dict[str, frozenset[str]] = {
    "float16": _words("_Float16 __fp16 __half __half2 __float2half __float2half_rn __float22half2_rn"),
    "bfloat16": _words(
        "__bf16 __nv_bfloat16 __nv_bfloat162 __float2bfloat16 __float2bfloat16_rn __float22bfloat162_rn __bfloat16_t"
    ),
    "float8": _words("__nv_fp8_e4m3 __nv_fp8_e5m2"),
}
"""Names that round to a narrow format. Intrinsics are found by pattern: see `c_guardrails`."""
