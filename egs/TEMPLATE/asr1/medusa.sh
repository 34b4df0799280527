#!/usr/bin/env bash
# Trains a base model and Medusa heads on it, decodes in several ways, compares them with plain
# decoding. Runs asr.sh once for each model; options that are not listed here go to asr.sh.
# usage: own data: --data_dir DIR --train_set A --valid_set B --test_sets "C D"
set -euo pipefail

template=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)

# options
stage=1             # first stage
stop_stage=13       # last stage; the comparison follows stage 13
heads="linear block recurrent"  # kinds, each of conf/train_<kind>.yaml; <kind>_<N>heads: N of them
decodings="exact typical"   # ways to decode with heads, a conf/decode/<way>.yaml each
base_model=valid.acc.ave.pth        # checkpoint of the base model
heads_model=valid.acc_heads.ave.pth # checkpoint of the models with heads
data_dir=           # existing Kaldi directories DIR/<set>, instead of local/data.sh
name=               # where own data goes: dump/<name>, exp/<name>; default: name of data_dir
dumpdir=            # default: dump
expdir=             # default: exp
asr_args=           # more options for training
report=             # plan of the tables to write at the end, a conf/report/*.yaml; not for own data
# end of options

# shellcheck source=/dev/null
. "${template}/parse_options.sh"
other_options=()
parse_known_options "${template}/medusa.sh" "$@"
require_whole_numbers stage stop_stage
# shellcheck source-path=SCRIPTDIR source=path.sh
. ./path.sh

# Own data stays apart: training would go on with another corpus's model otherwise.
[ -z "${data_dir}" ] || name=${name:-$(basename "${data_dir}")}
dumpdir=${dumpdir:-dump${name:+/${name}}}
expdir=${expdir:-exp${name:+/${name}}}

incomplete=false
asr() { # OPTION ...
    local status=0
    ./asr.sh --dumpdir "${dumpdir}" --expdir "${expdir}" --data_dir "${data_dir}" \
        --stop_stage "${stop_stage}" "$@" "${other_options[@]}" || status=$?
    # 3: some utterances failed, which were named; the others are there.
    [ "${status}" -eq 0 ] || [ "${status}" -eq 3 ] || exit "${status}"
    [ "${status}" -eq 0 ] || incomplete=true
}

base=${expdir}/asr_base
experiments=("${base}")
asr --stage "${stage}" --asr_config conf/train_base.yaml --asr_args "${asr_args}" --asr_tag base \
    --inference_config conf/decode/plain.yaml --inference_asr_model "${base_model}"

# The heads share the base's data, tokens and statistics.
heads_stage=$((stage > 11 ? stage : 11))
ways=
for way in ${decodings}; do
    ways+=" conf/decode/${way}.yaml"
done
for system in ${heads}; do
    [ "${stop_stage}" -ge 11 ] || break
    count=
    [[ ! ${system} =~ _([0-9]+)heads$ ]] || count=${BASH_REMATCH[1]}
    asr --stage "${heads_stage}" --asr_config "conf/train_${system%_*heads}.yaml" \
        --asr_args "${count:+--decoder_conf heads_conf.num_heads=${count} }${asr_args}" \
        --asr_tag "${system}" \
        --pretrained_model "${base}/${base_model}" --inference_configs "${ways}" \
        --inference_asr_model "${heads_model}"
    experiments+=("${expdir}/asr_${system}")
done

if [ "${stop_stage}" -ge 13 ]; then
    python3 -m espnet_medusa.bin.results --exp_dirs "${experiments[@]}" \
        --plain "${base}/plain" --output "${expdir}/RESULTS.md"
    python3 -m espnet_medusa.bin.plot_decoding --exp_dirs "${experiments[@]}" \
        --plain "${base}/plain" --output_dir "${expdir}/images"
    cat "${expdir}/RESULTS.md"
    [ -z "${report}" ] || [ -n "${data_dir}" ] || python3 -m espnet_medusa.bin.report \
        --exp_dirs "${experiments[@]}" --config "${report}" --output "${expdir}/REPORT.md"
fi
[ "${incomplete}" = false ]
