#!/usr/bin/env bash
# A smaller version of ../asr1: a third of its speech, half its voices, half its model.
# Options, such as --heads "linear block recurrent" or --decodings "exact typical", go to medusa.sh
# and asr.sh and override those below. Only one job decodes, because its speed is measured.
set -euo pipefail

[ $# -gt 0 ] || echo "run.sh: about 9 minutes on two cores: speech 1, base model 5, heads 3"
./medusa.sh --lang en --train_set train --valid_set dev --test_sets test \
    --local_data_opts "--minutes 100 --voices 9 --min_snr_db 25" \
    --token_type bpe --nbpe 256 --feats_normalize "" --max_wav_duration 30 \
    --heads "linear recurrent" --decodings exact \
    --report ../../../conf/report/mini_synth.yaml \
    --ngpu 0 --train_nj 2 --nj 2 --inference_nj 1 "$@"
