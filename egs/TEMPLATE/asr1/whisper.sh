#!/usr/bin/env bash
# The systems of Whisper-Medusa's paper on one corpus: Whisper as it is, fine-tuned, and with heads;
# each is decoded in several ways and scored, then the paper's tables are written.
# Runs asr.sh once for the data and once for each system; options that are not listed here go to
# asr.sh.
# usage: Stages: asr.sh's; 11 converts (vanilla) or trains each system, 16 tables and plots
set -euo pipefail

template=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)

# options
stage=1             # first stage
stop_stage=16       # last stage
whisper_model=openai/whisper-large-v2   # hub name, folder or OpenAI's .pt file
heads="linear block"    # kinds of heads: linear, block, recurrent; linear_5heads: 5 of them; and
                        # ctc: a CTC branch that drafts
systems=            # default: vanilla finetune and the heads; each but vanilla: conf/train_<kind>.yaml
num_heads=          # of systems whose name does not say it; default: the configuration's
decodings="plain beam5_plain assistant"     # without heads: conf/decode/<way>.yaml where it exists
assistant=          # drafts in the decoding assistant: Whisper or experiment; default: distil-whisper
                    # for large-v2, none for others
heads_decodings="exact typical beam5"       # with heads, likewise
labels=written      # what heads and CTC on a frozen Whisper learn: what it writes itself, or the
                    # set's texts (references); kept with its states in <dumpdir>/states_<labels>
states=true         # run a frozen Whisper once over the audio, not in every epoch
train_set=          # name of the training set; not needed for vanilla alone
valid_set=          # name of the validation set, likewise
lang=noinfo         # code of the prompt's language, and part of names
ngpu=1              # GPUs for training; 0: CPU
asr_args=           # more options for training
dumpdir=dump        # formatted data
expdir=exp          # experiments: <expdir>/asr_<system>
report=             # plan of the tables, such as conf/report/librispeech.yaml
# end of options

# shellcheck source=/dev/null
. "${template}/parse_options.sh"
other_options=()
parse_known_options "${template}/whisper.sh" "$@"
require_whole_numbers stage stop_stage
[ -z "${num_heads}" ] || require_whole_numbers num_heads
[[ ${labels} =~ ^(written|references)$ ]] || {
    echo "whisper.sh: error: --labels ${labels}: allowed are written and references" >&2
    exit 2
}
# shellcheck source-path=SCRIPTDIR source=path.sh
. ./path.sh

fail() {
    echo "whisper.sh: error: $*" >&2
    exit 2
}

if [ -z "${assistant}" ] && [[ ${whisper_model} == *large-v2* ]]; then
    assistant=distil-whisper/distil-large-v2
fi

config_of() { # SYSTEM
    echo "conf/train_${1%_*heads}.yaml"
}

read -r -a chosen <<< "${systems:-vanilla finetune ${heads}}"
data_options=(--skip_train true) # vanilla alone
for system in "${chosen[@]}"; do
    [ "${system}" != vanilla ] || continue
    [ -f "$(config_of "${system}")" ] || fail "system ${system}: no $(config_of "${system}")"
    # What stage 10 counts is the same for all systems.
    data_options=(--asr_config "$(config_of "${system}")" --asr_args "${asr_args}")
done

# Training and decoding would go on with another Whisper's systems otherwise.
record_whisper "${expdir}" "${whisper_model}"

token_type=whisper_multilingual
[[ ! ${whisper_model} =~ \.en(\.pt)?/*$ ]] || token_type=whisper_en

incomplete=false
asr() { # OPTION ...
    local status=0
    ./asr.sh --token_type "${token_type}" --feats_normalize "" --max_wav_duration 30 \
        --whisper_model "${whisper_model}" --lang "${lang}" --train_set "${train_set}" \
        --valid_set "${valid_set}" --ngpu "${ngpu}" --dumpdir "${dumpdir}" --expdir "${expdir}" \
        "$@" "${other_options[@]}" || status=$?
    # 3: some utterances failed, which were named; the others are there.
    [ "${status}" -eq 0 ] || [ "${status}" -eq 3 ] || exit "${status}"
    [ "${status}" -eq 0 ] || incomplete=true
}

until_stage() { # STAGE: it, or the last stage that was asked for
    echo $((stop_stage < $1 ? stop_stage : $1))
}

configs() { # WAYS: the configurations that there are
    local way names files=()
    read -r -a names <<< "$1"
    for way in "${names[@]}"; do
        if [ "${way}" = assistant ] && [ -n "${assistant}" ]; then
            sed "\$a draft_model: ${assistant}" conf/decode/draft_model.yaml \
                > "${expdir}/assistant.yaml"
            files+=("${expdir}/assistant.yaml")
        fi
        [ ! -f "conf/decode/${way}.yaml" ] || files+=("conf/decode/${way}.yaml")
    done
    [ ${#files[@]} -gt 0 ] || fail "decodings '$1': conf/decode has none of them"
    echo "${files[*]}"
}
without_heads=$(configs "${decodings}")
with_heads=$(configs "${heads_decodings}")

convert() { # Whisper itself as an experiment
    local exp=${expdir}/asr_vanilla code=${lang}
    [ "${lang}" != noinfo ] || code=en
    [ -f "${exp}/config.yaml" ] ||
        python3 -m espnet_medusa.bin.convert "${whisper_model}" "${exp}" --language "${code}"
}

vanilla() {
    [ "${stage}" -gt 11 ] || convert
    [ "${stop_stage}" -lt 12 ] || asr --stage "$((stage > 12 ? stage : 12))" \
        --stop_stage "$(until_stage 15)" --skip_train true --asr_tag vanilla \
        --inference_asr_model model.pth --inference_configs "${without_heads}"
}

is_frozen() { # SYSTEM: whether its training leaves Whisper as it is
    [ "${states}" = true ] && grep -Eq '^ *freeze_whisper: all( |$)' "$(config_of "$1")"
}

keep_states() { # of both sets, for all systems that leave Whisper as it is
    local system set_name status memory=false search=()
    for system in "${chosen[@]}"; do
        [ "${system}" = vanilla ] || [[ ${system} == linear* ]] || ! is_frozen "${system}" ||
            memory=true
    done
    [ "${ngpu}" -gt 0 ] || search=(--decoder_precision int8)
    convert
    for set_name in "${train_set}" "${valid_set}"; do
        status=0
        python3 -m espnet_medusa.stages.keep_states --exp_dir "${expdir}/asr_vanilla" \
            --data_dir "${dumpdir}/raw/${set_name}" --output_dir "${states_dir}/${set_name}" \
            --references "$([ "${labels}" = references ] && echo true || echo false)" \
            --memory "${memory}" --ngpu "$((ngpu > 0))" "${search[@]}" || status=$?
        [ "${status}" -eq 0 ] || [ "${status}" -eq 3 ] || exit "${status}"
        [ "${status}" -eq 0 ] || incomplete=true
    done
}

trained() { # SYSTEM
    local on_states=() count=${num_heads} ways=${with_heads} training=${asr_args}
    [[ ! $1 =~ _([0-9]+)heads$ ]] || count=${BASH_REMATCH[1]}
    if [ "$1" = finetune ]; then
        ways=${without_heads}
    elif [ "$1" = ctc ]; then
        ways=conf/decode/ctc_draft.yaml
    elif [ -n "${count}" ]; then
        training="--decoder_conf heads_conf.num_heads=${count} ${training}"
    fi
    if is_frozen "$1"; then
        on_states=(--states_dir "${states_dir}")
        if [ "${stage}" -le 11 ]; then keep_states; fi
        [ "$1" = ctc ] || on_states+=(--pretrained_model "${states_dir}/${train_set}/token_counts.pth")
    fi
    asr --stage "$((stage > 11 ? stage : 11))" --stop_stage "$(until_stage 15)" "${on_states[@]}" \
        --asr_config "$(config_of "$1")" --asr_args "${training}" --asr_tag "$1" \
        --inference_asr_model valid.loss.best.pth --inference_configs "${ways}"
}

states_dir=${dumpdir}/states_${labels}
if [ "${stage}" -le 10 ]; then
    asr --stage "${stage}" --stop_stage "$(until_stage 10)" "${data_options[@]}"
fi

for system in "${chosen[@]}"; do
    [ "${stage}" -le 15 ] && [ "${stop_stage}" -ge 11 ] || continue
    if [ "${system}" = vanilla ]; then
        vanilla
    else
        trained "${system}"
    fi
done

if [ "${stop_stage}" -ge 16 ]; then
    # Those of earlier calls, too.
    experiments=()
    for folder in "${expdir}"/asr_*; do
        ! compgen -G "${folder}/*/*/text" > /dev/null || experiments+=("${folder}")
    done
    [ ${#experiments[@]} -gt 0 ] || fail "${expdir}: nothing is decoded yet; run stages 11 to 13"
    plain=()
    ! compgen -G "${expdir}/asr_vanilla/plain*/*/text" > /dev/null ||
        plain=(--plain "${expdir}/asr_vanilla/plain")
    python3 -m espnet_medusa.bin.report "${experiments[@]}" "${plain[@]}" \
        --output "${expdir}/DECODING.md"
    [ -z "${report}" ] || python3 -m espnet_medusa.bin.report "${experiments[@]}" \
        --config "${report}" --output "${expdir}/RESULTS.md"
fi
[ "${incomplete}" = false ] || exit 3
