#!/usr/bin/env bash
# The systems of Whisper-Medusa's paper on one corpus: pretrained Whisper, fine-tuned, and with heads.
# Each is decoded in several ways and scored; then the paper's tables are written.
# Runs asr.sh once for the data and once for each system. Other options go to asr.sh.
# usage: Stages: asr.sh's; 11 converts (vanilla) or trains each system, 16 tables and plots
set -euo pipefail

template=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)

# options
stage=1             # first stage
stop_stage=16       # last stage
whisper_model=openai/whisper-large-v2   # hub name, folder or OpenAI's .pt file
heads="linear block"    # kinds of heads: linear, linear_frozen, block, recurrent, attending;
                        # linear_5heads: 5 heads; ctc: a CTC branch over few units that drafts;
                        # ctc_tokens: a CTC branch over Whisper's tokens
systems=            # default: vanilla (pretrained), finetune and the heads; all but vanilla are
                    # trained by conf/train_<system>.yaml
num_heads=          # heads of systems without a number in their name; default: the configuration's
decodings="baseline beam5_baseline assistant"     # of systems without heads: the conf/decode/<way>.yaml
                    # that exist
assistant=          # draft model of the decoding `assistant`: Whisper or experiment; default:
                    # distil-whisper for large-v2, none for others
heads_decodings="exact typical beam5"       # of systems with heads: likewise
labels=             # training labels: Whisper's own texts (written) or the sets' texts (references);
                    # default: written for a frozen Whisper, references otherwise
labels_config=      # decoding configuration of Whisper's own texts; default: greedy
drop_fraction=0.05  # share of Whisper's texts to drop: lengths that least fit the audio
max_compression_ratio=2.4   # zlib ratio above which a text of Whisper is dropped as repetitive
states=true         # run a frozen Whisper once over the audio, not in every epoch; its states are
                    # cached in <dumpdir>/states_<labels>
states_nj=1         # processes that compute states and texts; each on one GPU, if any
cmd_backend=${cmd_backend:-local}   # where jobs run, as in asr.sh; slurm: the frozen Whisper, too
draft_vocab_size=16384  # number of most frequent tokens that heads on states may draft; empty: all
train_set=          # name of the training set; not needed for only vanilla
valid_set=          # name of the validation set; not needed for only vanilla
speed_perturb_factors=  # such as "0.9 1.0 1.1": copies of the training set at these speeds
longform=true       # decode test audio longer than Whisper's window, with a sliding window; false:
                    # stage 3 names and refuses it
lang=noinfo         # language code of the prompt, used in names; noinfo: en
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
require_whole_numbers stage stop_stage states_nj
refuse_white_space dumpdir expdir # --pretrained_model and --inference_configs are lists of files
[ -z "${num_heads}" ] || require_whole_numbers num_heads
[[ ${labels} =~ ^(written|references|)$ ]] || {
    echo "whisper.sh: error: --labels ${labels}: allowed are written and references" >&2
    exit 2
}
train_suffix=${speed_perturb_factors:+_sp} # which asr.sh appends to the name of the training set
# shellcheck source-path=SCRIPTDIR source=path.sh
. ./path.sh
# shellcheck source-path=SCRIPTDIR source=cmd.sh
. ./cmd.sh
states_prefix= # for the frozen Whisper, which runs on this machine or in a Slurm job
if [ "${cmd_backend}" = slurm ]; then
    states_prefix="${train_cmd} --gpu 0"
    [ "${ngpu}" -eq 0 ] || states_prefix="${cuda_cmd} --gpu 1"
fi

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

is_frozen() { # SYSTEM: return whether its training does not change Whisper
    grep -Eq '^ *freeze_whisper: all( |$)' "$(config_of "$1")"
}

labels_of() { # SYSTEM: print the kind of its labels
    if [ -n "${labels}" ]; then
        echo "${labels}"
    elif is_frozen "$1"; then
        echo written
    else
        echo references
    fi
}

on_states() { # SYSTEM: return whether it trains on cached states, not on audio
    [ "${states}" = true ] && is_frozen "$1"
}

reads() { # SYSTEM: print which cached encoder output it trains on
    case $1 in
    linear*) echo none ;;
    ctc*) echo unpadded ;;
    *) echo memory ;;
    esac
}

read -r -a chosen <<< "${systems:-vanilla finetune ${heads}}"
data_options=(--skip_train true) # for only vanilla
data_stages=10
[ "${labels}" != written ] || data_stages=9 # stage 10 counts the lengths of texts, which the sets may lack
declare -A needs=()              # of each kind of labels: states, memory, unpadded, audio
for system in "${chosen[@]}"; do
    [ "${system}" != vanilla ] || continue
    [ -f "$(config_of "${system}")" ] || fail "system ${system}: no $(config_of "${system}")"
    # The statistics of stage 10 are the same for all systems.
    data_options=(--asr_config "$(config_of "${system}")" --asr_args "${asr_args}")
    kind=$(labels_of "${system}")
    if on_states "${system}"; then
        needs[${kind}]+=" states"
        needs[${kind}]+=" $(reads "${system}")"
    else
        needs[${kind}]+=" audio"
    fi
done

# Otherwise training and decoding would continue with the systems of another Whisper or prompt.
language=${lang/#noinfo/en}
record_option "${expdir}" whisper_model "${whisper_model}"
record_option "${expdir}" lang "${language}"

token_type=whisper_multilingual
if [[ ${whisper_model} =~ \.en(\.pt)?/*$ ]] ||
    grep -Eqs '"vocab_size": *51864\b' "${whisper_model}/config.json"; then # a folder of any name
    token_type=whisper_en
fi

incomplete=false
asr() { # OPTION ...
    local status=0
    ./asr.sh --token_type "${token_type}" --feats_normalize "" --max_wav_duration 30 \
        --whisper_model "${whisper_model}" --lang "${lang}" --train_set "${train_set}" \
        --valid_set "${valid_set}" --speed_perturb_factors "${speed_perturb_factors}" \
        --longform "${longform}" --ngpu "${ngpu}" \
        --dumpdir "${dumpdir}" --expdir "${expdir}" --cmd_backend "${cmd_backend}" "$@" \
        "${other_options[@]}" || status=$?
    # 3: some utterances failed, with a message for each; the others have results.
    [ "${status}" -eq 0 ] || [ "${status}" -eq 3 ] || exit "${status}"
    [ "${status}" -eq 0 ] || incomplete=true
}

until_stage() { # STAGE: print the smaller of it and the last selected stage
    echo $((stop_stage < $1 ? stop_stage : $1))
}

configs() { # WAYS: print the configurations that exist
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

convert() { # make an experiment of the pretrained Whisper
    local exp=${expdir}/asr_vanilla
    [ -f "${exp}/config.yaml" ] ||
        python3 -m espnet_medusa.bin.convert "${whisper_model}" "${exp}" --language "${language}" \
            --heads none
}

vanilla() {
    [ "${stage}" -gt 11 ] || convert
    [ "${stop_stage}" -lt 12 ] || asr --stage "$((stage > 12 ? stage : 12))" \
        --stop_stage "$(until_stage 15)" --skip_train true --asr_tag vanilla \
        --inference_asr_model model.pth --inference_configs "${without_heads}"
}

needed() { # LABELS WHAT: print true or false
    [[ " ${needs[$1]} " != *" $2 "* ]] && echo false || echo true
}

declare -A cached=()
cache_states() { # LABELS: run Whisper once over both sets, for all systems with these labels
    local set_name suffix folder status command
    [ -z "${cached[$1]:-}" ] || return 0
    cached[$1]=true
    convert
    for set_name in "${train_set}" "${valid_set}"; do
        [ "${set_name}" = "${train_set}" ] && suffix=${train_suffix} || suffix=
        folder=${dumpdir}/states_$1/${set_name}${suffix}
        command=(python3 -m espnet_medusa.bin.stage cache_states --exp_dir "${expdir}/asr_vanilla"
            --data_dir "${dumpdir}/raw/${set_name}${suffix}" --output_dir "${folder}"
            --references "$([ "$1" = references ] && echo true || echo false)"
            --states "$(needed "$1" states)" --memory "$(needed "$1" memory)"
            --unpadded "$(needed "$1" unpadded)"
            --drop_fraction "${drop_fraction}" --ngpu "$((ngpu > 0))"
            --max_compression_ratio "${max_compression_ratio}")
        [ -z "${labels_config}" ] || command+=(--config "${labels_config}")
        [ "${ngpu}" -gt 0 ] || command+=(--encoder_precision int8)
        [ "${ngpu}" -gt 0 ] || [ -n "${labels_config}" ] || command+=(--decoder_precision int8)
        if [ "${states_nj}" -gt 1 ]; then
            python3 -m espnet_medusa.bin.stage run_jobs --title "${folder}" \
                --cmd "${states_prefix}" \
                --spread_gpus "$([ "${ngpu}" -gt 0 ] && echo true || echo false)" \
                "JOB=1:${states_nj}" "${folder}/cache_states.JOB.log" -- \
                "${command[@]}" --jobs "${states_nj}" --job JOB
        fi
        [ "$(needed "$1" audio)" = false ] ||
            command+=(--labelled_dir "${dumpdir}/raw/${set_name}_written${suffix}")
        status=0
        python3 -m espnet_medusa.bin.stage run_command --cmd "${states_prefix}" \
            --log "${folder}/cache_states.log" -- "${command[@]}" || status=$?
        [ "${status}" -eq 0 ] || [ "${status}" -eq 3 ] || exit "${status}"
        [ "${status}" -eq 0 ] || incomplete=true
    done
}

trained() { # SYSTEM: train it and decode with it
    local learns=(--stage 11) count=${num_heads} ways=${with_heads} training=${asr_args}
    local kind states_dir
    kind=$(labels_of "$1")
    states_dir=${dumpdir}/states_${kind}
    [[ ! $1 =~ _([0-9]+)heads$ ]] || count=${BASH_REMATCH[1]}
    if [[ $1 == finetune* ]]; then
        ways=${without_heads}
    elif [[ $1 == ctc* ]]; then
        ways=conf/decode/ctc_draft.yaml
    elif [ -n "${count}" ]; then
        training="--decoder_conf heads_conf.num_heads=${count} ${training}"
    fi
    if [ "${stage}" -le 11 ]; then
        if on_states "$1"; then
            cache_states "${kind}"
            learns=(--stage 11 --states_dir "${states_dir}" --states_memory "$(reads "$1")")
            if [[ $1 != ctc* ]]; then
                learns+=(--pretrained_model
                    "${states_dir}/${train_set}${train_suffix}/token_counts.pth")
                [ -z "${draft_vocab_size}" ] ||
                    training="--model_conf draft_vocab_size=${draft_vocab_size} ${training}"
            fi
        elif [ "${kind}" = written ]; then
            cache_states "${kind}"
            learns=(--stage 10 --train_set "${train_set}_written"
                --valid_set "${valid_set}_written" --asr_stats_dir "${expdir}/asr_stats_written")
        fi
        asr --stop_stage 11 "${learns[@]}" --asr_config "$(config_of "$1")" \
            --asr_args "${training}" --asr_tag "$1"
    fi
    [ "${stop_stage}" -lt 12 ] || asr --stage "$((stage > 12 ? stage : 12))" \
        --stop_stage "$(until_stage 15)" --asr_config "$(config_of "$1")" \
        --asr_args "${training}" --asr_tag "$1" \
        --inference_asr_model valid.loss.best.pth --inference_configs "${ways}"
}

if [ "${stage}" -le "${data_stages}" ]; then
    asr --stage "${stage}" --stop_stage "$(until_stage "${data_stages}")" "${data_options[@]}"
fi

for system in "${chosen[@]}"; do
    [ "${stage}" -le 15 ] && [ "${stop_stage}" -ge 11 ] || continue
    if [ "${system}" = vanilla ]; then
        vanilla
    else
        trained "${system}"
    fi
done

report_on() { # OUTPUT OPTION ...: status 3 means that some sets are listed as not complete
    local status=0
    python3 -m espnet_medusa.bin.report "${experiments[@]}" --output "$@" || status=$?
    [ "${status}" -eq 0 ] || [ "${status}" -eq 3 ] || exit "${status}"
    [ "${status}" -eq 0 ] || incomplete=true
}

if [ "${stop_stage}" -ge 16 ]; then
    # Include experiments of earlier calls.
    experiments=()
    for folder in "${expdir}"/asr_*; do
        ! compgen -G "${folder}/*/*/text" > /dev/null || experiments+=("${folder}")
    done
    [ ${#experiments[@]} -gt 0 ] || fail "${expdir}: nothing is decoded yet; run stages 11 to 13"
    baseline=()
    ! compgen -G "${expdir}/asr_vanilla/baseline*/*/text" > /dev/null ||
        baseline=(--baseline "${expdir}/asr_vanilla/baseline")
    report_on "${expdir}/DECODING.md" "${baseline[@]}"
    [ -z "${report}" ] || report_on "${expdir}/RESULTS.md" --config "${report}"
fi
[ "${incomplete}" = false ] || exit 3
