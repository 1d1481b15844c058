"""How the sandbox's server is started: which ways out there are, and what stays visible to it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

INSIDE = Path(__file__).with_name("inside")
SYSTEM_LIBRARIES = ("/usr/lib", "/usr/lib32", "/usr/lib64", "/lib", "/lib32", "/lib64")
STORES = ("/nix/store", "/gnu/store")
LINKER_CACHE = "/etc/ld.so.cache"
NOBODY = "65534"
BOOT = (
    "import sys; sys.path.insert(0, sys.argv[2]); from inside.serve import main; "
    "sys.path.pop(0); main()"
)
ENVIRONMENT = ("LD_LIBRARY_PATH",)
"""All that the server itself is given, as some installations of Python need it to start."""
REMEDY = (
    "install bubblewrap (the command bwrap) or let users make namespaces (on Ubuntu: sysctl "
    "kernel.apparmor_restrict_unprivileged_userns=0), or set evaluation.model_written_code: "
    "unprotected to run it all the same"
)


def modes() -> tuple[str, ...]:
    """The ways to isolate the server, the strongest first.

    The real root becomes another user by itself, which bubblewrap would not have it do.
    """
    if not sys.platform.startswith("linux"):
        return ()
    ways = ("namespaces", "bubblewrap") if os.getuid() == 0 else ("bubblewrap", "namespaces")
    return (*(way for way in ways if way != "bubblewrap" or shutil.which("bwrap")), "landlock")


def shown_paths() -> list[str]:
    """What a program may read: the Python installation and the system's libraries.

    Symbolic links are named too; whoever shows the paths makes the links anew.
    """
    library = os.path.dirname(os.path.realpath(os.path.dirname(os.__file__)))
    wanted = [*SYSTEM_LIBRARIES, *STORES, LINKER_CACHE, library, os.path.realpath(sys.executable)]
    wanted += [path for path in _loaded_libpython() if path]
    shown: list[str] = []
    for path in wanted:
        inside = any(Path(path).is_relative_to(above) for above in shown)
        if os.path.exists(path) and not inside:
            shown.append(path)
    return shown


def hidden_paths(shown: list[str]) -> list[str]:
    """The folders of installed packages below what is shown: a benchmark's answers may be there.

    What a link leads to is found by itself, or not shown.
    """
    roots = [Path(path) for path in shown if not os.path.islink(path)]
    return sorted(
        str(path)
        for root in roots
        for name in ("py*/site-packages", "py*/dist-packages")
        for path in root.glob(name)
        if path.resolve() == root.resolve() / path.relative_to(root)
    )


def _loaded_libpython() -> list[str]:
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return sorted({line.split(maxsplit=5)[5] for line in lines if "/libpython" in line})


def command(mode: str, folder: str, proc: int) -> list[str]:
    """The command line of a server.

    Args:
        mode: "bubblewrap", "namespaces", "landlock" or "limits".
        folder: an empty folder, for the server to build on.
        proc: descriptor of /proc that the server inherits, or -1.
    """
    shown = shown_paths()
    hidden = hidden_paths(shown)
    settings = {"mode": mode, "folder": folder, "proc": proc, "shown": shown, "hidden": hidden}
    settings["parent"] = os.getpid()
    code = "/" if mode == "bubblewrap" else str(INSIDE.parent)
    python = [os.path.realpath(sys.executable), "-I", "-S", "-c", BOOT, json.dumps(settings), code]
    return python if mode != "bubblewrap" else [*_bubblewrap(shown, hidden, folder), *python]


def _bubblewrap(shown: list[str], hidden: list[str], empty: str) -> list[str]:
    options = ["--unshare-all", "--unshare-user", "--die-with-parent", "--new-session"]
    options += ["--uid", NOBODY, "--gid", NOBODY, "--cap-drop", "ALL", "--hostname", "sandbox"]
    for path in shown:
        if os.path.islink(path):
            options += ["--symlink", os.readlink(path), path]
        else:
            options += ["--ro-bind", path, path]
    for path in hidden:
        options += ["--ro-bind", empty, path]
    for device in ("/dev/null", "/dev/urandom"):
        options += ["--dev-bind", device, device]
    options += ["--ro-bind", str(INSIDE), "/inside", "--size", str(16 << 20), "--tmpfs", "/tmp"]
    bwrap = shutil.which("bwrap") or "bwrap"  # by its path, as the server is given no PATH
    return [bwrap, *options, "--remount-ro", "/", "--chdir", "/", "--"]
