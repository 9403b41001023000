from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from runtime.sandbox import Limits, Status, TestJob, run_script, run_tests, run_tests_many
from tests.sandboxes import alive

ADD = "def add(a, b):\n    return a + b\n"
TESTS = ("assert add(1, 2) == 3",)
SHORT = Limits(wall_s=3.0, cpu_s=1)
ENDLESS = Limits(wall_s=120, cpu_s=120)
SLEEP = "import time\ntime.sleep(99)"

HOSTILE = {
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "fork bomb that sleeps": (
        "import os, time\nwhile True:\n    try:\n        if os.fork() == 0: time.sleep(999)\n"
        "    except OSError: time.sleep(999)"
    ),
    "thread bomb": (
        "import threading, time\n"
        "while True: threading.Thread(target=time.sleep, args=(999,)).start()"
    ),
    "endless loop": "while True: pass",
    "endless loop that ignores signals": (
        "import signal\nfor s in range(1, 64):\n    try: signal.signal(s, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True: pass"
    ),
    "sleeps for ever": "import time\ntime.sleep(10**8)",
    "ten gigabytes": "x = bytearray(10 * 2**30)\nprint('escaped')",
    "memory piece by piece": "x = []\nwhile True: x.append('x' * 2**20)",
    "memory of many processes": (
        "import os, time\nfor i in range(8):\n    if os.fork() == 0:\n"
        "        x = bytearray(2**28)\n        for j in range(0, 2**28, 4096): x[j] = 1\n"
        "        time.sleep(999)\ntime.sleep(999)"
    ),
    "shared memory": (
        "import ctypes\nlibc = ctypes.CDLL(None)\n"
        "if libc.shmget(0, 2**20, 0o1600) >= 0 or libc.memfd_create(b'x', 0) >= 0: print('escaped')"
    ),
    "huge output": "while True: print('x' * 2**16)",
    "a full disk": (
        "n = 0\nwhile True:\n    open(f'/tmp/{n}', 'wb').write(b'x' * 2**20)\n    n += 1\n"
        "    if n > 100: print('escaped')"
    ),
    "a huge file": "f = open('/tmp/x', 'wb')\nf.truncate(2**30)\nprint('escaped')",
    "many files": "for n in range(10**6): open(f'/tmp/{n}', 'w')\nprint('escaped')",
    "many open files": "x = [open('/dev/null') for _ in range(1000)]\nprint('escaped')",
    "writes outside": "open('/note', 'w')\nprint('escaped')",
    "writes to the library": "import os\nopen(os.__file__, 'a')\nprint('escaped')",
    "deletes all": (
        "import os, shutil\nshutil.rmtree('/', ignore_errors=True)\n"
        "if not os.path.exists('/usr/lib'): print('escaped')"
    ),
    "a socket": "import socket\nsocket.socket()\nprint('escaped')",
    "a socket to a virtual machine's host": "import socket\nsocket.socket(40, 1)\nprint('escaped')",
    "kills its parent": "import os\nos.kill(os.getppid(), 9)\nprint('escaped')",
    "kills all": "import os\nos.kill(-1, 9)\nprint('escaped')",
    "kills every number": (
        "import os\nfor p in range(1, 70000):\n    if p != os.getpid():\n"
        "        try: os.kill(p, 9)\n        except OSError: continue\n        print('escaped', p)"
    ),
    "runs a program": "import os\nos.system('true') or print('escaped')",
    "runs the loader": (
        "import os, glob\nfor p in glob.glob('/lib*/**/ld-*', recursive=True): os.execv(p, [p])\n"
        "print('escaped')"
    ),
    "becomes root": "import os\nos.setuid(0)\nprint('escaped')",
    "new namespaces": (
        "import ctypes\nlibc = ctypes.CDLL(None)\n"
        "if 0 in (libc.unshare(0x10000000), libc.unshare(0x20000)): print('escaped')\n"
        "if libc.syscall(56, 0x10000011, 0, 0, 0, 0) >= 0: print('escaped')"
    ),
    "traces its parent": (
        "import ctypes, os\n"
        "if ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) == 0: print('escaped')"
    ),
    "mounts": "import ctypes\nif ctypes.CDLL(None).umount2(b'/tmp', 2) == 0: print('escaped')",
    "more limits": (
        "import resource\nresource.setrlimit(resource.RLIMIT_NPROC, (999, 999))\nprint('escaped')"
    ),
    "crashes": "import ctypes\nctypes.string_at(0)",
    "crashes the parser": "eval('(' * 10**6)",
}


@pytest.mark.parametrize("name", list(HOSTILE))
def test_a_hostile_program_ends_as_a_wrong_answer(name):
    small = Limits(wall_s=3.0, cpu_s=1, memory_bytes=2**29)
    run = run_script(HOSTILE[name], small)
    assert "escaped" not in run.output
    assert len(run.output) <= small.output_bytes
    assert run_tests(HOSTILE[name], TESTS, "add", small).status is not Status.PASSED
    assert run_tests(ADD, TESTS).status is Status.PASSED


def test_a_daemon_ends_with_its_program(launched):
    script = (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        time.sleep(999)\n    os._exit(0)\nos.wait()\nprint('left')"
    )
    assert run_script(script).output == "left\n"
    assert alive(launched) == []


def test_time_and_memory_are_told_apart():
    assert run_script("while True: pass", Limits(wall_s=60, cpu_s=1)).status is Status.TIME_LIMIT
    assert run_script("import time\ntime.sleep(99)", SHORT).status is Status.TIME_LIMIT
    many = run_script(HOSTILE["memory of many processes"], Limits(wall_s=60, memory_bytes=2**29))
    assert many.status is Status.MEMORY_LIMIT
    one = run_tests("def f(): return bytearray(2**34)", ["assert f()"])
    assert (one.status, one.detail[:11]) == (Status.FAILED, "MemoryError")


def test_a_program_sees_nothing_of_the_host(tmp_path, monkeypatch):
    (tmp_path / "canary").write_text("sing")
    monkeypatch.setenv("CANARY", "sing")
    script = f"""
import os
print(dict(os.environ), os.listdir('/tmp'), os.listdir('/proc'), os.getcwd(), os.getuid())
for place in {
        [
            str(tmp_path / "canary"),
            "/etc/passwd",
            "/proc/1/environ",
            "/proc/self/maps",
            "/root/.cache",
            "/home",
            "/sys",
            "/dev/shm",
            "/dev/kmsg",
            "/var",
            "/run",
            str(Path.home() / ".ssh"),
            __file__,
        ]
    }:
    if os.path.exists(place): print('escaped', place)
site = [p for p in (os.path.dirname(os.__file__) + '/site-packages',) if os.path.isdir(p)]
print([os.listdir(p) for p in site])
"""
    run = run_script(script)
    assert run.exit_status == 0
    first, second = run.output.splitlines()
    assert first == "{} [] [] /tmp 2"
    assert second in ("[]", "[[]]")


def test_a_program_reaches_no_socket_of_the_host(tmp_path):
    with (
        socket.socket() as tcp,
        socket.socket(socket.AF_UNIX) as named,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        tcp.bind(("127.0.0.1", 0))
        named.bind(str(tmp_path / "raylet"))
        abstract.bind(f"\0inframind-test-{os.getpid()}")
        for listener in (tcp, named, abstract):
            listener.listen()
        script = f"""
import socket
for family, address in (
    (socket.AF_INET, {tcp.getsockname()!r}),
    (socket.AF_UNIX, {named.getsockname()!r}),
    (socket.AF_UNIX, {abstract.getsockname()!r}),
):
    try:
        socket.socket(family).connect(address)
        print('escaped')
    except OSError as error:
        print(type(error).__name__)
one, other = socket.socketpair()
"""
        assert run_script(script).output == "PermissionError\n" * 3


def test_programs_leave_nothing_for_each_other():
    leave = "def f():\n    open('/tmp/note', 'w').write('hi')\n    return 1"
    look = "import os\ndef f(): return os.listdir('/tmp')"
    jobs = [TestJob((leave,), ("assert f() == 1",)), TestJob((look,), ("assert f() == []",))]
    first, second = run_tests_many(jobs, workers=1)
    assert (first.status, second.status) == (Status.PASSED, Status.PASSED)


def test_the_search_for_what_is_left_finds_what_runs(launched):
    thread = threading.Thread(target=run_script, args=("import time\ntime.sleep(99)", SHORT))
    thread.start()
    while not (launched and len(alive(launched)) >= 3) and thread.is_alive():
        time.sleep(0.01)
    seen = alive(launched)
    thread.join()
    assert len(seen) >= 3


def test_the_end_of_the_launcher_ends_the_program(launched):
    done = []
    thread = threading.Thread(target=lambda: done.append(run_script(SLEEP, ENDLESS)))
    thread.start()
    while not (launched and len(alive(launched)) >= 3):
        time.sleep(0.01)
    os.kill(launched[0], signal.SIGKILL)
    thread.join()
    assert done[0].status is Status.FAILED
    while alive(launched):
        time.sleep(0.01)


def test_the_end_of_the_caller_ends_the_program():
    """As when an actor's process is killed."""
    script = f"""
from runtime.sandbox import Limits, process, run_script
class Shown(process.Child):
    def __init__(self, *args):
        super().__init__(*args)
        print(self.pid, flush=True)
process.Child = Shown
run_script({SLEEP!r}, Limits(wall_s=120, cpu_s=120))
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as caller:
        launcher = int(caller.stdout.readline())
        while len(alive([launcher])) < 3:
            time.sleep(0.01)
        caller.kill()
    while alive([launcher]):
        time.sleep(0.01)


def test_a_hostile_program_spoils_no_other_of_its_batch():
    programs = [ADD, HOSTILE["fork bomb"], ADD, HOSTILE["kills every number"], ADD]
    jobs = [TestJob((p,), TESTS) for p in programs]
    passed = [v.status is Status.PASSED for v in run_tests_many(jobs, SHORT, workers=1)]
    assert passed == [True, False, True, False, True]
