#!/usr/bin/env bash
# Stage 1: VoxPopuli, downloaded where it is missing, as Kaldi data directories.
# All options: `python3 local/prepare_voxpopuli.py --help`.
set -euo pipefail
cd "$(dirname "$0")/.."
exec "${PYTHON:-python3}" local/prepare_voxpopuli.py "$@"
