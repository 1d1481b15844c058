#!/bin/sh
# Make .venv from requirements.lock: torch first, with the libraries of the build chosen, then
# everything else exactly as pinned. `make env` calls this when .venv is missing or outdated; a
# stamp is written last, so that an interrupted installation is done again.
set -eu
stamp=.venv/.complete
torch=${TORCH:?"set TORCH, or call this through make env"}

fail() {
    echo "make env: $*" >&2
    exit 1
}

suitable() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        suitable "$PYTHON" || fail "PYTHON=$PYTHON is not a Python 3.11, 3.12 or 3.13"
        echo "$PYTHON"
        return
    fi
    for name in python3.12 python3.11 python3.13 python3 python; do
        if suitable "$name"; then
            echo "$name"
            return
        fi
    done
    fail "no Python 3.11, 3.12 or 3.13 found: install one, or name it with make env PYTHON=/path/to/python3"
}

if [ -e "$stamp" ] && [ -z "${PYTHON:-}" ] && suitable .venv/bin/python; then
    echo "make env: .venv is outdated; updating it"
else
    python=$(find_python)
    echo "make env: making .venv with $("$python" --version)"
    "$python" -m venv --clear .venv || fail "$python cannot make a virtual environment: on Debian or \
Ubuntu install the package python3-venv; elsewhere choose another Python with PYTHON=/path/to/python3"
fi
rm -f "$stamp"

python=.venv/bin/python
install() {
    "$python" -m pip install --disable-pip-version-check --no-input -qq "$@"
}
remedy="see the message above; if it is the network or a full disk, call make env again"

echo "make env: installing $torch and its libraries (1 of 3)"
install --constraint requirements.lock ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} "$torch" ||
    fail "torch could not be installed: $remedy"
echo "make env: installing the pinned packages (2 of 3)"
install --no-deps --requirement requirements.lock || fail "the packages could not be installed: $remedy"
echo "make env: installing mars (3 of 3)"
install --no-deps --no-build-isolation --editable . || fail "mars could not be installed: $remedy"

"$python" -c 'import torch, transformers, lm_eval, snakemake, pandas, matplotlib, mars' || fail "the \
installed packages do not import (above: why). Remove .venv and call make env again; if it is torch, \
choose another build of it with TORCH and TORCH_INDEX (see README.md)"
"$python" -c 'import torch; print("make env: torch", torch.__version__, "on", "GPU" if torch.cuda.is_available() else "CPU")'
touch "$stamp"
