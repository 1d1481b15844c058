"""What runs inside the sandbox; standard library only, as nothing else is to be found there.

`serve.py` isolates itself and answers requests, `isolation.py` holds what the kernel offers for
that, `seccomp.py` the system calls that are refused. For each program there are two processes:
`judge.py` runs the tests and never the program, `candidate.py` runs the program and never sees the
tests; between them goes plain data only (`plain.py`).
"""
