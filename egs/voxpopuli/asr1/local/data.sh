#!/usr/bin/env bash
# Stage 1: make Kaldi data directories of VoxPopuli; missing parts are downloaded.
# All options: `python3 local/prepare_voxpopuli.py --help`.
set -euo pipefail
cd "$(dirname "$0")/.."
exec "${PYTHON:-python3}" local/prepare_voxpopuli.py "$@"
