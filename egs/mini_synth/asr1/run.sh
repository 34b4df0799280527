#!/usr/bin/env bash
# A corpus that espeak-ng speaks, a small Whisper-shaped model, and Medusa heads on it. In minutes:
# ../demo/run.sh.
# Options go to medusa.sh and asr.sh, such as --stage 12, and win over those here.
# Own data: ./run.sh --data_dir DIR --train_set A --valid_set B --test_sets "C D"
set -euo pipefail

[ $# -gt 0 ] || echo "run.sh: about 40 minutes on two cores (../demo is the same, small: 9)"
./medusa.sh --lang en --train_set train --valid_set dev --test_sets test \
    --token_type bpe --nbpe 256 --feats_normalize "" --max_wav_duration 30 \
    --report ../../../conf/report/mini_synth.yaml \
    --ngpu 0 --train_nj 2 --nj 2 --inference_nj 2 "$@"
