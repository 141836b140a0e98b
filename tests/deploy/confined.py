"""Runs a program of another root file system as a pod's container would: read-only, another user, no capability.

unshare --mount python3 confined.py ROOT USER GROUPS [--bind FROM=TO]... -- PROGRAM [ARGUMENT...]
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
LAST_CAPABILITY = Path("/proc/sys/kernel/cap_last_cap")


def main(root: str, user: str, groups: str, *rest: str) -> None:
    end = rest.index("--")
    binds, command = rest[:end], rest[end + 1 :]
    mount("--bind", root, root)
    mount("-o", "remount,bind,ro", root)
    mount("-t", "tmpfs", "none", f"{root}/tmp")
    mount("-t", "proc", "none", f"{root}/proc")
    for bind in binds:
        source, _, target = bind.removeprefix("--bind=").partition("=")
        mount("--bind", source, root + target)
    last = int(LAST_CAPABILITY.read_text())
    os.chroot(root)
    os.chdir("/")
    libc = ctypes.CDLL(None, use_errno=True)
    # Without these even root has nothing left after the next exec.
    for capability in range(last + 1):
        if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0):
            raise OSError(ctypes.get_errno(), f"capability {capability} cannot be dropped")
    os.setgroups([int(group) for group in groups.split(",") if group])
    os.setgid(int(user))
    os.setuid(int(user))
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs")
    environment = {
        "PATH": "/opt/tracecore/bin:/usr/bin",
        "LANG": "C.UTF-8",
        "XDG_CACHE_HOME": "/tmp",
        "K8S_NODE_NAME": "node-7",
    }
    os.execve(command[0], list(command), environment)


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
