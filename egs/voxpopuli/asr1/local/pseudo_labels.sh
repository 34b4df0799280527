#!/usr/bin/env bash
# Training data for the self-supervised setup: segments unlabelled audio, lets Whisper transcribe
# it, and keeps what fits: data/{train,dev}_<lang>_pseudo. What is complete is not done again, and
# interrupted decoding goes on. Options that are not listed here go to whisper.sh for decoding.
set -euo pipefail
cd "$(dirname "$0")/.."

# options
stage=1             # 1 segment, 2 transcribe, 3 select
lang=               # of the corpus
expdir=exp          # experiments
dumpdir=dump        # formatted data
nj=32               # most jobs for formatting
local_data_opts=    # options for local/data.sh
decoding=beam5      # conf/decode/<decoding>.yaml
whisper_exp=        # Whisper as it is; default: <expdir>/asr_whisper
drop_fraction=0.05  # share to drop as its text length fits the audio least
valid_fraction=0.05 # share to validate on, in whole sessions
# end of options

# shellcheck source-path=SCRIPTDIR source=../../../TEMPLATE/asr1/parse_options.sh
. ../../TEMPLATE/asr1/parse_options.sh
parse_known_options local/pseudo_labels.sh "$@"
require_whole_numbers stage nj
# shellcheck source-path=SCRIPTDIR source=../../../TEMPLATE/asr1/path.sh
. ./path.sh

set_name=unlabelled_${lang}
whisper_exp=${whisper_exp:-${expdir}/asr_whisper}
incomplete=false

run() { # COMMAND ...: 3 says that some utterances failed, which were named
    local status=0
    "$@" || status=$?
    [ "${status}" -eq 0 ] || [ "${status}" -eq 3 ] || exit "${status}"
    [ "${status}" -eq 0 ] || incomplete=true
}

if [ "${stage}" -le 1 ]; then
    read -r -a more_data <<< "${local_data_opts}"
    run local/data.sh "${more_data[@]}"
fi

if [ "${stage}" -le 2 ]; then
    # Not asr.sh's stage 3, which wants a transcript for each utterance.
    python3 -m espnet_medusa.bin.format_data --data_dir "data/${set_name}" --require_text false \
        --output_dir "${dumpdir}/raw/${set_name}" --max_duration 30 --on_bad skip --nj "${nj}"
    # The later of two equal options wins: those for training and evaluation do not count here.
    run ./whisper.sh "${other_options[@]}" --lang "${lang}" --stage 5 --stop_stage 12 \
        --skip_train true --dumpdir "${dumpdir}" --expdir "${expdir}" --nj "${nj}" \
        --test_sets "${set_name}" --inference_tag "${decoding}" --inference_configs "" \
        --inference_config "conf/decode/${decoding}.yaml"
fi

if [ "${stage}" -le 3 ]; then
    python3 -m espnet_medusa.bin.select_pseudo_labels --data_dir "data/${set_name}" \
        --text "${whisper_exp}/${decoding}/${set_name}/text" --held_out "data/test_${lang}" \
        --train_dir "data/train_${lang}_pseudo" --valid_dir "data/dev_${lang}_pseudo" \
        --drop_fraction "${drop_fraction}" --valid_fraction "${valid_fraction}"
fi
[ "${incomplete}" = false ] || exit 3
