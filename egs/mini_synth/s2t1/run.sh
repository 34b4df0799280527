#!/usr/bin/env bash
# A model of OWSM's shape for English and German, trained with ESPnet's s2t task and decoded with
# ESPnet's search and with ours. The corpus is synthesized by espeak-ng.
# usage: Stages, numbered as in ESPnet's s2t.sh: 1 data, 3 format, 5 tokens, 10 statistics,
# usage:         11 training, 12 decoding, 13 scores and exp/RESULTS.md
# usage: Decoding is timed, with one job at a time: run nothing else on the machine.
set -euo pipefail

# options
stage=1             # first stage
stop_stage=13       # last stage
heads=              # systems with heads, such as "recurrent" (conf/train_recurrent.yaml)
local_data_opts="--minutes 60 --second_minutes 40 --voices 4 --min_snr_db 30 --min_rate_wpm 150"
nbpe=220            # tokens of sentencepiece, symbols included; with more, CTC learns slowly
train_nj=2          # CPU processes that share each training batch
nj=2                # jobs for statistics and for the labels of heads
train_args=         # more options for training
inference_args=     # more options for decoding
# end of options

# shellcheck source-path=SCRIPTDIR source=../../TEMPLATE/asr1/parse_options.sh
. ../../TEMPLATE/asr1/parse_options.sh
[ $# -gt 0 ] || echo "run.sh: about 40 minutes on two cores"
parse_options "$0" "$@"
require_whole_numbers stage stop_stage nbpe train_nj nj
# shellcheck source-path=SCRIPTDIR source=../../TEMPLATE/asr1/path.sh
. ./path.sh

features=dump/raw
tokens=dump/tokens
stats=exp/s2t_stats
base=exp/s2t_base
test_sets=(test test_de)
read -r -a systems <<< "${heads}"
read -r -a more_data <<< "${local_data_opts}"
read -r -a more_train <<< "${train_args}"
read -r -a more_inference <<< "${inference_args}"

active() { # STAGE TITLE: return whether the stage is selected
    [ "${stage}" -le "$1" ] && [ "${stop_stage}" -ge "$1" ] || return 1
    echo "$(date '+%Y-%m-%dT%H:%M:%S') (run.sh) Stage $1: $2"
}

tool() { # NAME [OPTION ...]
    python3 -m espnet_medusa.bin.stage "$@"
}

if active 1 "Data"; then
    local/data.sh --second_language de --second_dev_utterances 40 --dev_utterances 40 "${more_data[@]}"
fi

if active 3 "Format: symbols, timestamps and previous texts"; then
    for set_name in train dev; do
        python3 local/s2t_data.py "${features}/${set_name}" \
            "eng=data/${set_name}" "deu=data/${set_name}_de"
    done
    python3 local/s2t_data.py "${features}/test" eng=data/test
    python3 local/s2t_data.py "${features}/test_de" deu=data/test_de
fi

if active 5 "Tokens: ${tokens}/tokens.txt"; then
    mkdir -p "${tokens}"
    # shellcheck disable=SC2046
    printf '<%s>\n' na eng deu asr notimestamps $(seq -f %.2f 0 0.1 6.5) > "${tokens}/symbols.txt"
    tool make_tokens --text "${features}/train/text.ctc" --token_list "${tokens}/tokens.txt" \
        --token_type bpe --nbpe "${nbpe}" --non_linguistic_symbols "${tokens}/symbols.txt" \
        --sos_eos "<sos>"
    printf '<%s>\n' eos sop >> "${tokens}/tokens.txt"
fi

# train_s2t [OPTION ...]: ESPnet's training on ${train_data}/{train,dev}
train_data=${features}
train_s2t() {
    local part data=() entry
    for part in "train train" "valid dev"; do
        for entry in wav.scp,speech,sound text,text,text text.prev,text_prev,text \
            text.ctc,text_ctc,text; do
            data+=("--${part% *}_data_path_and_name_and_type" "${train_data}/${part#* }/${entry}")
        done
    done
    command=(python3 -m espnet_medusa.bin.python -m espnet2.bin.s2t_train --token_type bpe
        --token_list "${tokens}/tokens.txt" --bpemodel "${tokens}/bpe.model" --ngpu 0
        "${data[@]}" "$@" "${more_train[@]}")
}

if active 10 "Statistics: ${stats}"; then
    logs=${stats}/logdir
    jobs=$(tool split_keys --nj "${nj}" --work_dir "${logs}" --resume false \
        --keys "${features}/train/wav.scp" --output "${logs}/train.JOB.scp" \
        --keys "${features}/dev/wav.scp" --output "${logs}/valid.JOB.scp")
    # Use the first 2 s of each utterance (none is shorter): padding would change mean and variance.
    train_s2t --collect_stats true --config conf/train_s2t.yaml --output_dir "${logs}/stats.JOB" \
        --preprocessor_conf speech_length=2 \
        --train_shape_file "${logs}/train.JOB.scp" --valid_shape_file "${logs}/valid.JOB.scp"
    tool run_jobs --title statistics "JOB=1:${jobs}" "${logs}/stats.JOB.log" -- "${command[@]}"
    tool aggregate_stats --jobs "${jobs}" --job_dir "${logs}/stats.JOB" --output_dir "${stats}" \
        --token_list "${tokens}/tokens.txt" --token_type bpe
fi

train() { # EXPERIMENT CONFIG [OPTION ...]
    train_s2t --config "$2" --output_dir "$1" --resume true --normalize global_mvn \
        --normalize_conf "stats_file=${stats}/train/feats_stats.npz" \
        --train_shape_file "${stats}/train/text_shape.bpe" \
        --valid_shape_file "${stats}/valid/text_shape.bpe" "${@:3}"
    tool run_training --log "$1/train.log" --nj "${train_nj}" -- "${command[@]}"
}

incomplete=false
go_on() { # COMMAND ...: status 3 means that some utterances or sets failed, with a message for each
    status=0
    "$@" || status=$?
    [ "${status}" -eq 0 ] || [ "${status}" -eq 3 ] || exit "${status}"
    [ "${status}" -eq 0 ] || incomplete=true
}

decode() { # EXPERIMENT TAG SET JOBS MODULE CONFIG [OPTION ...]
    local folder=$1/$2/$3 logs=$1/$2/$3/logdir keys=${features}/$3/wav.scp
    local utt2lang=${features}/$3/utt2lang jobs model command decoding
    model=$(echo "$1"/valid.*.ave.pth)
    command=(python3 -m "$5" --config "$6" --s2t_train_config "$1/config.yaml"
        --s2t_model_file "${model}" --data_path_and_name_and_type "${keys},speech,sound"
        --key_file "${logs}/keys.JOB.scp" --output_dir "${logs}/output.JOB"
        --lang_sym "$(awk '{ print $2; exit }' "${utt2lang}")"
        "${@:7}" "${more_inference[@]}")
    # All that determines the results: the command and the content of its files.
    decoding=$(
        echo "${command[*]}"
        cksum "$6" "${model}" "${keys}" "${utt2lang}"
        cut -d ' ' -f 2- "${keys}" | tr '\n' '\0' | xargs -0 cat | cksum
    )
    if [ -f "${folder}/decoding" ]; then
        if [ "$(cat "${folder}/decoding")" = "${decoding}" ]; then
            echo "${folder}: complete already, nothing to do"
            return
        fi
        rm "${folder}/decoding"
        # Our module checks the options and audio of each earlier result, ESPnet's does not.
        [ "$5" = "${ours}" ] || rm -r "${folder}"
    fi
    jobs=$(tool split_keys --nj "$4" --work_dir "${logs}" --keys "${keys}" \
        --output "${logs}/keys.JOB.scp")
    tool run_jobs --title "$2 $3" --total_keys "$(wc -l < "${keys}")" --on_failure wait \
        "JOB=1:${jobs}" "${logs}/s2t_inference.JOB.log" -- "${command[@]}"
    go_on tool merge_outputs --keys "${keys}" --log_dir "${logs}" --output_dir "${folder}"
    [ "${status}" -ne 0 ] || echo "${decoding}" > "${folder}/decoding"
}

ours=espnet_medusa.bin.s2t_inference

if active 11 "Training"; then
    train "${base}" conf/train_s2t.yaml
    train_data=dump/labels # written by the base model
    for set_name in ${heads:+train dev}; do
        [ "${incomplete}" = false ] || break
        decode "${base}" labels "${set_name}" "${nj}" "${ours}" conf/decode_greedy.yaml \
            --drafter ctc --batch_size 8 --utt2lang "${features}/${set_name}/utt2lang"
        mkdir -p "${train_data}/${set_name}"
        cp "${features}/${set_name}"/{wav.scp,text.prev,text.ctc} \
            "${base}/labels/${set_name}/text" "${train_data}/${set_name}"
    done
    if [ "${incomplete}" = true ]; then
        echo "run.sh: error: labels are incomplete, see above: no heads are trained" >&2
        systems=()
    fi
    for system in "${systems[@]}"; do
        start=(--init_param "${base}/valid.acc.ave.pth")
        tool check_start --exp_dir "exp/s2t_${system}" "${start[@]}"
        train "exp/s2t_${system}" "conf/train_${system}.yaml" "${start[@]}"
    done
fi

if active 12 "Decoding"; then
    for search in beam5 greedy; do
        config=conf/decode_${search}.yaml
        for set_name in "${test_sets[@]}"; do
            decode "${base}" "espnet_${search}" "${set_name}" 1 espnet2.bin.s2t_inference "${config}"
            decode "${base}" "${search}" "${set_name}" 1 "${ours}" "${config}"
            decode "${base}" "${search}_ctc" "${set_name}" 1 "${ours}" "${config}" --drafter ctc
            for system in "${systems[@]}"; do
                decode "exp/s2t_${system}" "${search}" "${set_name}" 1 "${ours}" "${config}" \
                    --drafter heads
            done
        done
    done
fi

if active 13 "Scores and exp/RESULTS.md"; then
    for set_name in "${test_sets[@]}"; do
        for folder in exp/s2t_*/*/"${set_name}"; do
            [ ! -f "${folder}/text" ] || tool score --data_dir "data/${set_name}" \
                --output_dir "${folder}" --hypotheses text_nospecial
        done
    done
    go_on python3 -m espnet_medusa.bin.report "${base}" "${systems[@]/#/exp/s2t_}" \
        --config ../../../conf/report/mini_synth_s2t.yaml --output exp/RESULTS.md
    cat exp/RESULTS.md
fi
[ "${incomplete}" = false ] || exit 3
