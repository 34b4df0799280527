# Sourced by recipes: the environment of all their commands.
# shellcheck shell=bash
recipe_template=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
recipe_root=$(cd "${recipe_template}/../../.." && pwd)

# Use the environment of `make setup` if the active one lacks the packages.
if ! python3 -c '
import importlib.util, sys
sys.exit(not all(map(importlib.util.find_spec, ("espnet_medusa", "espnet2"))))' 2>/dev/null &&
    [ -x "${recipe_root}/.venv/bin/python3" ]; then
    PATH=${recipe_root}/.venv/bin:${PATH}
fi

export PATH
export LC_ALL=C
export PYTHONIOENCODING=UTF-8
# Otherwise Python reads files as ASCII under LC_ALL=C.
export PYTHONUTF8=1
export PYTHONWARNINGS=${PYTHONWARNINGS:-ignore::SyntaxWarning}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} # jobs run in parallel
