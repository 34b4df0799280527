#!/usr/bin/env bash
# Stage 1: make digit strings from your copy of the Free Spoken Digit Dataset, --fsdd_dir DIR.
# All options: `python3 local/make_digit_strings.py --help`.
set -euo pipefail
cd "$(dirname "$0")/.."
exec "${PYTHON:-python3}" local/make_digit_strings.py "$@"
