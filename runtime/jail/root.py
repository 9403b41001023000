"""The file system inside: Python's own library and the shared libraries, read-only; no more."""

from __future__ import annotations

import os
import sysconfig

from runtime.jail import syscalls
from runtime.jail.syscalls import MOUNT_ATTR_NODEV, MOUNT_ATTR_NOSUID, MOUNT_ATTR_RDONLY

_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_PLACE = "/tmp"
"""Where the new root is put together: a folder that every machine has."""


class Sources:
    """What is shown inside, opened in the new mount namespace while this process may still open
    it: Python may lie in a home folder that the sandbox's users cannot enter."""

    def __init__(self) -> None:
        stdlib = os.path.realpath(sysconfig.get_path("stdlib"))
        folders = [p for p in _LIBRARIES if os.path.isdir(p) and not os.path.islink(p)]
        self.links = {p: os.readlink(p) for p in _LIBRARIES if os.path.islink(p)}
        if not any(stdlib.startswith(f"{folder}/") for folder in folders):
            folders.append(stdlib)
        named = [stdlib, os.path.normpath(sysconfig.get_path("stdlib"))]
        self.aliases = {p: stdlib for p in named if p != stdlib}
        self.hidden = [f"{stdlib}/{name}" for name in ("site-packages", "dist-packages")]
        self.hidden += ["/usr/lib/python3/dist-packages"]
        self.opened = {p: os.open(p, os.O_PATH) for p in (*folders, *_DEVICES)}


def enter(sources: Sources) -> None:
    """Build the root and make it this process' own. Needs a mount namespace of its own.

    Raises:
        OSError: the kernel refused; nothing was shown to anybody.
    """
    syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
    syscalls.mount("root", _PLACE, "tmpfs", flags, "size=1m,nr_inodes=512,mode=755,uid=0,gid=0")
    for path, descriptor in sources.opened.items():
        _show(path, descriptor)
    for path in sources.hidden:
        if os.path.isdir(_PLACE + path):
            syscalls.mount("none", _PLACE + path, "tmpfs", flags | syscalls.MS_RDONLY, "size=4k")
    for path, target in {**sources.links, **sources.aliases}.items():
        os.makedirs(os.path.dirname(_PLACE + path), exist_ok=True)
        os.symlink(target, _PLACE + path)
    for name in ("tmp", "proc"):
        os.makedirs(f"{_PLACE}/{name}", exist_ok=True)
    syscalls.mount("proc", f"{_PLACE}/proc", "proc", flags | syscalls.MS_NOEXEC)
    syscalls.change_root(_PLACE)
    syscalls.mount("none", "/", flags=flags | syscalls.MS_REMOUNT | syscalls.MS_RDONLY)


def enter_private(uid: int, file_bytes: int) -> None:
    """For one program: a /tmp of its own, the only place to write, and no /proc."""
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
    syscalls.mount("none", "/proc", "tmpfs", flags | syscalls.MS_RDONLY, "size=4k")
    owner = f"size={file_bytes},nr_inodes=1024,mode=700,uid={uid},gid={uid}"
    syscalls.mount("none", "/tmp", "tmpfs", flags | syscalls.MS_NOEXEC, owner)
    os.chdir("/tmp")


def _show(path: str, descriptor: int) -> None:
    """Bind what ``descriptor`` is open on to ``path`` of the new root, read-only."""
    target = _PLACE + path
    attributes = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID
    if path in _DEVICES:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT, 0o666))
        attributes = MOUNT_ATTR_NOSUID  # a read-only /dev/null cannot be opened for writing
    else:
        os.makedirs(target, exist_ok=True)
        attributes |= MOUNT_ATTR_NODEV
    source = f"/proc/self/fd/{descriptor}"
    syscalls.mount(source, target, flags=syscalls.MS_BIND | syscalls.MS_REC)
    os.close(descriptor)
    syscalls.restrict_mount(target, attributes)
