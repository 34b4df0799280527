#!/usr/bin/env bash
# LibriSpeech with a Speech-LLaMA (arXiv 2409.08148): first one token per call, then heads for four
# tokens per call. It has the paper's sizes. With --whisper_model it has the frozen encoder of a
# pretrained Whisper, a small decoder, and latent heads for two to four tokens per call.
# usage: Other options, such as --stage 12, go to medusa.sh and asr.sh and override those below.
# usage: A missing corpus is downloaded (60 GB; --part 5: 0.5 GB and the test sets).
set -euo pipefail

# options
part=960            # hours to train on: 5 (mini_librispeech), 100, 460 or 960
valid_speakers=     # training readers for the validation set, such as "7367 7859 8629"; default:
                    # dev sets
test_sets="test_clean test_other"   # test sets
test_utterances=    # decode this many of each, evenly spaced, as test_clean_part; default: all
whisper_model=      # Whisper with the frozen encoder: hub name, folder or OpenAI's .pt file
librispeech=        # unpacked corpus: the folder LibriSpeech or its parent; several, "DIR1 DIR2", if
                    # subsets are apart; default: download
openslr=            # address of openslr or of a mirror
data_nj=4           # audio files that stage 1 reads in parallel
dumpdir=dump        # formatted data, and cached output of the frozen encoder
expdir=exp          # experiments
asr_args=           # more options for training
# end of options

# shellcheck source-path=SCRIPTDIR source=../../TEMPLATE/asr1/parse_options.sh
. ../../TEMPLATE/asr1/parse_options.sh
[[ " $* " != *" --help "* ]] || ./medusa.sh --help
parse_known_options run_speech_llama.sh "$@"
refuse_white_space whisper_model expdir # --asr_args is split into words

# shellcheck source-path=SCRIPTDIR source=local/data_options.sh
. local/data_options.sh
data_opts+=" --librispeech_pc false"

if [ -n "${whisper_model}" ]; then
    record_option "${expdir}" whisper_model "${whisper_model}"
    asr_args="--encoder_conf whisper_model=${whisper_model} ${asr_args}"
    systems=(--base speech_llama_whisper
        --heads "$(printf 'speech_llama_whisper_latent_%s ' 2 3 4)" --memory_dir "${dumpdir}/memory"
        --decodings "exact top_m threshold beam4_threshold" --feats_normalize "" --nbpe 300
        --report conf/report/librispeech_llama_whisper.yaml)
else
    systems=(--base speech_llama --heads "speech_llama_projection_4 speech_llama_latent_4"
        --decodings "exact top_m threshold beam4_threshold" --nbpe 32000
        --report conf/report/librispeech_llama.yaml)
fi

./medusa.sh "${systems[@]}" --tables speech_llama --dumpdir "${dumpdir}" --expdir "${expdir}" \
    --lang en --train_set "${train_set}" --valid_set dev --test_sets "${test_sets}" \
    --local_data_opts "${data_opts}" --max_wav_duration 30 --asr_args "${asr_args}" \
    --token_type bpe "${other_options[@]}"
