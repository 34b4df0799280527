# Sourced by recipes: the environment of all their commands.
# shellcheck shell=bash
recipe_template=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
recipe_root=$(cd "${recipe_template}/../../.." && pwd)

# The environment that `make setup` made serves where the active one lacks the packages.
if ! python3 -c '
import importlib.util, sys
sys.exit(not all(map(importlib.util.find_spec, ("espnet_medusa", "espnet2"))))' 2>/dev/null &&
    [ -x "${recipe_root}/.venv/bin/python3" ]; then
    PATH=${recipe_root}/.venv/bin:${PATH}
fi

export PATH
export LC_ALL=C
export PYTHONIOENCODING=UTF-8
# Under LC_ALL=C Python would otherwise guess the encoding of files.
export PYTHONUTF8=1
# Jobs run side by side; more threads in each would fight for the cores.
export PYTHONWARNINGS=${PYTHONWARNINGS:-ignore::SyntaxWarning}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
