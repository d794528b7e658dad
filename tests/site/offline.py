"""Run a command where there is no network but the loopback: `python offline.py COMMAND...`.

On Linux, `unshare` gives a process a separate, empty network. Where that is not allowed, the usual ways out
are closed: requests and urllib obey proxies that do not exist.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys

DEAD_END = "http://127.0.0.1:9"  # the port "discard", on which nothing listens
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


def isolated() -> list[str]:
    """Return the command that starts a separate network; nothing if the system does not allow one."""
    command = ["unshare", "--map-root-user", "--net"]
    allowed = (
        shutil.which("unshare") and subprocess.run([*command, "true"], capture_output=True).returncode == 0
    )
    return [*command, sys.executable, __file__] if allowed else []


def environment() -> dict[str, str]:
    """Return an environment without ways out, for systems without separate networks."""
    proxies = {f"{kind}_proxy": DEAD_END for kind in ("http", "https", "all")}
    return {
        **os.environ,
        **proxies,
        **{name.upper(): url for name, url in proxies.items()},
        "NO_PROXY": "127.0.0.1",
    }


def raise_loopback() -> None:
    """Switch on `lo`, which is off in a new network: notebooks talk to their kernel over it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh22x", b"lo", 0)
        flags = struct.unpack("16sh22x", fcntl.ioctl(control, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags | IFF_UP))


if __name__ == "__main__":
    raise_loopback()
    os.execvp(sys.argv[1], sys.argv[1:])
