#!/usr/bin/env bash
# Digit strings made from the Free Spoken Digit Dataset, with real voices.
# ./run.sh --fsdd_dir DIR; other options go to medusa.sh and asr.sh and override those below.
set -euo pipefail

# options
fsdd_dir=       # folder of {speaker}.tar.gz or {digit}_{speaker}_{index}.wav
# end of options

# shellcheck source-path=SCRIPTDIR source=../../TEMPLATE/asr1/parse_options.sh
. ../../TEMPLATE/asr1/parse_options.sh
[[ " $* " != *" --help "* ]] || ./medusa.sh --help
parse_known_options run.sh "$@"
refuse_white_space fsdd_dir # --local_data_opts is split into words

./medusa.sh --lang en --train_set train --valid_set dev --test_sets test \
    --local_data_opts "${fsdd_dir:+--fsdd_dir ${fsdd_dir}}" \
    --token_type char --feats_normalize "" --max_wav_duration 30 \
    --ngpu 0 --train_nj 2 --nj 2 --inference_nj 2 "${other_options[@]}"
