#!/usr/bin/env bash
# VoxPopuli with Whisper: pretrained, fine-tuned, and with Medusa heads (linear, block).
# usage: --lang de                           supervised: the corpus's transcripts
# usage: --lang cs --setup self_supervised   Whisper's own texts of unlabelled audio
# usage: Other options, such as --stage 12, go to whisper.sh and asr.sh and override those below.
# usage: A missing corpus is downloaded (hundreds of GB).
set -euo pipefail

# options
lang=de             # cs de en es et fi fr hr hu it lt nl pl ro sk sl
setup=supervised    # supervised or self_supervised
voxpopuli=          # the corpus: a folder with raw_audios or transcribed_data
text=raw            # transcripts: raw (punctuation, case) or normalized
years="2019 2020"   # years of the unlabelled sessions; these two are VoxPopuli's 10k subset
segmentation=silence    # segments of the unlabelled sessions: silence, official, auto (README)
valid_fraction=0.05 # share of the unlabelled segments to validate on, in whole sessions
margin_s=2          # seconds around test utterances that are not trained on
expdir=             # default: exp/<lang>, exp/<lang>_self_supervised
data_nj=4           # audio files that stage 1 reads in parallel
# end of options

# shellcheck source-path=SCRIPTDIR source=../../TEMPLATE/asr1/parse_options.sh
. ../../TEMPLATE/asr1/parse_options.sh
[[ " $* " != *" --help "* ]] || ./whisper.sh --help
parse_known_options run.sh "$@"
require_whole_numbers data_nj
refuse_white_space voxpopuli # --local_data_opts is split into words

case ${setup} in
supervised)
    suffix=
    learning=()
    ;;
self_supervised)
    suffix=_unlabelled
    learning=(--labels written --labels_config conf/decode/beam5_baseline.yaml --require_text false
        --on_bad skip)
    ;;
*)
    echo "run.sh: --setup ${setup}: allowed are supervised and self_supervised" >&2
    exit 2
    ;;
esac
expdir=${expdir:-exp/${lang}${suffix:+_self_supervised}}
data_opts="--lang ${lang} --setup ${setup} --text ${text} --nj ${data_nj} --years ${years}"
data_opts+=" --segmentation ${segmentation} --valid_fraction ${valid_fraction}"
data_opts+=" --margin_s ${margin_s}${voxpopuli:+ --voxpopuli ${voxpopuli}}"

# Whisper is trained on text with punctuation and case; scoring ignores both.
./whisper.sh --lang "${lang}" --expdir "${expdir}" --local_data_opts "${data_opts}" \
    --train_set "train_${lang}${suffix}" --valid_set "dev_${lang}${suffix}" \
    --test_sets "test_${lang}" --score_cleaner whisper_basic "${learning[@]}" \
    --heads_decodings "exact typical_penalty190 beam5" --assistant openai/whisper-tiny \
    --report conf/report/voxpopuli.yaml "${other_options[@]}"
