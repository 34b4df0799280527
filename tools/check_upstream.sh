#!/usr/bin/env bash
# Runs ESPnet's own asr.sh, unmodified, with the plugin: stages 1 to 13 on 100 utterances, 60 of them
# for training.
# usage: tools/check_upstream.sh ESPNET_CHECKOUT [WORK_DIR]
#
# ESPNET_CHECKOUT is not changed. ESPnet's setup.sh makes a recipe in WORK_DIR (default: exp/upstream),
# which has links to the checkout. The script trains a model from scratch, heads on it, and block heads
# on a Whisper. It decodes with greedy and beam search, in batches, with ESPnet's own search, and with
# our own recipe, and compares the texts.
# Environment: the active one, with `pip install 'espnet_medusa[upstream,demo]'`.
#   USE_CHECKOUT=true   imports espnet2 from the checkout, not the installed one
#   WHISPER=FOLDER      Whisper to train heads on (default: a random one of 0.1 M parameters)
#   WHISPER_TYPE=whisper_en    its token type (default: whisper_multilingual)
# shellcheck disable=SC2329  # functions that check calls
set -euo pipefail

here=$(cd "$(dirname "$0")/.." && pwd)
[ $# -ge 1 ] && [ -f "$1/egs2/TEMPLATE/asr1/asr.sh" ] || {
    echo "usage: $0 ESPNET_CHECKOUT [WORK_DIR]; the checkout has egs2/TEMPLATE/asr1/asr.sh" >&2
    exit 2
}
checkout=$(cd "$1" && pwd)
work=${2:-${here}/exp/upstream}
whisper_type=${WHISPER_TYPE:-whisper_multilingual}
failed=0

title() { printf '\n=== %s\n' "$*"; }
check() { # WHAT COMMAND...: run the command and print whether it succeeded
    local what=$1
    shift
    if "$@" > /dev/null; then echo "ok      ${what}"; else
        echo "FAILED  ${what}"
        failed=1
    fi
}

command -v espnet-medusa-python > /dev/null || {
    echo "espnet-medusa-python is not on PATH: activate the environment that has the plugin" >&2
    exit 2
}
[ "${USE_CHECKOUT:-false}" = false ] || export PYTHONPATH=${checkout}

# A tree of links, so that nothing is written into the checkout.
rm -rf "${work}"
mkdir -p "${work}/egs2" "${work}/tools/sctk/bin"
work=$(cd "${work}" && pwd)
ln -s "${checkout}/egs2/TEMPLATE" "${work}/egs2/TEMPLATE"
for tool in extra_path.sh sentencepiece_commands; do
    ln -s "${checkout}/tools/${tool}" "${work}/tools/${tool}"
done
ln -s "$(command -v espnet-medusa-sclite)" "${work}/tools/sctk/bin/sclite"
cd "${work}/egs2"
TEMPLATE/asr1/setup.sh mini/asr1 > /dev/null
cd mini/asr1

cat > local/data.sh << EOF
#!/usr/bin/env bash
set -euo pipefail
python3 "${here}/egs/mini_synth/asr1/local/make_corpus.py" --output_dir data/all \
    --minutes 6 --dev_utterances 20 --test_utterances 20
utils/subset_data_dir.sh --first data/all/train 60 data/train
for set in dev test; do utils/copy_data_dir.sh data/all/\${set} data/\${set}; done
EOF
chmod +x local/data.sh

common="optim: adamw
optim_conf: {lr: 0.002}
batch_type: sorted
batch_size: 8
num_workers: 0
seed: 1
use_tensorboard: false
use_matplotlib: false
best_model_criterion: [[valid, acc, max]]
keep_nbest_models: 1"
sizes="attention_heads: 4, linear_units: 256, num_blocks: 2, dropout_rate: 0.0"
cat > conf/train_base.yaml << EOF
encoder: hf_whisper
encoder_conf: {output_size: 64, ${sizes}, max_source_positions: 750, subsampling: 4}
decoder: whisper_medusa
decoder_conf: {${sizes}, max_target_positions: 128}
model: medusa
max_epoch: 20
${common}
EOF
sed -e 's/^decoder_conf: {/&heads: linear, heads_conf: {num_heads: 4}, /' \
    -e 's/^max_epoch: .*/max_epoch: 3/' conf/train_base.yaml > conf/train_linear.yaml
# The five lines of docs/train.md, for one epoch.
cat > conf/train_whisper.yaml << EOF
encoder: hf_whisper
encoder_conf: {whisper_model: whisper}
decoder: whisper_medusa
decoder_conf: {whisper_model: whisper, heads: block, heads_conf: {num_heads: 4}}
model: medusa
model_conf: {freeze_whisper: all, base_loss_weight: 0}
max_epoch: 1
${common}
EOF
length="maxlenratio: -40"
printf '%s\n' "search: greedy" "beam_size: 1" "ctc_weight: 0.0" "${length}" > conf/greedy.yaml
printf '%s\n' "beam_size: 5" "ctc_weight: 0.0" "${length}" > conf/beam.yaml
printf '%s\n' "beam_size: 5" "ctc_weight: 0.0" "draft_depth: 0" "${length}" > conf/baseline.yaml

asr() { # options of asr.sh
    ./asr.sh --ngpu 0 --nj 2 --inference_nj 2 --use_lm false --lang en --train_set train \
        --valid_set dev --test_sets test --python espnet-medusa-python "$@" > asr.log 2>&1 || {
        echo "FAILED  asr.sh $*"
        tail -n 30 asr.log
        exit 1
    }
}
# A text may end with a space, which ESPnet's scripts keep.
texts() { sed 's/ *$//' "${3:-exp}/$1/$2_asr_model_valid.acc.ave/test/text"; }
same() { diff <(texts "$1" "$2") <(texts "$3" "$4"); }
lines() { [ "$(wc -l < "$1")" -eq "$2" ]; }

title "stages 1 to 13: a model from scratch, upstream's default of 30 BPE tokens"
base=asr_train_base_raw_en_bpe30
asr --stage 1 --stop_stage 13 --asr_config conf/train_base.yaml --inference_config conf/baseline.yaml
check "trained, decoded, scored" test -f "exp/${base}/RESULTS.md"
for file in ref hyp; do
    check "${file}.trn has 20 lines" \
        lines "exp/${base}/baseline_asr_model_valid.acc.ave/test/score_wer/${file}.trn" 20
done

title "stage 12: greedy, beam of 5, batches of 8, ESPnet's own"
asr --stage 12 --stop_stage 13 --asr_config conf/train_base.yaml --inference_config conf/greedy.yaml
asr --stage 12 --stop_stage 13 --asr_config conf/train_base.yaml --inference_config conf/beam.yaml \
    --batch_size 8 --inference_tag batch_asr_model_valid.acc.ave
printf '%s\n' "beam_size: 5" "ctc_weight: 0.0" "${length}" > conf/espnet.yaml
asr --stage 12 --stop_stage 13 --asr_config conf/train_base.yaml --inference_config conf/espnet.yaml \
    --python "espnet-medusa-python --no-redirect"
check "batches of 8: the same text" same "${base}" baseline "${base}" batch
check "ESPnet's own search: the same text" same "${base}" baseline "${base}" espnet

title "stages 10 to 13: heads on it"
heads=asr_train_linear_raw_en_bpe30
asr --stage 10 --stop_stage 13 --asr_config conf/train_linear.yaml \
    --pretrained_model "exp/${base}/valid.acc.ave.pth" \
    --asr_args "--freeze_param encoder decoder.whisper" --asr_tag "${heads#asr_}" \
    --inference_config conf/greedy.yaml
asr --stage 12 --stop_stage 13 --asr_tag "${heads#asr_}" --inference_config conf/beam.yaml
check "greedy search: the same text with and without heads" same "${base}" greedy "${heads}" greedy
check "beam of 5: the same text with and without heads" same "${base}" baseline "${heads}" beam

title "our own recipe on the same model"
mkdir -p ours/exp/asr_base
for file in asr.sh path.sh cmd.sh; do ln -s "${here}/egs/TEMPLATE/asr1/${file}" "ours/${file}"; done
ln -s "../../../exp/${base}/config.yaml" "../../../exp/${base}/valid.acc.ave.pth" ours/exp/asr_base
ln -s ../dump ../data ../downloads ours
ours() { # CONFIG
    (cd ours && ./asr.sh --stage 12 --stop_stage 13 --asr_exp exp/asr_base --ngpu 0 --nj 2 \
        --inference_nj 2 --use_lm false --lang en --token_type bpe --nbpe 30 --test_sets test \
        --skip_train true --inference_config "../conf/$1.yaml" > "$1.log" 2>&1) || {
        tail -n 30 "ours/$1.log"
        return 1
    }
}
for config in baseline greedy; do
    check "our recipe decodes ${config}" ours "${config}"
    check "${config}: the same text as our recipe's" \
        diff <(texts "${base}" "${config}") <(texts asr_base "${config}" ours/exp)
done

title "stages 5 to 13: block heads on a Whisper whose folder is removed before decoding"
if [ -n "${WHISPER:-}" ]; then ln -s "$(cd "${WHISPER}" && pwd)" whisper; else
    python3 - << 'EOF'
import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration
from transformers.utils.logging import disable_progress_bar

disable_progress_bar()
torch.manual_seed(0)
sizes = {f"{half}_{name}": value for half in ("encoder", "decoder")
         for name, value in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 32))}
WhisperForConditionalGeneration(
    WhisperConfig(vocab_size=51865, d_model=16, **sizes)
).save_pretrained("whisper")
EOF
fi
block=asr_train_whisper_raw_en_${whisper_type}
options=(--asr_config conf/train_whisper.yaml --token_type "${whisper_type}"
    --cleaner whisper_basic --max_wav_duration 30)
asr --stage 5 --stop_stage 11 "${options[@]}"
rm -r whisper
asr --stage 12 --stop_stage 13 "${options[@]}" --inference_config conf/greedy.yaml
printf '%s\n' "search: greedy" "draft_depth: 0" "ctc_weight: 0.0" "${length}" > conf/no_drafts.yaml
asr --stage 12 --stop_stage 13 "${options[@]}" --inference_config conf/no_drafts.yaml
check "config.yaml does not name the folder of Whisper" bash -c "! grep whisper_model exp/${block}/config.yaml"
check "block heads: the same text with and without drafts" same "${block}" greedy "${block}" no_drafts

title "report"
espnet-medusa-report "exp/${base}" "exp/${heads}" --baseline "exp/${base}/espnet"
espnet-medusa-report "exp/${block}" --baseline "exp/${block}/no_drafts"
for results in exp exp/"${block}"; do sed -n '/^## Decoding/,$p' "${results}/RESULTS.md"; done
grep -h RTF exp/"${base}"/*/test/logdir/calculate_rtf.log

[ "${failed}" = 0 ] && echo "all checks passed: ${work}/egs2/mini/asr1"
exit "${failed}"
