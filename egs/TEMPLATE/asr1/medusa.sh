#!/usr/bin/env bash
# Trains a base model and Medusa heads on it, decodes in several ways, and compares them with the
# baseline (without drafts). Runs asr.sh once for each model; other options go to asr.sh.
# usage: Own data: --data_dir DIR --train_set A --valid_set B --test_sets "C D"
# usage: Systems with heads: linear (conf/train_linear.yaml); linear_5heads; latent_4 (4 tokens per
# usage: call, so 3 heads). latent_4_mwer (conf/train_latent_mwer.yaml) starts from latent_4, the
# usage: others start from the base. A name that ends in _seed2 is trained with seed 2.
set -euo pipefail

template=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)

# options
stage=1             # first stage
stop_stage=13       # last stage; the comparison follows stage 13
base=base           # the base model, trained by conf/train_<base>.yaml
base_start=         # its initial weights, such as FILE:encoder:encoder; default: random
heads="linear block recurrent"  # systems with heads
decodings="exact typical"   # ways to decode with heads: conf/decode/<way>.yaml
base_model=         # checkpoint of the base model; default: best by its configuration's criterion
heads_model=        # checkpoint of the models with heads; default: as for the base
data_dir=           # existing Kaldi directories DIR/<set>, instead of local/data.sh
name=               # folders of own data: dump/<name>, exp/<name>; default: name of data_dir
dumpdir=            # default: dump
expdir=             # default: exp
tables=             # folder of tables and plots: <expdir>/<tables>
asr_args=           # more options for training
report=             # plan of the tables to write at the end, a conf/report/*.yaml; not for own data
# end of options

# shellcheck source=/dev/null
. "${template}/parse_options.sh"
other_options=()
parse_known_options "${template}/medusa.sh" "$@"
require_whole_numbers stage stop_stage
refuse_white_space name dumpdir expdir # --pretrained_model is a list of files
# shellcheck source-path=SCRIPTDIR source=path.sh
. ./path.sh

# Own data has its own folders; otherwise training would resume another corpus's model.
if [ -n "${data_dir}" ] && [ -z "${name}" ]; then
    name=$(basename "${data_dir}")
    name=${name//[[:space:]]/_}
fi
dumpdir=${dumpdir:-dump${name:+/${name}}}
expdir=${expdir:-exp${name:+/${name}}}
tables=${expdir}${tables:+/${tables}}

incomplete=false
asr() { # OPTION ...
    local status=0
    ./asr.sh --dumpdir "${dumpdir}" --expdir "${expdir}" --data_dir "${data_dir}" \
        --stop_stage "${stop_stage}" "$@" "${other_options[@]}" || status=$?
    # 3: some utterances failed, with a message for each; the others have results.
    [ "${status}" -eq 0 ] || [ "${status}" -eq 3 ] || exit "${status}"
    [ "${status}" -eq 0 ] || incomplete=true
}

report_on() { # OUTPUT OPTION ...: status 3 means that some sets are listed as not complete
    local status=0
    python3 -m espnet_medusa.bin.report "${experiments[@]}" --output "$@" || status=$?
    [ "${status}" -eq 0 ] || [ "${status}" -eq 3 ] || exit "${status}"
    [ "${status}" -eq 0 ] || incomplete=true
}

plan=$(python3 -m espnet_medusa.bin.stage systems --base "${base}" --heads "${heads}" \
    --base_start "${base_start}" --exp_dir "${expdir}" \
    --base_model "${base_model}" --heads_model "${heads_model}")
mapfile -t systems <<< "${plan}"
read -r -a with_heads <<< "${decodings}"
experiments=()
ways=conf/decode/baseline.yaml # for the base, which is the first system
for line in "${systems[@]}"; do
    IFS=$'\t' read -r system config checkpoint start options <<< "${line}"
    asr --stage "${stage}" --asr_config "${config}" --asr_args "${options} ${asr_args}" \
        --asr_tag "${system}" --pretrained_model "${start}" \
        --inference_configs "${ways}" --inference_asr_model "${checkpoint}"
    experiments+=("${expdir}/asr_${system}")
    # The others use the base's data, tokens and statistics.
    [ "${stop_stage}" -ge 11 ] || break
    stage=$((stage > 11 ? stage : 11))
    ways=$(printf 'conf/decode/%s.yaml ' "${with_heads[@]}")
done

if [ "${stop_stage}" -ge 13 ]; then
    report_on "${tables}/RESULTS.md" --baseline "${experiments[0]}/baseline"
    cat "${tables}/RESULTS.md"
    [ -z "${report}" ] || [ -n "${data_dir}" ] ||
        report_on "${tables}/REPORT.md" --config "${report}"
fi
[ "${incomplete}" = false ] || exit 3
