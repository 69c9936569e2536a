"""Linux's own means of confinement by raw system calls: prctl, rlimits, capabilities, namespaces, Landlock, seccomp.

Each function applies one thing to the calling process (Landlock and seccomp: thread) for good, and raises OSError with the
kernel's reason where the system does not have it. Nothing here decides what is applied: see `confine`.

Source: include/uapi/linux/{prctl,landlock,seccomp,filter,audit,capability}.h of Linux 6.12; the system call tables of x86-64
(arch/x86/entry/syscalls/syscall_64.tbl) and of the generic table that arm64 uses (include/uapi/asm-generic/unistd.h).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
from collections.abc import Iterable, Sequence

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS, _PR_CAPBSET_DROP, _PR_SET_SECCOMP = 1, 36, 38, 24, 22
_NEW_USER, _NEW_NET, _NEW_IPC = 0x10000000, 0x40000000, 0x08000000
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_LAST_CAPABILITY = 63

READ = (1 << 0) | (1 << 2) | (1 << 3)  # execute, read file, read directory
_WRITE_BY_ABI = {1: (1 << 1) | sum(1 << bit for bit in range(4, 13)), 2: 1 << 13, 3: 1 << 14}
"""Bits of LANDLOCK_ACCESS_FS_* for writing, making and removing, by the version that brought them: refer in 2, truncate in 3.
ioctl on devices (5) is not handled, so a GPU's driver works."""
_FILE_ONLY = (1 << 0) | (1 << 1) | (1 << 2) | (1 << 14)
_NET_BOTH, _NET_SINCE = 3, 4
_SCOPE_BOTH, _SCOPE_SINCE = 3, 6

_ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_NUMBERS = {
    "socket": (41, 198), "connect": (42, 203), "accept": (43, 202), "accept4": (288, 242), "bind": (49, 200),
    "listen": (50, 201), "socketpair": (53, 199), "execve": (59, 221), "execveat": (322, 281), "fork": (57, None),
    "vfork": (58, None), "clone": (56, 220), "clone3": (435, 435), "ptrace": (101, 117), "mount": (165, 40),
    "umount2": (166, 39), "unshare": (272, 97), "setns": (308, 268), "bpf": (321, 280), "perf_event_open": (298, 241),
    "open_by_handle_at": (304, 265), "io_uring_setup": (425, 425), "kill": (62, 129), "tkill": (200, 130),
    "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424), "pidfd_getfd": (438, 438), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "userfaultfd": (323, 282), "chroot": (161, 51), "pivot_root": (155, 41), "init_module": (175, 105),
    "finit_module": (313, 273), "kexec_load": (246, 104), "reboot": (169, 142), "swapon": (167, 224), "shmget": (29, 194),
    "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180), "prctl": (157, 167), "setsid": (112, 157),
    "setpgid": (109, 154), "move_mount": (429, 429),
    "fsopen": (430, 430),
}  # fmt: skip
"""System calls by name: their numbers on x86-64 and on arm64."""

ADMINISTRATION = (
    "ptrace", "mount", "umount2", "unshare", "setns", "bpf", "perf_event_open", "open_by_handle_at", "io_uring_setup",
    "process_vm_readv", "process_vm_writev", "pidfd_getfd", "keyctl", "add_key", "request_key", "userfaultfd", "chroot",
    "pivot_root", "init_module", "finit_module", "kexec_load", "reboot", "swapon", "move_mount", "fsopen",
)  # fmt: skip
"""What no compiler and no kernel has any use for."""
OUTSIDE = (
    "socket", "connect", "accept", "accept4", "bind", "listen", "socketpair", "execve", "execveat", "fork", "vfork",
    "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_open", "pidfd_send_signal", "shmget", "msgget", "semget", "mq_open",
    "setsid", "setpgid", "tkill",
)  # fmt: skip
"""Ways out of a process that only computes: sockets, programs, processes, signals, memory that outlives it."""
_TO_ITSELF = ("kill", "tgkill")
_INTERNET = (2, 10, 17)  # AF_INET, AF_INET6, AF_PACKET
_CLONE_THREAD = 0x10000
_ALLOW, _EPERM, _ENOSYS, _KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _prctl(option: int, value: int, pointer: object = ctypes.c_ulong(0)) -> None:
    _checked(_libc.prctl(option, ctypes.c_ulong(value), pointer, ctypes.c_ulong(0), ctypes.c_ulong(0)), f"prctl {option}")


def die_with_parent(signal_number: int) -> None:
    """This process gets the signal when the thread that forked it ends."""
    _prctl(_PR_SET_PDEATHSIG, signal_number)


def adopt_orphans() -> None:
    """Descendants whose parent has died become this process's children."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def no_new_privileges() -> None:
    """No program that is started from here gains rights by its file (setuid, file capabilities)."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """A root process becomes one whose only right is to own its files. Nothing changes for others."""
    with contextlib.suppress(OSError):  # without CAP_SETPCAP, or beyond the last capability the kernel knows
        for number in range(_LAST_CAPABILITY + 1):
            _prctl(_PR_CAPBSET_DROP, number)
    header = struct.pack("=Ii", 0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    _checked(_libc.syscall(126 if platform.machine() == "x86_64" else 91, header, struct.pack("=6I", 0, 0, 0, 0, 0, 0)), "capset")


def without_network() -> None:
    """A network namespace of its own, with nothing in it; for a user who is not root inside a user namespace of its own, in
    which the user is who he was. Needs a process of one thread."""
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        _checked(_libc.unshare(_NEW_NET | _NEW_IPC), "unshare")
        return
    _checked(_libc.unshare(_NEW_USER | _NEW_NET | _NEW_IPC), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def landlock_version() -> int:
    """The version of Landlock's interface. Raises: OSError where the kernel has none or it is off."""
    return _checked(_libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1), "landlock")


def landlock(read: Iterable[str] | None, write: Iterable[str]) -> None:
    """From now on this thread and what it starts writes only below `write`, and with `read` given reads only below either; no
    TCP where the kernel can (version 4), no signals and no abstract sockets beyond (6). Needs `no_new_privileges`."""
    version = landlock_version()
    writing = sum(bits for since, bits in _WRITE_BY_ABI.items() if version >= since)
    handled = writing | (READ if read is not None else 0)
    values = struct.pack(
        "=QQQ", handled, _NET_BOTH if version >= _NET_SINCE else 0, _SCOPE_BOTH if version >= _SCOPE_SINCE else 0
    )
    ruleset = _checked(_libc.syscall(_LANDLOCK_CREATE, values, ctypes.c_size_t(_ruleset_bytes(version)), 0), "landlock")
    try:
        for path in read or ():
            _allow(ruleset, path, READ & handled)
        for path in write:
            _allow(ruleset, path, handled)
        _checked(_libc.syscall(_LANDLOCK_RESTRICT, ruleset, 0), "landlock")
    finally:
        os.close(ruleset)


def _ruleset_bytes(version: int) -> int:
    return 24 if version >= _SCOPE_SINCE else 16 if version >= _NET_SINCE else 8


def _allow(ruleset: int, path: str, bits: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # what is not there needs no permission
        return
    try:
        granted = bits if os.path.isdir(path) else bits & _FILE_ONLY
        if granted:
            _checked(_libc.syscall(_LANDLOCK_ADD, ruleset, 1, struct.pack("=Qi", granted, place), 0), f"landlock {path}")
    finally:
        os.close(place)


def refuse_calls(names: Sequence[str], *, alone: bool) -> None:
    """System calls of these names fail with EPERM from now on, and internet sockets do. With `alone` new processes do as well
    (threads may start), signals to anybody else, and taking back `die_with_parent`. Needs `no_new_privileges`.

    Raises: OSError where the kernel or this file does not know the machine.
    """
    column, arch = _machine()
    program = _Program()
    program.load(4).unless(arch, _KILL)
    program.load(0)
    if column == 0:
        program.at_least(0x40000000, _EPERM)  # the x32 table of the same kernel
    for name in names:
        number = _NUMBERS[name][column]
        if number is not None:
            program.on(number, _EPERM)
    for family in _INTERNET:
        program.on_argument(_number("socket", column), family, _EPERM)
    if alone:
        program.on(_number("clone3", column), _ENOSYS)  # glibc then takes clone, whose flags a filter can see
        program.on_missing_bits(_number("clone", column), _CLONE_THREAD, _EPERM)
        program.on_argument(_number("prctl", column), _PR_SET_PDEATHSIG, _EPERM)
        for name in _TO_ITSELF:
            program.unless_argument(_number(name, column), os.getpid(), _EPERM)
    program.install()


def _machine() -> tuple[int, int]:
    machine = platform.machine()
    if machine not in _ARCHES or struct.calcsize("P") != 8:
        raise OSError(38, f"seccomp: no table of system calls for {machine}")
    return list(_ARCHES).index(machine), _ARCHES[machine]


def _number(name: str, column: int) -> int:
    number = _NUMBERS[name][column]
    assert number is not None
    return number


class _Program:
    """A classic BPF program over struct seccomp_data: nr at 0, arch at 4, arguments from 16 (low half first)."""

    def __init__(self) -> None:
        self._code: list[tuple[int, int, int, int]] = []

    def load(self, offset: int) -> _Program:
        """The word at `offset` into the accumulator."""
        self._code.append((0x20, 0, 0, offset))
        return self

    def on(self, value: int, action: int) -> None:
        """`action` where the accumulator is `value`."""
        self._code += [(0x15, 0, 1, value), (0x06, 0, 0, action)]

    def unless(self, value: int, action: int) -> None:
        """`action` where it is not."""
        self._code += [(0x15, 1, 0, value), (0x06, 0, 0, action)]

    def at_least(self, value: int, action: int) -> None:
        """`action` where it is `value` or more."""
        self._code += [(0x35, 0, 1, value), (0x06, 0, 0, action)]

    def on_argument(self, number: int, value: int, action: int) -> None:
        """`action` where call `number` has the first argument `value`."""
        self._of_call(number, [(0x15, 0, 1, value), (0x06, 0, 0, action)])

    def unless_argument(self, number: int, value: int, action: int) -> None:
        """`action` where call `number` has another first argument."""
        self._of_call(number, [(0x15, 1, 0, value), (0x06, 0, 0, action)])

    def on_missing_bits(self, number: int, bits: int, action: int) -> None:
        """`action` where the first argument of call `number` has none of `bits`."""
        self._of_call(number, [(0x45, 1, 0, bits), (0x06, 0, 0, action)])

    def _of_call(self, number: int, inner: list[tuple[int, int, int, int]]) -> None:
        self._code += [(0x15, 0, len(inner) + 2, number), (0x20, 0, 0, 16), *inner, (0x20, 0, 0, 0)]

    def install(self) -> None:
        """Lets everything else pass, and makes the program this thread's filter."""
        self._code.append((0x06, 0, 0, _ALLOW))
        text = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *item) for item in self._code))
        header = ctypes.create_string_buffer(struct.pack("@HP", len(self._code), ctypes.addressof(text)))
        _prctl(_PR_SET_SECCOMP, 2, ctypes.cast(header, ctypes.c_void_p))
