#!/usr/bin/env bash
# LibriSpeech with Whisper: as it is, fine-tuned, and with Medusa heads (linear, block).
# usage: Options that are not listed here go to whisper.sh and asr.sh, such as --stage 12, and win
# usage: over those below. The corpus (60 GB; --part 5: 0.5 GB and the test sets) is downloaded
# usage: where it is missing. Table IV, too:
# usage: --heads "linear block linear_5heads linear_15heads linear_20heads"
set -euo pipefail

# options
part=960            # hours to train on: 5 (mini_librispeech), 100, 460 or 960
valid_speakers=     # these of the training set validate, such as "7367 7859 8629", and no dev set
test_sets="test_clean test_other"   # which of them to prepare, decode and report; and, such as
                    # test_clean_chapters, with each chapter's utterances joined, as long audio
librispeech=        # the corpus, unpacked: LibriSpeech or the folder that holds it, or several
                    # folders, "DIR1 DIR2", for subsets that lie apart
openslr=            # where to download from: openslr's address or a mirror's
librispeech_pc=true # train on and score against restored punctuation and case; with --part 5
                    # they are those of train-clean-100 and dev-clean
librispeech_pc_dir= # the manifests of LibriSpeech-PC, unpacked
data_nj=4           # audio files that stage 1 reads at a time
# end of options

# shellcheck source-path=SCRIPTDIR source=../../TEMPLATE/asr1/parse_options.sh
. ../../TEMPLATE/asr1/parse_options.sh
[[ " $* " != *" --help "* ]] || ./whisper.sh --help
parse_known_options run.sh "$@"

case ${part} in
5) train_set=train_clean_5 ;;
100) train_set=train_clean_100 ;;
460 | 960) train_set=train_${part} ;;
*)
    echo "run.sh: --part ${part}: allowed are 5, 100, 460 and 960" >&2
    exit 2
    ;;
esac
data_opts="--part ${part} --librispeech_pc ${librispeech_pc} --nj ${data_nj}"
data_opts+=" --test_sets ${test_sets}${valid_speakers:+ --valid_speakers ${valid_speakers}}"
data_opts+="${librispeech:+ --librispeech ${librispeech}}${openslr:+ --openslr ${openslr}}"
data_opts+="${librispeech_pc_dir:+ --librispeech_pc_dir ${librispeech_pc_dir}}"

./whisper.sh --lang en --train_set "${train_set}" --valid_set dev \
    --test_sets "${test_sets}" --local_data_opts "${data_opts}" \
    --heads_decodings "exact typical_penalty140 beam5" \
    --score_cleaner whisper_en --report conf/report/librispeech.yaml "${other_options[@]}"
