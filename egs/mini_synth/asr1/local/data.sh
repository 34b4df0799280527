#!/usr/bin/env bash
# Stage 1: synthesize the corpus, in one language or two.
# usage: Other options go to make_corpus.py: see python3 local/make_corpus.py --help
set -euo pipefail
cd "$(dirname "$0")/.."

# options
language=en         # a file of local/languages
second_language=    # another language, with sets such as test_de; joint sets: train_en_de, dev_en_de
second_minutes=150  # minutes of its training set
second_dev_utterances=40    # utterances of its dev set
output_dir=data     # data directories
# end of options

# shellcheck source-path=SCRIPTDIR source=../../../TEMPLATE/asr1/parse_options.sh
. ../../TEMPLATE/asr1/parse_options.sh
other_options=()
parse_known_options local/data.sh "$@"

speak() { # LANGUAGE [OPTION ...]
    "${python}" local/make_corpus.py --output_dir "${output_dir}" "${other_options[@]}" \
        --language "$@"
}

python=${PYTHON:-python3}
speak "${language}"
[ -n "${second_language}" ] || exit 0
speak "${second_language}" --suffix "_${second_language}" --minutes "${second_minutes}" \
    --dev_utterances "${second_dev_utterances}"
for set_name in train dev; do
    set_name=${output_dir}/${set_name}
    "${python}" -m espnet_medusa.bin.stage combine_data --languages "${language}" "${second_language}" \
        --data_dirs "${set_name}" "${set_name}_${second_language}" \
        --output_dir "${set_name}_${language}_${second_language}"
done
