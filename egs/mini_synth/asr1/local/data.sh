#!/usr/bin/env bash
# Stage 1: speak the corpus. Options: see `python3 local/make_corpus.py --help`.
set -euo pipefail
cd "$(dirname "$0")/.."
exec "${PYTHON:-python3}" local/make_corpus.py "$@"
