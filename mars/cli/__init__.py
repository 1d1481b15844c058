"""The command line, ``mars`` or ``python -m mars``.

What a user can put right (a wrong setting, a missing checkpoint, a full disk) ends in one line and
exit status 2. The options are in ``parser``, what is done in ``commands``.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Callable, Sequence

from mars import jobs
from mars.cli import commands
from mars.cli.parser import build_parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    # torch's profiler, which counts memory, else says at each start and stop that it does
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["lm-eval"]:
        return _guarded(lambda: commands.lm_eval(words[1:]), debug=False, goes_on=False)
    args = build_parser().parse_args(words)
    jobs.end_with_workflow()
    # the trace is one run of the clock, of which no part can be kept
    return _guarded(lambda: args.run(args), args.debug, goes_on=args.run is not commands.arrivals)


def _guarded(run: Callable[[], object], debug: bool, goes_on: bool) -> int:
    try:
        run()
    except KeyboardInterrupt:
        then = "goes on from here" if goes_on else "begins anew"
        print(f"mars: interrupted; the same command {then}", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        message = _for_the_user(error)
        if debug or message is None:
            raise
        # of a plug-in that raised, what its author needs to see
        print(getattr(error, "own_traceback", ""), end="", file=sys.stderr)
        print(f"mars: {message}", file=sys.stderr)
        return 2
    return 0


def _for_the_user(error: Exception) -> str | None:
    """One line for an error that the user can put right; None for one that is a bug of ours."""
    line = " ".join(str(error).split())
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"disk full while writing {error.filename or 'results'}: free some space and run again"
        )
    if type(error).__module__.startswith("mars.") or isinstance(error, FileNotFoundError):
        return line
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{error.filename or 'a file'}: {error.strerror}: allow it, or choose another folder"
    if type(error) is ValueError and _raised_by_us(error):
        return line
    if type(error).__name__ == "OutOfMemoryError":  # torch's, without importing it
        return (
            "out of GPU memory: lower evaluation.batch_size, throughput.batch_sizes or "
            "training_cost.conversations, whichever this is about, and run again; what is finished "
            f"is kept ({line[:160]})"
        )
    if "No space left on device" in line:  # libraries wrap it, and lose the number
        return f"disk full: free some space and run again ({line})"
    return None


def _raised_by_us(error: Exception) -> bool:
    """Whether the statement that raised is in one of our modules, not in a library's."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__")).startswith("mars.")
