#!/usr/bin/env bash
# A Speech-LLaMA in English and German: first one token per call, then projection and latent heads for
# 2 to 6 tokens per call. Latent heads for 4 tokens are also trained further with MWER and, as a
# control, with cross-entropy, each with three seeds. Run ./run.sh --heads "" --stop_stage 11 first: the
# encoder starts from its base model. Without it, give --base_start "" and more epochs in
# conf/train_llama.yaml.
# Options, such as --heads llama_latent_4, go to medusa.sh and asr.sh and override those below.
# Own data: ./run_speech_llama.sh --data_dir DIR --train_set A --valid_set B --test_sets "C D"
set -euo pipefail

systems=
for kind in projection latent; do
    for tokens in 2 3 4 5 6; do
        systems+="llama_${kind}_${tokens} "
    done
done
for training in ce mwer; do
    for seed in "" _seed2 _seed3; do
        systems+="llama_latent_4_${training}${seed} "
    done
done

./medusa.sh --base llama --base_start exp/asr_base/valid.acc.ave.pth:encoder:encoder \
    --heads "${systems}" --tables speech_llama \
    --decodings "exact top_m threshold beam4_threshold" \
    --lang en_de --train_set train_en_de --valid_set dev_en_de --test_sets "test test_de" \
    --eval_valid_set true \
    --local_data_opts "--second_language de" \
    --token_type bpe --nbpe 400 --feats_normalize "" --max_wav_duration 30 \
    --report ../../../conf/report/mini_synth_llama.yaml \
    --ngpu 0 --train_nj 2 --nj 2 --inference_nj 2 "$@"
