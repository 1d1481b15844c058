#!/bin/sh
# Resolve requirements.lock again from pyproject.toml (a maintainer's tool; needs `uv`).
# torch and its CUDA libraries stay out: which build to take is the user's choice (see Makefile).
set -eu
cd "$(dirname "$0")/../.."
torch=$(sed -n 's/^TORCH ?= //p' Makefile)
new=$(mktemp)
trap 'rm -f "$new"' EXIT
echo "$torch" |
    uv pip compile --quiet --universal --python-version 3.11 --extra dev --no-header --no-annotate \
        --constraint - pyproject.toml --output-file "$new"
{
    echo "# Every package but torch, pinned for Python 3.11-3.13 on Linux and macOS."
    echo "# Made by workflow/scripts/lock.sh; install with \`make env\`, which takes torch first."
    grep -vE "^(torch|triton|cuda-|nvidia-)|sys_platform == '(win32|emscripten)'" "$new" |
        sed -E "s/ ; sys_platform != 'emscripten'$//; s/ ; platform_python_implementation != 'PyPy'$//"
} >requirements.lock
echo "requirements.lock: $(grep -c == requirements.lock) packages"
