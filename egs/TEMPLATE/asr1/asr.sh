#!/usr/bin/env bash
# ESPnet's ASR recipe, stage by stage, without Kaldi or an ESPnet checkout.
# usage: Stages: 1 data, 2 speed perturbation, 3 format, 4 filter, 5 tokens, 6-8 LM, 9 n-gram,
# usage:         10 statistics, 11 training, 12 decoding, 13 scoring, 14 pack, 15 upload
set -euo pipefail

template=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
rerun=$(printf '%q ' "$0" "$@")

# options
stage=1                 # first stage
stop_stage=10000        # last stage
skip_stages=            # stages to skip, such as "2 9"
skip_data_prep=false    # skip stages 1-5
skip_train=false        # skip stages 2, 5-11 and the training sets
skip_eval=false         # skip stages 12-13
skip_packing=true       # skip stage 14
skip_upload_hf=true     # skip stage 15
ngpu=1                  # GPUs for training and, with gpu_inference, decoding; 0: CPU
train_nj=1              # CPU processes that share each training batch (with --ngpu 0)
max_restarts=0          # maximum restarts of stage 11 after a process has failed; training resumes
                        # after the last epoch
num_nodes=1             # nodes that share training, each with ngpu or train_nj (--cmd_backend slurm)
nj=                     # maximum jobs for data preparation and statistics; default: 32, without a
                        # cluster at most one per core
inference_nj=           # maximum jobs for decoding; default: as nj, or one per GPU
gpu_inference=false     # decode on GPUs; the jobs take them in turn
cmd_backend=${cmd_backend:-local}   # where jobs run, see cmd.sh: local, slurm, sge
python=python3          # command that runs ESPnet's modules: python3 or espnet-medusa-python
dumpdir=dump            # formatted data
expdir=exp              # experiments
data_dir=               # existing Kaldi directories DIR/<set>, instead of local/data.sh
train_set=              # name of the training set
valid_set=              # name of the validation set
test_sets=              # names of the test sets
eval_valid_set=false    # decode the validation set too
local_data_opts=        # options for local/data.sh
speed_perturb_factors=  # such as "0.9 1.0 1.1"
feats_type=raw          # only raw is supported
audio_format=flac.ark   # flac.ark, flac or wav
fs=16k                  # sample rate
allow_pipes=false       # run commands in wav.scp
require_text=true       # whether training sets need transcripts in stages 1 to 4
on_bad=stop             # on bad training audio in stage 3: stop, or skip (and name it)
max_duration=30         # maximum seconds of audio; stage 3 names and refuses longer audio
longform=false          # test audio of any length: stage 3 accepts it, stage 12 decodes it with a
                        # sliding window
min_wav_duration=0.1    # minimum seconds of training utterances; shorter ones are dropped
max_wav_duration=20     # maximum seconds of training utterances; longer ones are dropped
lang=noinfo             # language, used in names; with whisper_model, also in the prompt
token_type=bpe          # bpe, char, word, hugging_face, whisper_en, whisper_multilingual
whisper_model=          # for whisper_*: hub name, folder or OpenAI's .pt file to start from
token_listdir=          # default data/<lang>_token_list, with data_dir <dumpdir>/token_list
token_list=             # existing token list, replaces stage 5; whisper_* needs it or whisper_model
bpemodel=               # tokenizer of the token list; default: that of stage 5; in scoring, the
                        # experiment's
nbpe=30                 # tokens of bpe
bpemode=unigram         # sentencepiece model: unigram, bpe
bpe_train_text=         # text to train bpe on; default: that of the training set
bpe_nlsyms=none         # symbols that bpe never splits: a file, or "<a>,<b>"
bpe_char_cover=1.0      # share of characters that bpe must cover
bpe_input_sentence_size=100000000   # maximum sentences that bpe reads
hugging_face_model_name_or_path=    # tokenizer for hugging_face
cleaner=none            # ESPnet text cleaner for training text and references
hyp_cleaner=none        # text cleaner for hypotheses; with whisper_* tokens: the references'
score_cleaner=          # text cleaner for both references and hypotheses, only for scoring
g2p=none                # ESPnet grapheme to phoneme conversion
nlsyms_txt=none         # file of symbols that are removed before scoring
use_lm=false            # language model; Whisper decoders need none
lm_tag=                 # name of the language model
lm_config=              # its training configuration
lm_args=                # more options for its training
lm_exp=                 # its folder
lm_train_text=          # its training text, such as "A B"; default: that of the training set
lm_dev_text=            # its validation text; default: that of the validation set
lm_test_text=           # text for its perplexity; default: that of the first test set
inference_lm=valid.loss.ave.pth     # its checkpoint for decoding
use_ngram=false         # n-gram model, made with KenLM's lmplz
ngram_num=3             # its order
ngram_exp=              # its folder
train_module=espnet_medusa.bin.asr_train            # ESPnet's asr_train or a drop-in for it
inference_module=espnet_medusa.bin.asr_inference    # ESPnet's asr_inference or a drop-in
asr_config=             # training configuration
asr_args=               # more options for training
asr_tag=                # name of the experiment
asr_exp=                # its folder; default <expdir>/asr_<asr_tag>
asr_stats_dir=          # its statistics
states_dir=             # train on cached states of a frozen Whisper, DIR/<set>, not on audio
states_memory=memory    # encoder output to use: memory, unpadded (without padding to 30 s) or none
memory_dir=             # train on a frozen encoder's output, which stage 10 caches in DIR/<set>
pretrained_model=       # initial weights, such as "FILE1 FILE2:src_key:dst_key"
ignore_init_mismatch=false          # skip weights of another shape
feats_normalize=global_mvn          # global_mvn, utterance_mvn, or "" for none
asr_speech_fold_length=800          # frames, for batch_type folded
asr_text_fold_length=150            # tokens, for batch_type folded
lm_fold_length=150      # tokens, for the language model
batch_size=             # of decoding; default: the decoding configuration's
inference_dtype=        # of decoding: float32, float16, float64; default: the configuration's
inference_config=       # decoding configuration
inference_configs=      # several configurations, each decoded and scored
inference_args=         # more options for decoding
inference_tag=          # name of the results' folder (with one configuration)
inference_asr_model=valid.acc.ave.pth   # checkpoint for decoding
allow_missing=false     # a missing hypothesis counts as deletions; otherwise it is an error
sclite=                 # path of NIST's sclite; default: our own
score_opts=             # options for sclite, such as -s
hf_repo=                # Hugging Face repository for stage 15
# end of options

# shellcheck source=/dev/null
. "${template}/parse_options.sh"
parse_options "${template}/asr.sh" "$@"
most_jobs=32
if [ "${cmd_backend}" = local ]; then # each job loads the model
    cores=$(getconf _NPROCESSORS_ONLN) # nproc returns OMP_NUM_THREADS
    [ "${cores}" -gt "${most_jobs}" ] || most_jobs=${cores}
    [ "${gpu_inference}" = false ] || inference_nj=${inference_nj:-$((ngpu > 1 ? ngpu : 1))}
fi
nj=${nj:-${most_jobs}}
inference_nj=${inference_nj:-${most_jobs}}
require_whole_numbers stage stop_stage ngpu train_nj max_restarts num_nodes nj inference_nj nbpe \
    ngram_num
[ -z "${batch_size}" ] || require_whole_numbers batch_size
refuse_commas dumpdir train_set valid_set test_sets lm_train_text lm_dev_text lm_test_text \
    states_dir memory_dir
# shellcheck source-path=SCRIPTDIR source=path.sh
. ./path.sh
# shellcheck source-path=SCRIPTDIR source=cmd.sh
. ./cmd.sh

log() {
    echo "$(date '+%Y-%m-%dT%H:%M:%S') (asr.sh) $*"
}

fail() {
    echo "asr.sh: error: $*" >&2
    exit 2
}

incomplete=()
is_fine() { # STATUS REASON: status 3 means that some utterances failed, with a message for each
    [ "$1" -eq 0 ] || [ "$1" -eq 3 ] || exit "$1"
    [ "$1" -eq 0 ] || incomplete+=("$2")
}

status=0
attempt() { # COMMAND ...: set status; an error ends only the command (set -e, unlike in `COMMAND || ...`)
    set +e
    (
        set -e
        "$@"
    )
    status=$?
    set -e
    [ "${status}" -eq 0 ] || [ "${status}" -eq 1 ] || [ "${status}" -eq 3 ] || exit "${status}"
}

bad_sets=
fail_data() { # after all sets were checked and their problems printed
    echo "asr.sh: error: correct the data of${bad_sets}: see above" >&2
    exit 1
}

tool() { # NAME [OPTION ...]
    python3 -m espnet_medusa.bin.stage "$@"
}

current= # stage
active() { # STAGE TITLE: return whether the stage is selected
    [ "${stage}" -le "$1" ] && [ "${stop_stage}" -ge "$1" ] || return 1
    [[ " ${skip_stages} " != *" $1 "* ]] || return 1
    end_stage
    current=$1
    stage_began=${SECONDS}
    log "Stage $1: $2"
}

end_stage() {
    [ -z "${current}" ] || log "Took $((SECONDS - stage_began)) s: stage ${current}"
    current=
}

flat() { # TEXT: convert options to a part of a name, as ESPnet does
    sed -e 's/--/_/g' -e 's/[ |=/]//g' <<< "$1"
}

stem() { # FILE: its name without folder and extension
    local name
    name=$(basename "$1")
    echo "${name%.*}"
}

# Names ----------------------------------------------------------------------------------------

[ "${feats_type}" = raw ] || fail "--feats_type ${feats_type}: allowed: raw"
[ "${train_nj}" -eq 1 ] || [ "${ngpu}" -eq 0 ] || fail "--train_nj ${train_nj} needs --ngpu 0"
[ "${num_nodes}" -eq 1 ] || [ "${cmd_backend}" = slurm ] ||
    fail "--num_nodes ${num_nodes}: only with --cmd_backend slurm"
case ${feats_normalize} in
global_mvn | utterance_mvn | "") ;;
*) fail "--feats_normalize ${feats_normalize}: allowed are global_mvn, utterance_mvn and ''" ;;
esac
[ -z "${memory_dir}" ] || [ -z "${states_dir}" ] ||
    fail "--memory_dir ${memory_dir}: not with --states_dir, which already has the training input"
read -r -a tests <<< "${test_sets}"
source_dir=${data_dir:-data}
features=${dumpdir}/raw
[ "${audio_format}" = flac.ark ] && sound_type=kaldi_ark || sound_type=sound
[ "${sound_type}" = kaldi_ark ] || [[ ${audio_format} =~ ^(flac|wav)$ ]] ||
    fail "--audio_format ${audio_format}: allowed are flac.ark, flac and wav"

units=
[ "${token_type}" != bpe ] || units=${nbpe}
token_kind=${token_type} # ESPnet's name of the token type
suffix=${speed_perturb_factors:+_sp}
token_listdir=${token_listdir:-${data_dir:+${dumpdir}/token_list}}
token_listdir=${token_listdir:-data/${lang}_token_list}
made_tokens=
given_bpemodel=${bpemodel}
if [ -z "${token_list}" ]; then
    made_tokens=true
    case ${token_type} in
    bpe)
        token_list=${token_listdir}/bpe_${bpemode}${nbpe}/tokens.txt
        bpemodel=${token_listdir}/bpe_${bpemode}${nbpe}/bpe.model
        ;;
    hugging_face)
        token_list=${token_listdir}/hugging_face_${hugging_face_model_name_or_path//\//-}/tokens.txt
        bpemodel=${hugging_face_model_name_or_path}
        ;;
    whisper_en | whisper_multilingual)
        [ -n "${whisper_model}" ] || fail "--token_type ${token_type}: give --whisper_model, or" \
            "for ESPnet's own Whisper the model's tokens with --token_list FILE"
        token_kind=hugging_face
        token_list=${token_listdir}/${token_type}_$(basename "${whisper_model}" .pt)/tokens.txt
        bpemodel=$(dirname "${token_list}")/tokenizer
        ;;
    *) token_list=${token_listdir}/${token_type}/tokens.txt ;;
    esac
elif [[ ${token_type} == whisper_* ]]; then
    # ESPnet takes the kind of Whisper tokens from this option.
    bpemodel=${bpemodel:-${token_type}}
fi
[ -z "${whisper_model}" ] || [ "${token_kind}" != "${token_type}" ] ||
    fail "--whisper_model ${whisper_model}: only with --token_type whisper_en or" \
        "whisper_multilingual, without --token_list"
[[ ${token_type} != whisper_* ]] || [ "${hyp_cleaner}" != none ] || hyp_cleaner=${cleaner}

if [ -z "${asr_tag}" ]; then
    asr_tag=train
    [ -z "${asr_config}" ] || asr_tag=$(stem "${asr_config}")
    asr_tag+=_${feats_type}
    [ "${lang}" = noinfo ] || asr_tag+=_${lang}
    asr_tag+=_${token_type}${units}$(flat "${asr_args}")${suffix}
fi
if [ -z "${asr_stats_dir}" ]; then
    asr_stats_dir=${expdir}/asr_stats_${feats_type}
    [ "${lang}" = noinfo ] || asr_stats_dir+=_${lang}
    asr_stats_dir+=_${token_type}${units}${suffix}
fi
asr_exp=${asr_exp:-${expdir}/asr_${asr_tag}}
if [ -z "${lm_tag}" ]; then
    lm_tag=train
    [ -z "${lm_config}" ] || lm_tag=$(stem "${lm_config}")
    [ "${lang}" = noinfo ] || lm_tag+=_${lang}
    lm_tag+=_${token_type}${units}$(flat "${lm_args}")
fi
lm_stats_dir=${expdir}/lm_stats_${lang}_${token_type}${units}
lm_exp=${lm_exp:-${expdir}/lm_${lm_tag}}
ngram_exp=${ngram_exp:-${expdir}/ngram}

tag_of() { # CONFIG: print the inference tag
    local tag=inference
    if [ -n "${inference_tag}" ]; then
        echo "${inference_tag}"
        return
    fi
    [ -z "$1" ] || tag=$(stem "$1")
    tag+=$(flat "${inference_args}")
    [ "${use_lm}" = false ] || tag+=_lm_$(basename "${lm_exp}")_$(stem "${inference_lm}")
    [ "${use_ngram}" = false ] || tag+=_ngram_$(basename "${ngram_exp}")_${ngram_num}gram
    echo "${tag}_asr_model_$(stem "${inference_asr_model//\//_}")"
}

read -r -a configs <<< "${inference_configs}"
[ -z "${inference_config}" ] || configs+=("${inference_config}")
[ ${#configs[@]} -gt 0 ] || configs=("")
[ -z "${inference_tag}" ] || [ ${#configs[@]} -eq 1 ] ||
    fail "--inference_tag ${inference_tag} names one result; ${#configs[@]} configurations are given"

train_source=${train_set}
if [ -n "${speed_perturb_factors}" ]; then
    train_source=${train_set}
    train_set=${train_set}_sp
fi
# Stage 4 leaves utterances out of training sets, but not of dump/raw/org/SET.
validation=
[ "${eval_valid_set}" = false ] || [[ " ${tests[*]} " == *" ${valid_set} "* ]] ||
    validation=org/${valid_set}
for index in "${!tests[@]}"; do
    set_name=${tests[index]}
    if [ "${set_name}" = "${valid_set}" ] || [ "${set_name}" = "${train_set}" ] ||
        [ -e "${features}/org/${set_name}" ]; then
        tests[index]=org/${set_name}
    fi
done
list_decode_sets() {
    decode_sets=("${tests[@]}")
    [ -z "${validation}" ] || decode_sets+=("${validation}")
}
list_decode_sets

# Options that several commands share. As in ESPnet, *_args are split into words.
tokens=(--token_type "${token_kind}" --token_list "${token_list}" --bpemodel "${bpemodel:-none}"
    --non_linguistic_symbols "${nlsyms_txt}" --cleaner "${cleaner}" --g2p "${g2p}")
read -r -a more_asr <<< "${asr_args}"
read -r -a more_lm <<< "${lm_args}"
read -r -a more_inference <<< "${inference_args}"
read -r -a initial <<< "${pretrained_model}"
asr_data=(
    --train_data_path_and_name_and_type "${features}/${train_set}/wav.scp,speech,${sound_type}"
    --train_data_path_and_name_and_type "${features}/${train_set}/text,text,text"
    --valid_data_path_and_name_and_type "${features}/${valid_set}/wav.scp,speech,${sound_type}"
    --valid_data_path_and_name_and_type "${features}/${valid_set}/text,text,text")
if [ -n "${states_dir}" ]; then
    asr_data=()
    for part in "train ${train_set}" "valid ${valid_set}"; do
        states=${states_dir}/${part#* }
        for entry in states.scp,speech,numpy_ark "${states_memory}.scp,memory,numpy_ark" \
            "${states_memory}_frames.scp,memory_frames,numpy_ark" text_int,text,text_int; do
            [ ! -f "${states}/${entry%%,*}" ] ||
                asr_data+=("--${part% *}_data_path_and_name_and_type" "${states}/${entry}")
        done
    done
fi
memory_data=()
for part in "train ${train_set}" "valid ${valid_set}"; do
    for entry in "${memory_dir}/${part#* }/memory.scp,memory,numpy_ark" \
        "${features}/${part#* }/text,text,text"; do
        memory_data+=("--${part% *}_data_path_and_name_and_type" "${entry}")
    done
done
asr_common=("${tokens[@]}" --use_preprocessor true --frontend_conf "fs=${fs}")
[ -z "${asr_config}" ] || asr_common+=(--config "${asr_config}")
case ${feats_normalize} in
"") normalization=(--normalize null) ;;
global_mvn)
    normalization=(--normalize global_mvn
        --normalize_conf "stats_file=${asr_stats_dir}/train/feats_stats.npz")
    ;;
*) normalization=(--normalize "${feats_normalize}") ;;
esac
[ ${#initial[@]} -eq 0 ] || initial=(--init_param "${initial[@]}")
languages=${asr_stats_dir}/utt2lang
if [ -n "${whisper_model}" ]; then
    for half in encoder decoder; do
        asr_common+=("--${half}_conf" "whisper_model=${whisper_model}")
    done
    [ "${lang}" = noinfo ] || asr_common+=(--preprocessor_conf "language=${lang}")
fi
train_prefix=${train_cmd}
[ "${ngpu}" -eq 0 ] || train_prefix=${cuda_cmd}
decode_prefix=${decode_cmd}
decode_ngpu=0
if [ "${gpu_inference}" = true ]; then
    decode_prefix=${cuda_cmd}
    decode_ngpu=1
fi
memory_prefix= # for the frozen encoder, which runs on this machine or in a Slurm job
nodes_option=
if [ "${cmd_backend}" = slurm ]; then # as in ESPnet's recipes
    memory_prefix="${train_prefix} --gpu $((ngpu > 0))"
    train_prefix+=" --gpu ${ngpu}"
    decode_prefix+=" --gpu ${decode_ngpu}"
    [ "${num_nodes}" -eq 1 ] || nodes_option="--num_nodes ${num_nodes}"
fi
longest_test=${max_duration}
[ "${longform}" = false ] || longest_test=none
uses_tests=false

[ "${skip_data_prep}" = false ] || skip_stages+=" 1 2 3 4 5"
[ "${skip_train}" = false ] || skip_stages+=" 2 5 6 7 8 9 10 11"
[ "${skip_eval}" = false ] || skip_stages+=" 12 13"
[ "${use_lm}" = true ] || skip_stages+=" 6 7 8"
[ "${use_ngram}" = true ] || skip_stages+=" 9"
[ -n "${speed_perturb_factors}" ] || skip_stages+=" 2"
[ -n "${made_tokens}" ] || skip_stages+=" 5"
[ "${skip_packing}" = false ] || skip_stages+=" 14"
[ "${skip_upload_hf}" = false ] || skip_stages+=" 15"

train_sets=()
if [ "${skip_train}" = false ] && [ "${stage}" -le 11 ]; then
    [ -n "${train_set}" ] && [ -n "${valid_set}" ] ||
        fail "--train_set and --valid_set are needed (or --skip_train true)"
    train_sets=("${train_set}" "${valid_set}")
fi
[ "${skip_eval}" = true ] || [ "${stop_stage}" -lt 12 ] || [ ${#decode_sets[@]} -gt 0 ] ||
    fail "--test_sets is needed (or --skip_eval true)"

# Data -----------------------------------------------------------------------------------------

is_scored() { # SET: print whether a training or validation set is also decoded and scored
    [ "$1" = "${valid_set}" ] && echo "${eval_valid_set}" || echo false
}

validate() { # SET REQUIRE_TEXT SCORED
    tool validate_data_dir "${data_dir}/$1" --allow_pipes "${allow_pipes}" --speaker_order false \
        --require_text "$2" --allow_empty_text "$3" --scored "$3"
}

if active 1 "Data"; then
    if [ -n "${data_dir}" ]; then
        [ ${#train_sets[@]} -eq 0 ] || train_sets[0]=${train_source}
        for set_name in "${train_sets[@]}"; do
            validate "${set_name}" "${require_text}" "$(is_scored "${set_name}")" ||
                bad_sets+=" ${set_name}"
        done
        for set_name in "${tests[@]#org/}"; do
            validate "${set_name}" true true || log "Stage 3 skips these utterances of ${set_name}"
        done
        [ -z "${bad_sets}" ] || fail_data
        [ ${#train_sets[@]} -eq 0 ] || train_sets[0]=${train_set}
    else
        read -r -a more_data <<< "${local_data_opts}"
        status=0
        local/data.sh "${more_data[@]}" || status=$?
        is_fine "${status}" "stage 1: local/data.sh left out the utterances named above"
        for bad in data/*/bad_utterances; do
            [ ! -s "${bad}" ] || log "$(wc -l < "${bad}") utterances left out, see ${bad}"
        done
    fi
fi

keep_present() { # FOLDER STAGE: drop test sets that are missing, unless all are
    local set_name folder present=() absent=()
    for set_name in "${tests[@]}"; do
        folder=$1/${set_name}
        [ "$1" != "${source_dir}" ] || folder=$1/${set_name#org/}
        if [ -e "${folder}/wav.scp" ]; then
            present+=("${set_name}")
        else
            absent+=("stage $2: ${folder}/wav.scp is not there")
        fi
    done
    if [ ${#present[@]} -gt 0 ]; then
        tests=("${present[@]}")
        incomplete+=("${absent[@]}")
    fi
}

if active 2 "Speed perturbation: ${speed_perturb_factors}"; then
    tool perturb_speed --data_dir "${source_dir}/${train_source}" --nj "${nj}" \
        --output_dir "${dumpdir}/perturbed/${train_set}" --factors "${speed_perturb_factors}" \
        --allow_pipes "${allow_pipes}"
fi

format() { # FOLDER OUTPUT ON_BAD REQUIRE_TEXT MAX_DURATION SCORED
    local status=0
    tool format_data --data_dir "$1" --output_dir "$2" --fs "${fs}" \
        --audio_format "${audio_format}" --nj "${nj}" --allow_pipes "${allow_pipes}" \
        --max_duration "$5" --on_bad "$3" --require_text "$4" --allow_empty_text "$6" \
        --scored "$6" || status=$?
    [ "${status}" -eq 3 ] || return "${status}" # 3: bad audio was left out, with a message for each
}

format_tests() { # list test sets that cannot be used, and go on with the others
    local set_name folder usable=()
    for set_name in "${tests[@]}"; do
        folder=${source_dir}/${set_name#org/}
        status=0
        if [[ " ${train_sets[*]/#/org/} " != *" ${set_name} "* ]]; then # else it is formatted already
            attempt format "${folder}" "${features}/${set_name}" skip true "${longest_test}" \
                true
        fi
        if [ "${status}" -eq 0 ]; then
            usable+=("${set_name}")
        else
            incomplete+=("stage 3: ${folder} was not formatted, see above")
        fi
    done
    [ ${#tests[@]} -eq 0 ] || [ ${#usable[@]} -gt 0 ] || exit 1
    tests=("${usable[@]}")
}

if active 3 "Format audio: ${source_dir} -> ${features}"; then
    uses_tests=true
    keep_present "${source_dir}" 1
    for set_name in "${train_sets[@]}"; do
        folder=${source_dir}/${set_name}
        [ -z "${suffix}" ] || [ "${set_name}" != "${train_set}" ] ||
            folder=${dumpdir}/perturbed/${set_name}
        format "${folder}" "${features}/org/${set_name}" "${on_bad}" "${require_text}" \
            "${max_duration}" "$(is_scored "${set_name}")" || bad_sets+=" ${set_name}"
    done
    [ -z "${bad_sets}" ] || fail_data
    format_tests
fi

if active 4 "Leave out too short and too long training data"; then
    for set_name in "${train_sets[@]}"; do
        tool filter_data --input_dir "${features}/org/${set_name}" \
            --output_dir "${features}/${set_name}" --fs "${fs}" \
            --min_wav_duration "${min_wav_duration}" --max_wav_duration "${max_wav_duration}"
    done
fi

make_tokens() {
    local token_texts=("${features}/${train_set}/text") symbols=${nlsyms_txt}
    if [ "${token_type}" = bpe ]; then
        [ -z "${bpe_train_text}" ] || read -r -a token_texts <<< "${bpe_train_text}"
        symbols=${bpe_nlsyms}
    fi
    tool make_tokens --text "${token_texts[@]}" --token_list "${token_list}" \
        --token_type "${token_type}" --nbpe "${nbpe}" --bpe_mode "${bpemode}" \
        --character_coverage "${bpe_char_cover}" --cleaner "${cleaner}" \
        --input_sentence_size "${bpe_input_sentence_size}" --non_linguistic_symbols "${symbols}" \
        --hugging_face_model "${hugging_face_model_name_or_path}"
}

if active 5 "Tokens: ${token_list}"; then
    if [ -n "${whisper_model}" ]; then
        tool whisper_tokens --whisper_model "${whisper_model}" --token_type "${token_type}" \
            --token_list "${token_list}" --tokenizer "${bpemodel}"
    else
        make_tokens
    fi
fi

# Language models ------------------------------------------------------------------------------

lm_train_text=${lm_train_text:-${features}/${train_set}/text}
read -r -a lm_texts <<< "${lm_train_text}"
if [ ${#lm_texts[@]} -gt 1 ] && [ ! -e "${lm_train_text}" ]; then
    lm_train_text=${features}/lm_train.txt # ESPnet's name
    if [ "${stage}" -le 9 ] && [ "${stop_stage}" -ge 6 ] && [ "${use_lm}${use_ngram}" != falsefalse ] &&
        [ "${skip_train}" = false ]; then
        tool join_texts --output "${lm_train_text}" "${lm_texts[@]}"
    fi
fi
lm_dev_text=${lm_dev_text:-${features}/${valid_set}/text}
lm_test_text=${lm_test_text:-${features}/${tests[0]:-}/text}
lm_common=("${tokens[@]}" --use_preprocessor true
    --train_data_path_and_name_and_type "${lm_train_text},text,text"
    --valid_data_path_and_name_and_type "${lm_dev_text},text,text")
[ -z "${lm_config}" ] || lm_common+=(--config "${lm_config}")

if active 6 "LM statistics: ${lm_stats_dir}"; then
    jobs=$(tool split_keys --nj "${nj}" --work_dir "${lm_stats_dir}/logdir" --resume false \
        --keys "${lm_train_text}" --output "${lm_stats_dir}/logdir/train.JOB.scp" \
        --keys "${lm_dev_text}" --output "${lm_stats_dir}/logdir/valid.JOB.scp")
    tool run_jobs --title "LM statistics" --cmd "${train_cmd}" \
        "JOB=1:${jobs}" "${lm_stats_dir}/logdir/stats.JOB.log" -- \
        "${python}" -m espnet2.bin.lm_train --collect_stats true "${lm_common[@]}" \
        --train_shape_file "${lm_stats_dir}/logdir/train.JOB.scp" \
        --valid_shape_file "${lm_stats_dir}/logdir/valid.JOB.scp" \
        --output_dir "${lm_stats_dir}/logdir/stats.JOB" --ngpu 0 "${more_lm[@]}"
    tool aggregate_stats --jobs "${jobs}" --job_dir "${lm_stats_dir}/logdir/stats.JOB" \
        --output_dir "${lm_stats_dir}" --token_list "${token_list}" --token_type "${token_type}" \
        --sum_stats false
fi

if active 7 "LM training: ${lm_exp}"; then
    tool run_training --log "${lm_exp}/train.log" --ngpu "${ngpu}" \
        --cmd "${train_prefix} ${nodes_option}" -- \
        "${python}" -m espnet2.bin.lm_train "${lm_common[@]}" --ngpu "${ngpu}" --resume true \
        --train_shape_file "${lm_stats_dir}/train/text_shape.${token_type}" \
        --valid_shape_file "${lm_stats_dir}/valid/text_shape.${token_type}" \
        --fold_length "${lm_fold_length}" --output_dir "${lm_exp}" "${more_lm[@]}"
fi

if active 8 "LM perplexity: ${lm_test_text}"; then
    tool run_jobs --title "LM perplexity" --cmd "${train_prefix}" \
        JOB=1:1 "${lm_exp}/perplexity_test/lm_calc_perplexity.log" -- \
        "${python}" -m espnet2.bin.lm_calc_perplexity --ngpu "${ngpu}" \
        --data_path_and_name_and_type "${lm_test_text},text,text" \
        --train_config "${lm_exp}/config.yaml" --model_file "${lm_exp}/${inference_lm}" \
        --output_dir "${lm_exp}/perplexity_test"
    log "Perplexity: $(cat "${lm_exp}/perplexity_test/ppl")"
fi

if active 9 "N-gram: ${ngram_exp}"; then
    command -v lmplz build_binary > /dev/null ||
        fail "stage 9 needs KenLM's lmplz and build_binary in PATH; or use --use_ngram false"
    mkdir -p "${ngram_exp}"
    cut -d ' ' -f 2- "${lm_train_text}" | lmplz -S 20% --discount_fallback -o "${ngram_num}" \
        > "${ngram_exp}/${ngram_num}gram.arpa"
    build_binary -s "${ngram_exp}/${ngram_num}gram.arpa" "${ngram_exp}/${ngram_num}gram.bin"
fi

# Training -------------------------------------------------------------------------------------

add_languages() {
    [ -z "${whisper_model}" ] || [ ! -f "${languages}" ] ||
        asr_common+=(--preprocessor_conf "utt2lang=${languages}")
}

whisper_shapes() { # the files of ESPnet's statistics, without loading the model
    local set_name
    rm -f "${languages}"
    mkdir -p "${asr_stats_dir}"
    for set_name in "${train_set}" "${valid_set}"; do
        [ ! -f "${features}/${set_name}/utt2lang" ] ||
            cat "${features}/${set_name}/utt2lang" >> "${languages}"
    done
    add_languages
    tool collect_shapes --train_dir "${features}/${train_set}" \
        --valid_dir "${features}/${valid_set}" --output_dir "${asr_stats_dir}" -- \
        "${asr_common[@]}" "${asr_data[@]}" "${more_asr[@]}"
}

statistics() {
    local jobs sum_stats=false
    jobs=$(tool split_keys --nj "${nj}" --work_dir "${asr_stats_dir}/logdir" --resume false \
        --keys "${features}/${train_set}/wav.scp" --output "${asr_stats_dir}/logdir/train.JOB.scp" \
        --keys "${features}/${valid_set}/wav.scp" --output "${asr_stats_dir}/logdir/valid.JOB.scp")
    tool run_jobs --title statistics --cmd "${train_cmd}" \
        "JOB=1:${jobs}" "${asr_stats_dir}/logdir/stats.JOB.log" -- \
        "${python}" -m "${train_module}" --collect_stats true "${asr_common[@]}" "${asr_data[@]}" \
        --train_shape_file "${asr_stats_dir}/logdir/train.JOB.scp" \
        --valid_shape_file "${asr_stats_dir}/logdir/valid.JOB.scp" \
        --output_dir "${asr_stats_dir}/logdir/stats.JOB" --ngpu 0 "${more_asr[@]}"
    [ "${feats_normalize}" != global_mvn ] || sum_stats=true
    tool aggregate_stats --jobs "${jobs}" --job_dir "${asr_stats_dir}/logdir/stats.JOB" \
        --output_dir "${asr_stats_dir}" --token_list "${token_list}" --token_type "${token_type}" \
        --sum_stats "${sum_stats}"
}

cache_memory() { # SET
    local cache=${memory_dir}/$1 status=0
    tool run_command --cmd "${memory_prefix}" --log "${cache}/cache_memory.log" -- \
        python3 -m espnet_medusa.bin.stage cache_memory --data_dir "${features}/$1" \
        --output_dir "${cache}" --ngpu "$((ngpu > 0))" -- \
        "${asr_common[@]}" "${initial[@]}" "${normalization[@]}" "${more_asr[@]}" || status=$?
    [ "${status}" -ne 3 ] || fail "stage 10: the encoder failed on utterances of $1: remove those that" \
        "${cache}/failed_utterances names"
    [ "${status}" -eq 0 ] || exit "${status}"
}

if active 10 "Statistics: ${asr_stats_dir}"; then
    if [ -n "${states_dir}" ]; then
        log "Lengths of states and labels are in ${states_dir}"
    elif [ -n "${whisper_model}" ]; then
        whisper_shapes
    else
        statistics
    fi
    if [ -n "${memory_dir}" ]; then
        log "Outputs of the frozen encoder: ${memory_dir}"
        for set_name in "${train_sets[@]}"; do
            cache_memory "${set_name}"
        done
    fi
fi

if active 11 "Training: ${asr_exp}"; then
    add_languages
    asr_train=(--ngpu "${ngpu}" --resume true --output_dir "${asr_exp}"
        --ignore_init_mismatch "${ignore_init_mismatch}"
        --fold_length "$((asr_speech_fold_length * 100))" --fold_length "${asr_text_fold_length}"
        "${initial[@]}" "${normalization[@]}")
    for part in "train ${train_set}" "valid ${valid_set}"; do
        if [ -n "${states_dir}" ]; then
            shapes=("${states_dir}/${part#* }"/{speech,text}_shape)
        else
            shapes=("${asr_stats_dir}/${part% *}"/{speech_shape,"text_shape.${token_kind}"})
        fi
        asr_train+=("--${part% *}_shape_file" "${shapes[0]}" "--${part% *}_shape_file" "${shapes[1]}")
    done
    [ "${ngpu}" -le 1 ] || asr_train+=(--multiprocessing_distributed true)
    [ -z "${memory_dir}" ] || asr_data=("${memory_data[@]}")
    [ ${#initial[@]} -eq 0 ] || tool check_start --exp_dir "${asr_exp}" "${initial[@]}"
    mkdir -p "${asr_exp}"
    # The later of two equal options wins.
    printf '#!/usr/bin/env bash\n%s --stage 11 "$@"\n' "${rerun}" > "${asr_exp}/run.sh"
    chmod +x "${asr_exp}/run.sh"
    tool run_training --log "${asr_exp}/train.log" --nj "${train_nj}" --ngpu "${ngpu}" \
        --max_restarts "${max_restarts}" \
        --cmd "${train_prefix} ${nodes_option}" -- \
        "${python}" -m "${train_module}" "${asr_common[@]}" "${asr_data[@]}" "${asr_train[@]}" \
        "${more_asr[@]}"
    tool plot_training --exp_dir "${asr_exp}"
fi

# Decoding and scoring -------------------------------------------------------------------------

decode() { # CONFIG TEST_SET: exit status 3 if some utterances failed
    local folder logs jobs merged=0 inference=() keys=${features}/$2/wav.scp
    folder=${asr_exp}/$(tag_of "$1")/$2
    logs=${folder}/logdir
    # Interrupted jobs resume; another split divides their finished results anew.
    jobs=$(tool split_keys --nj "${inference_nj}" --work_dir "${logs}" \
        --keys "${keys}" --output "${logs}/keys.JOB.scp")
    [ -z "$1" ] || inference+=(--config "$1")
    # An option on the command line overrides the configuration.
    [ -z "${batch_size}" ] || inference+=(--batch_size "${batch_size}")
    [ "${longform}" = false ] || inference+=(--longform true)
    [ -z "${inference_dtype}" ] || inference+=(--dtype "${inference_dtype}")
    [ -z "${whisper_model}" ] || [ ! -f "${features}/$2/utt2lang" ] ||
        inference+=(--utt2lang "${features}/$2/utt2lang")
    [ "${use_lm}" = false ] || inference+=(--lm_train_config "${lm_exp}/config.yaml"
        --lm_file "${lm_exp}/${inference_lm}")
    [ "${use_ngram}" = false ] || inference+=(--ngram_file "${ngram_exp}/${ngram_num}gram.bin")
    tool run_jobs --title "$(basename "${asr_exp}") $2" --total_keys "$(wc -l < "${keys}")" \
        --cmd "${decode_prefix}" --spread_gpus "${gpu_inference}" --on_failure wait \
        "JOB=1:${jobs}" "${logs}/asr_inference.JOB.log" -- \
        "${python}" -m "${inference_module}" --ngpu "${decode_ngpu}" \
        --data_path_and_name_and_type "${keys},speech,${sound_type}" \
        --key_file "${logs}/keys.JOB.scp" --asr_train_config "${asr_exp}/config.yaml" \
        --asr_model_file "${asr_exp}/${inference_asr_model}" --output_dir "${logs}/output.JOB" \
        "${inference[@]}" "${more_inference[@]}"
    tool merge_outputs --keys "${keys}" --log_dir "${logs}" --output_dir "${folder}" || merged=$?
    [ "${merged}" -eq 0 ] || [ "${merged}" -eq 3 ] || exit "${merged}"
    tool calculate_rtf --log_dir "${logs}" --fs "${fs}" | tee "${logs}/calculate_rtf.log" ||
        log "No real-time factor for ${folder}"
    exit "${merged}"
}

scoring=(--cleaner "${score_cleaner:-${cleaner}}" --hyp_cleaner "${score_cleaner:-${hyp_cleaner}}"
    --non_linguistic_symbols "${nlsyms_txt}" --allow_missing "${allow_missing}"
    --asr_train_config "${asr_exp}/config.yaml")
[ "${token_type}" != bpe ] || [ -z "${given_bpemodel}" ] ||
    scoring+=(--bpemodel "${given_bpemodel}")
[ -z "${sclite}" ] || scoring+=(--sclite "${sclite}")

declare -A undecoded=() # folders of results
if active 12 "Decoding: ${asr_exp}"; then
    [ "${stop_stage}" -lt 13 ] || [[ " ${skip_stages} " == *" 13 "* ]] ||
        tool check_scoring "${scoring[@]}"
    uses_tests=true
    keep_present "${features}" 3
    list_decode_sets
    for config in "${configs[@]}"; do
        for set_name in "${decode_sets[@]}"; do
            log "Decoding ${set_name}: $(tag_of "${config}")"
            folder=${asr_exp}/$(tag_of "${config}")/${set_name}
            attempt decode "${config}" "${set_name}"
            case ${status} in
            1)
                undecoded[${folder}]=true
                incomplete+=("stage 12: ${folder} was not decoded, see above")
                ;;
            3) incomplete+=("stage 12: see ${folder}/failed_utterances") ;;
            esac
        done
    done
    [ ${#undecoded[@]} -lt $((${#configs[@]} * ${#decode_sets[@]})) ] || exit 1
fi

score() { # CONFIG TEST_SET
    tool score --data_dir "${features}/$2" --output_dir "${asr_exp}/$(tag_of "$1")/$2" \
        "${scoring[@]}" "--sclite_options=${score_opts}"
}

if active 13 "Scoring: ${asr_exp}"; then
    uses_tests=true
    keep_present "${features}" 3
    list_decode_sets
    for config in "${configs[@]}"; do
        for set_name in "${decode_sets[@]}"; do
            [ -z "${undecoded[${asr_exp}/$(tag_of "${config}")/${set_name}]:-}" ] || continue
            score "${config}" "${set_name}" ||
                incomplete+=("stage 13: ${asr_exp}/$(tag_of "${config}")/${set_name} has no score")
        done
    done
    [ ! -f local/score.sh ] || local/score.sh "${asr_exp}"
    status=0
    python3 -m espnet_medusa.bin.report "${asr_exp}" || status=$?
    is_fine "${status}" "stage 13: see the end of ${asr_exp}/RESULTS.md"
    cat "${asr_exp}/RESULTS.md"
fi

# Publishing -----------------------------------------------------------------------------------

packed=${asr_exp}/$(basename "${asr_exp}")_$(stem "${inference_asr_model}").zip

if active 14 "Pack: ${packed}"; then
    packing=()
    for extra in RESULTS.md images; do
        [ ! -e "${asr_exp}/${extra}" ] || packing+=(--option "${asr_exp}/${extra}")
    done
    [ "${use_lm}" = false ] || packing+=(--lm_train_config "${lm_exp}/config.yaml"
        --lm_file "${lm_exp}/${inference_lm}")
    tool pack_model --asr_train_config "${asr_exp}/config.yaml" \
        --asr_model_file "${asr_exp}/${inference_asr_model}" "${packing[@]}" --outpath "${packed}"
fi

if active 15 "Upload: ${hf_repo}"; then
    [ -n "${hf_repo}" ] || fail "stage 15 needs --hf_repo USER/NAME"
    tool upload --packed_model "${packed}" --hf_repo "${hf_repo}"
fi

end_stage
for set_name in "${tests[@]}"; do
    [ "${uses_tests}" = true ] || break
    bad=${features}/${set_name}/bad_utterances
    [ ! -s "${bad}" ] || incomplete+=("stage 3: $(wc -l < "${bad}") utterances, see ${bad}")
    bad=data/${set_name#org/}/bad_utterances
    [ -n "${data_dir}" ] || [ ! -s "${bad}" ] ||
        incomplete+=("stage 1: $(wc -l < "${bad}") utterances, see ${bad}")
done
if [ ${#incomplete[@]} -gt 0 ]; then
    for reason in "${incomplete[@]}"; do
        echo "asr.sh: not complete: ${reason}" >&2
    done
    # Not 1: medusa.sh continues after status 3 and stops after an error.
    exit 3
fi
log "Finished"
