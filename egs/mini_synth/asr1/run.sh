#!/usr/bin/env bash
# A corpus synthesized by espeak-ng, a small model of Whisper's architecture, and Medusa heads on it.
# ../demo/run.sh is a smaller version, for minutes.
# Options, such as --stage 12, go to medusa.sh and asr.sh and override those below.
# Own data: ./run.sh --data_dir DIR --train_set A --valid_set B --test_sets "C D"
set -euo pipefail

[ $# -gt 0 ] || echo "run.sh: about 40 minutes on two cores (../demo is smaller: 9)"
./medusa.sh --lang en --train_set train --valid_set dev --test_sets test \
    --token_type bpe --nbpe 256 --feats_normalize "" --max_wav_duration 30 \
    --report ../../../conf/report/mini_synth.yaml \
    --ngpu 0 --train_nj 2 --nj 2 --inference_nj 2 "$@"
