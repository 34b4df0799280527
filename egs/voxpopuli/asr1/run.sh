#!/usr/bin/env bash
# VoxPopuli with Whisper: as it is, fine-tuned, and with Medusa heads (linear, block).
# usage: --lang de                           supervised: the corpus's transcripts
# usage: --lang cs --setup self_supervised   what Whisper itself writes for unlabelled audio
# usage: Options that are not listed here go to whisper.sh and asr.sh, such as --stage 12, and win
# usage: over those below. The corpus is downloaded where it is missing (hundreds of GB).
set -euo pipefail

# options
lang=de             # cs de en es et fi fr hr hu it lt nl pl ro sk sl
setup=supervised    # supervised or self_supervised
voxpopuli=          # the corpus: a folder with raw_audios or transcribed_data
text=raw            # transcripts: raw (punctuation, case) or normalized
years="2019 2020"   # of the unlabelled sessions; these two are VoxPopuli's 10k subset
segmentation=silence    # of the unlabelled sessions: cut at silences, official, or auto (README)
drop_fraction=0.05  # share of Whisper's texts to drop as their length fits the audio least
valid_fraction=0.05 # share of Whisper's texts to validate on, in whole sessions
margin_s=2          # what lies nearer to the test set, in seconds of its session, goes with it
label_stage=1       # Whisper's texts: 1 segment, 2 format, 3 transcribe, 4 select, 5 all is done
stage=1             # first stage; above 1 Whisper's texts are there
expdir=             # default: exp/<lang>, exp/<lang>_self_supervised
data_nj=4           # audio files that stage 1 reads at a time
# end of options

# shellcheck source-path=SCRIPTDIR source=../../TEMPLATE/asr1/parse_options.sh
. ../../TEMPLATE/asr1/parse_options.sh
[[ " $* " != *" --help "* ]] || ./whisper.sh --help
parse_known_options run.sh "$@"
require_whole_numbers stage label_stage data_nj

case ${setup} in
supervised) suffix= ;;
self_supervised) suffix=_pseudo ;;
*)
    echo "run.sh: --setup ${setup}: allowed are supervised and self_supervised" >&2
    exit 2
    ;;
esac
expdir=${expdir:-exp/${lang}${suffix:+_self_supervised}}
data_opts="--lang ${lang} --setup ${setup} --text ${text} --nj ${data_nj} --years ${years}"
data_opts+=" --segmentation ${segmentation}${voxpopuli:+ --voxpopuli ${voxpopuli}}"
# Whisper is trained on text with punctuation and case; scores leave both out.
common=(--lang "${lang}" --expdir "${expdir}" --local_data_opts "${data_opts}"
    --score_cleaner whisper_basic)

incomplete=false
run() { # COMMAND ...: 3 says that some utterances failed, which were named; the others are there
    local status=0
    "$@" || status=$?
    [ "${status}" -eq 0 ] || [ "${status}" -eq 3 ] || exit "${status}"
    [ "${status}" -eq 0 ] || incomplete=true
}

if [ -n "${suffix}" ] && [ "${stage}" -le 1 ]; then
    run local/pseudo_labels.sh --stage "${label_stage}" --drop_fraction "${drop_fraction}" \
        --valid_fraction "${valid_fraction}" --margin_s "${margin_s}" \
        "${common[@]}" "${other_options[@]}"
    stage=2
fi

run ./whisper.sh --stage "${stage}" --train_set "train_${lang}${suffix}" \
    --valid_set "dev_${lang}${suffix}" --test_sets "test_${lang}" \
    --heads_decodings "exact typical_penalty190 beam5" --assistant openai/whisper-tiny \
    --report conf/report/voxpopuli.yaml "${common[@]}" "${other_options[@]}"
[ "${incomplete}" = false ] || exit 3
