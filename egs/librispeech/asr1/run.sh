#!/usr/bin/env bash
# LibriSpeech with Whisper: pretrained, fine-tuned, and with Medusa heads (linear, block).
# usage: Other options, such as --stage 12, go to whisper.sh and asr.sh and override those below.
# usage: A missing corpus is downloaded (60 GB; --part 5: 0.5 GB and the test sets).
# usage: Table IV needs
# usage: --heads "linear block linear_5heads linear_15heads linear_20heads"
set -euo pipefail

# options
part=960            # hours to train on: 5 (mini_librispeech), 100, 460 or 960
valid_speakers=     # training readers for the validation set, such as "7367 7859 8629"; default:
                    # dev sets
test_sets="test_clean test_other"   # test sets; test_clean_chapters joins each chapter's
                    # utterances to one long recording
test_utterances=    # decode this many of each, evenly spaced, as test_clean_part; default: all
librispeech=        # unpacked corpus: the folder LibriSpeech or its parent; several, "DIR1 DIR2", if
                    # subsets are apart; default: download
openslr=            # address of openslr or of a mirror
librispeech_pc=true # train on and score against restored punctuation and case; with --part 5 from
                    # the manifests of train-clean-100 and dev-clean
librispeech_pc_dir= # unpacked manifests of LibriSpeech-PC; default: download
data_nj=4           # audio files that stage 1 reads in parallel
# end of options

# shellcheck source-path=SCRIPTDIR source=../../TEMPLATE/asr1/parse_options.sh
. ../../TEMPLATE/asr1/parse_options.sh
[[ " $* " != *" --help "* ]] || ./whisper.sh --help
parse_known_options run.sh "$@"
refuse_white_space librispeech_pc_dir # --local_data_opts is split into words

# shellcheck source-path=SCRIPTDIR source=local/data_options.sh
. local/data_options.sh
data_opts+=" --librispeech_pc ${librispeech_pc}"
data_opts+="${librispeech_pc_dir:+ --librispeech_pc_dir ${librispeech_pc_dir}}"

./whisper.sh --lang en --train_set "${train_set}" --valid_set dev \
    --test_sets "${test_sets}" --local_data_opts "${data_opts}" \
    --heads_decodings "exact typical_penalty140 beam5" \
    --score_cleaner whisper_en --report conf/report/librispeech.yaml "${other_options[@]}"
