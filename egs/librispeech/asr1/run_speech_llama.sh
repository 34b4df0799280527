#!/usr/bin/env bash
# LibriSpeech with a Speech-LLaMA of the paper's sizes (arXiv 2409.08148): one token a call, then
# projection and latent heads, four tokens a call.
# usage: Options that are not listed here go to medusa.sh and asr.sh, such as --stage 12, and win
# usage: over those below. The corpus (60 GB) is downloaded where it is missing.
set -euo pipefail

# options
part=960            # hours to train on: 100, 460 or 960
librispeech=        # the corpus, unpacked: LibriSpeech or the folder that holds it
openslr=            # where to download from: openslr's address or a mirror's
data_nj=4           # audio files that stage 1 reads at a time
# end of options

# shellcheck source-path=SCRIPTDIR source=../../TEMPLATE/asr1/parse_options.sh
. ../../TEMPLATE/asr1/parse_options.sh
[[ " $* " != *" --help "* ]] || ./medusa.sh --help
parse_known_options run_speech_llama.sh "$@"

case ${part} in
100) train_set=train_clean_100 ;;
460 | 960) train_set=train_${part} ;;
*)
    echo "run_speech_llama.sh: --part ${part}: allowed are 100, 460 and 960" >&2
    exit 2
    ;;
esac
data_opts="--part ${part} --librispeech_pc false --nj ${data_nj}"
data_opts+="${librispeech:+ --librispeech ${librispeech}}${openslr:+ --openslr ${openslr}}"

./medusa.sh --base speech_llama --heads "speech_llama_projection_4 speech_llama_latent_4" \
    --tables speech_llama --decodings "exact top_m threshold beam4_threshold" \
    --lang en --train_set "${train_set}" --valid_set dev --test_sets "test_clean test_other" \
    --local_data_opts "${data_opts}" --max_wav_duration 30 \
    --report conf/report/librispeech_llama.yaml \
    --token_type bpe --nbpe 32000 "${other_options[@]}"
