"""The system calls that neither the program nor the tests may make, as a filter for the kernel.

Namespaces, the user id and the limits hold without it. It closes what they leave open: sockets of
families that have no namespaces (vsock), memory that no limit counts (shared memory, memfd), new
user namespaces, and much of the kernel that a Python program has no use for.
"""

from __future__ import annotations

import errno
import struct

# Name: (number on x86_64, number on aarch64).
_DENIED: dict[str, tuple[int, int]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_settime": (227, 112),
    "connect": (42, 203),
    "delete_module": (176, 106),
    "execve": (59, 221),
    "execveat": (322, 281),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "init_module": (175, 105),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "mbind": (237, 235),
    "memfd_create": (319, 279),
    "migrate_pages": (256, 238),
    "mount": (165, 40),
    "move_pages": (279, 239),
    "mq_open": (240, 180),
    "msgget": (68, 186),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "semget": (64, 190),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "shmget": (29, 194),
    "socket": (41, 198),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}
_DENIED_X86 = {"ioperm": 173, "iopl": 172, "modify_ldt": 154}
_CLONE = (56, 220)
_NEW_NAMESPACES = 0x7E020000
_NEWEST_PLUS_ONE = 425
"""From here on (io_uring, the new mount calls, clone3, x32's twins) a call does not exist, and the
C library falls back to the older one."""

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_LOAD, _JUMP_EQ, _JUMP_GE, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NR, _ARCH, _FIRST_ARGUMENT = 0, 4, 16
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000


def filter_program(machine: str) -> bytes:
    """The filter as classic BPF, 8 bytes an instruction, for ``x86_64`` or ``aarch64``."""
    column, architecture = _ARCHITECTURES[machine]
    denied = [numbers[column] for numbers in _DENIED.values()]
    if machine == "x86_64":
        denied += _DENIED_X86.values()
    code = [
        _op(_LOAD, _ARCH),
        _op(_JUMP_EQ, architecture, 1, 0),
        _op(_RETURN, _KILL),
        _op(_LOAD, _NR),
        _op(_JUMP_GE, _NEWEST_PLUS_ONE, 0, 1),
        _op(_RETURN, _ERRNO | errno.ENOSYS),
        _op(_JUMP_EQ, _CLONE[column], 0, 3),
        _op(_LOAD, _FIRST_ARGUMENT),
        _op(_JUMP_SET, _NEW_NAMESPACES, len(denied) + 2, 0),
        _op(_RETURN, _ALLOW),
    ]
    code += [_op(_JUMP_EQ, nr, len(denied) - i, 0) for i, nr in enumerate(denied)]
    return b"".join([*code, _op(_RETURN, _ALLOW), _op(_RETURN, _ERRNO | errno.EPERM)])


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
