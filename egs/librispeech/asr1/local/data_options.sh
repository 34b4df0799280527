# Sourced by run.sh and run_speech_llama.sh after their options: sets train_set, data_opts (the options
# of local/data.sh), and with --test_utterances test_sets.
# shellcheck shell=bash disable=SC2034,SC2154
case ${part} in
5) train_set=train_clean_5 ;;
100) train_set=train_clean_100 ;;
460 | 960) train_set=train_${part} ;;
*)
    echo "$(basename "$0"): --part ${part}: allowed are 5, 100, 460 and 960" >&2
    exit 2
    ;;
esac
data_opts="--part ${part} --nj ${data_nj} --test_sets ${test_sets}"
data_opts+="${test_utterances:+ --test_utterances ${test_utterances}}"
data_opts+="${valid_speakers:+ --valid_speakers ${valid_speakers}}"
data_opts+="${librispeech:+ --librispeech ${librispeech}}${openslr:+ --openslr ${openslr}}"
if [ -n "${test_utterances}" ]; then
    read -r -a names <<< "${test_sets}"
    test_sets=$(printf '%s_part ' "${names[@]}")
fi
