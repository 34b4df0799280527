#!/usr/bin/env bash
# Compares drafters: heads, a smaller decoder, a model of another version, a CTC branch, CTC with
# heads. Also decodes a model that ESPnet trained without this plugin, with CTC drafts.
# First: ./run.sh (base, linear, block and recurrent heads).
# usage: Stages: 1 draft models, 2 CTC branches, 3 ESPnet's conformer, 4 greedy search, 5 CTC
# usage:         branches compared, 6 beams 1 to 5, 7 ESPnet's conformer decoded, 8 report
# usage: Decoding is timed, with one job at a time: run nothing else on the machine.
set -euo pipefail

# options
stage=1             # first stage
stop_stage=8        # last stage
train_nj=2          # CPU processes that share each training batch
# end of options

# shellcheck source=/dev/null
. ../../TEMPLATE/asr1/parse_options.sh
parse_options "$0" "$@"
require_whole_numbers stage stop_stage train_nj
# shellcheck source-path=SCRIPTDIR source=path.sh
. ./path.sh

base=exp/asr_base/valid.acc.ave.pth
ctc_epochs="1 2 3 5 8"  # epochs of the CTC branch on the frozen encoder that are compared

active() { # STAGE
    [ "${stage}" -le "$1" ] && [ "${stop_stage}" -ge "$1" ]
}

incomplete=false
go_on() { # COMMAND ...: status 3 means that some utterances or sets failed, with a message for each
    local status=0
    "$@" || status=$?
    [ "${status}" -eq 0 ] || [ "${status}" -eq 3 ] || exit "${status}"
    [ "${status}" -eq 0 ] || incomplete=true
}

asr() { # OPTION ...
    go_on ./asr.sh --lang en --train_set train --valid_set dev --test_sets test --token_type bpe \
        --nbpe 256 --feats_normalize "" --max_wav_duration 30 --ngpu 0 \
        --train_nj "${train_nj}" --nj 2 --inference_nj 1 "$@"
}

train() { # SYSTEM OPTION ...
    asr --asr_config "conf/train_$1.yaml" --asr_tag "$1" --stage 11 --stop_stage 11 "${@:2}"
}

decode() { # SYSTEM CHECKPOINT CONFIGS OPTION ...
    asr --asr_tag "$1" --inference_asr_model "$2.pth" --inference_configs "${3//$'\n'/ }" \
        --stage 12 --stop_stage 13 "${@:4}"
}

if active 1; then
    train draft --pretrained_model "${base}" --ignore_init_mismatch true
    asr --nbpe 180 --stage 5 --stop_stage 5
    asr --nbpe 180 --asr_config conf/train_draft_version.yaml --stage 10 --stop_stage 10
    train draft_version --nbpe 180
fi

if active 2; then
    train ctc --pretrained_model "${base}:encoder:encoder ${base}:decoder:decoder"
    train base_ctc --pretrained_model "${base}"
fi

if active 3; then
    asr --train_module espnet2.bin.asr_train --train_nj 1 --feats_normalize global_mvn \
        --asr_stats_dir exp/asr_stats_conformer --asr_config conf/train_conformer.yaml \
        --asr_tag conformer --stage 10 --stop_stage 11
fi

if active 4; then
    decode base valid.acc.ave "conf/decode/baseline.yaml conf/decode/ctc_draft.yaml
        conf/decode/ctc_first.yaml conf/decode_draft.yaml conf/decode_draft_version.yaml"
    for heads in linear block recurrent; do
        decode "${heads}" valid.acc_heads.ave conf/decode/exact.yaml
    done
    decode block valid.acc_heads.ave conf/decode/typical.yaml
    decode recurrent valid.acc_heads.ave \
        "conf/decode/ctc_heads.yaml conf/decode/typical.yaml conf/decode/int8.yaml"
    # The draft models alone.
    decode draft valid.acc.ave conf/decode/baseline.yaml
    decode draft_version valid.acc.ave conf/decode/baseline.yaml --nbpe 180
fi

if active 5; then
    ways="conf/decode/ctc_draft.yaml conf/decode_ctc_alone.yaml"
    for epoch in ${ctc_epochs}; do
        decode ctc "${epoch}epoch" "${ways}"
    done
    decode base valid.acc.ave conf/decode_ctc_alone.yaml
    decode base_ctc valid.loss_ctc.ave "${ways}"
fi

if active 6; then
    for size in 1 2 3 4 5; do
        decode base valid.acc.ave "conf/decode_beam_baseline.yaml conf/decode_beam_draft.yaml
            conf/decode_beam_draft_version.yaml" --inference_args "--beam_size ${size}"
        decode recurrent valid.acc_heads.ave \
            "conf/decode_beam_heads.yaml conf/decode_beam_ctc_heads.yaml" \
            --inference_args "--beam_size ${size}"
    done
fi

same_nbest() { # FOLDER FOLDER: return whether two decodings have the same n-best lists
    local rank folder lists
    for rank in 1 2 3 4 5; do
        lists=()
        for folder in "$@"; do
            lists+=("$(sort "${folder}/logdir/output.1/${rank}best_recog/token_int")") || return 1
        done
        if [ "${lists[0]}" != "${lists[1]}" ]; then
            echo "run_drafters.sh: error: hypotheses of rank ${rank} differ: $*" >&2
            return 1
        fi
    done
}

if active 7; then
    decode conformer valid.acc.ave conf/decode_hybrid.yaml \
        --inference_module espnet2.bin.asr_inference
    decode conformer valid.acc.ave "conf/decode_hybrid_baseline.yaml conf/decode_hybrid_ctc_draft.yaml
        conf/decode_hybrid_ctc_draft_cost.yaml conf/decode_hybrid_baseline_int8.yaml
        conf/decode_hybrid_greedy.yaml conf/decode_hybrid_greedy_ctc_draft.yaml"
    theirs=exp/asr_conformer/decode_hybrid_asr_model_valid.acc.ave/test
    for ours in baseline ctc_draft ctc_draft_cost; do
        same_nbest "${theirs}" "exp/asr_conformer/decode_hybrid_${ours}_asr_model_valid.acc.ave/test"
        echo "run_drafters.sh: ${ours}: same n-best lists as espnet2.bin.asr_inference"
    done
fi

if active 8; then
    mkdir -p exp/drafters
    python3 -m espnet_medusa.bin.vocabulary_coverage exp/asr_base exp/asr_draft_version |
        tee exp/drafters/coverage.txt
    go_on python3 -m espnet_medusa.bin.report --config ../../../conf/report/mini_synth_drafters.yaml \
        --output exp/drafters/REPORT.md exp/asr_base exp/asr_linear exp/asr_block \
        exp/asr_recurrent exp/asr_draft exp/asr_draft_version exp/asr_ctc exp/asr_base_ctc \
        exp/asr_conformer
fi
[ "${incomplete}" = false ] || exit 3
