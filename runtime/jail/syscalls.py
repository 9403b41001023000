"""The system calls that Python has no function for, and how a process gives up its privileges."""

from __future__ import annotations

import ctypes
import os
import resource
import struct

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 0x20, 0x1000, 0x4000, 0x40000
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 1, 2, 4

_MNT_DETACH = 2
_AT_EMPTY_PATH, _AT_RECURSIVE = 0x1000, 0x8000
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP = 1, 38, 22
_SECCOMP_MODE_FILTER = 2
_SIGKILL = 9
_CAPABILITY_VERSION_3 = 0x20080522
_MOUNT_SETATTR = 442
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

_libc = ctypes.CDLL(None, use_errno=True)


def machine() -> str:
    """The processor; raises ``OSError`` if the numbers of its system calls are not known here."""
    name = os.uname().machine
    if name not in _PIVOT_ROOT:
        raise OSError(f"the sandbox knows x86_64 and aarch64, this is {name}")
    return name


def unshare(flags: int) -> None:
    """Leave the namespaces in ``flags`` for new ones. Raises ``OSError``."""
    _check(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2). Raises ``OSError``."""
    done = _libc.mount(
        source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode()
    )
    _check(done, f"mount {kind or source} on {target}")


def restrict_mount(path: str, attributes: int) -> None:
    """Add mount attributes to ``path`` and all that is mounted below it (Linux 5.12).

    Raises ``OSError``.
    """
    wanted = struct.pack("=QQQQ", attributes, 0, 0, 0)
    done = _libc.syscall(
        ctypes.c_long(_MOUNT_SETATTR),
        ctypes.c_int(-100),
        path.encode(),
        ctypes.c_uint(_AT_RECURSIVE),
        wanted,
        ctypes.c_size_t(len(wanted)),
    )
    _check(done, f"mount_setattr {path}")


def change_root(new_root: str) -> None:
    """Make ``new_root``, a mount point, the root; the old root is gone. Raises ``OSError``."""
    os.chdir(new_root)
    done = _libc.syscall(ctypes.c_long(_PIVOT_ROOT[machine()]), b".", b".")
    _check(done, "pivot_root")
    _check(_libc.umount2(b".", _MNT_DETACH), "umount")
    os.chdir("/")


def die_with_parent() -> None:
    """SIGKILL to this process when its parent ends. A change of user id takes it back."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0), "prctl")


def give_up_privileges(uid: int, limits: dict[int, tuple[int, int]], bpf: bytes) -> None:
    """Become user ``uid`` for good: no groups, no capabilities, limits, and a system call filter.

    ``limits`` are soft and hard limits by resource. Raises ``OSError`` or ``ValueError``.
    """
    for kind, wanted in limits.items():
        _, most = resource.getrlimit(kind)
        soft, hard = (w if most == resource.RLIM_INFINITY else min(w, most) for w in wanted)
        resource.setrlimit(kind, (soft, hard))
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, bytes(24)), "capset")
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    code = ctypes.create_string_buffer(bpf, len(bpf))
    program = struct.pack("@HP", len(bpf) // 8, ctypes.addressof(code))
    _check(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program, 0, 0), "seccomp")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
