#!/usr/bin/env bash
# Training data for the self-supervised setup: segments unlabelled audio, lets Whisper transcribe
# it, and keeps what fits: data/{train,dev}_<lang>_pseudo. Interrupted transcription goes on.
# usage: Options that are not listed here go to whisper.sh, for transcription.
set -euo pipefail
cd "$(dirname "$0")/.."

# options
stage=1             # 1 segment, 2 format, 3 transcribe, 4 select
lang=               # of the corpus
expdir=exp          # experiments
dumpdir=dump        # formatted data
nj=32               # most jobs for formatting
local_data_opts=    # options for local/data.sh
decoding=beam5_plain    # conf/decode/<decoding>.yaml
drop_fraction=0.05  # share to drop as its text length fits the audio least
valid_fraction=0.05 # share to validate on, in whole sessions
margin_s=2          # what lies nearer to the test set, in seconds of its session, goes with it
# end of options

# shellcheck source-path=SCRIPTDIR source=../../../TEMPLATE/asr1/parse_options.sh
. ../../TEMPLATE/asr1/parse_options.sh
parse_known_options local/pseudo_labels.sh "$@"
require_whole_numbers stage nj
# shellcheck source-path=SCRIPTDIR source=../../../TEMPLATE/asr1/path.sh
. ./path.sh

set_name=unlabelled_${lang}
tag=pseudo_labels
incomplete=false

run() { # COMMAND ...: 3 says that some utterances failed, which were named; the others are there
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
    python3 -m espnet_medusa.stages.format_data --data_dir "data/${set_name}" --require_text false \
        --output_dir "${dumpdir}/raw/${set_name}" --max_duration 30 --on_bad skip --nj "${nj}"
fi

if [ "${stage}" -le 3 ]; then
    # The later of two equal options wins: those for training and evaluation do not count here.
    run ./whisper.sh "${other_options[@]}" --lang "${lang}" --stage 11 --stop_stage 12 \
        --systems vanilla --decodings "${decoding}" --test_sets "${set_name}" \
        --eval_valid_set false --inference_tag "${tag}" --expdir "${expdir}" \
        --dumpdir "${dumpdir}"
fi

if [ "${stage}" -le 4 ]; then
    python3 -m espnet_medusa.stages.select_pseudo_labels --data_dir "data/${set_name}" \
        --text "${expdir}/asr_vanilla/${tag}/${set_name}/text" --held_out "data/test_${lang}" \
        --train_dir "data/train_${lang}_pseudo" --valid_dir "data/dev_${lang}_pseudo" \
        --drop_fraction "${drop_fraction}" --valid_fraction "${valid_fraction}" \
        --margin_s "${margin_s}"
fi
[ "${incomplete}" = false ] || exit 3
