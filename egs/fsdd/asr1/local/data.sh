#!/usr/bin/env bash
# Stage 1: digit strings from the Free Spoken Digit Dataset, which you bring: --fsdd_dir DIR.
# All options: `python3 local/make_digit_strings.py --help`.
set -euo pipefail
cd "$(dirname "$0")/.."
exec "${PYTHON:-python3}" local/make_digit_strings.py "$@"
