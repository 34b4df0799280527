"""The commands of ESPnet's asr.sh that use the plugin: stages 5 and 10 to 13.

They are equal in asr.sh of ESPnet 202402, 202503, December 2025 (after 202511) and June 2026. Names
in braces are keys of ``Recipe.places``; ``{python}`` is the value of ``--python``.
"""

from dataclasses import dataclass

DATA = {
    "train": "dump/raw/train", "dev": "dump/raw/dev", "test": "dump/raw/test",
    "stats": "exp/asr_stats_raw", "exp": "exp/asr_train_raw",
    "decoded": "exp/asr_train_raw/decode_asr_model_valid.acc.ave/test",
}  # fmt: skip


@dataclass(frozen=True)
class Command:
    """A command of a stage: its words, redirections, and the output file of run.pl (``log``)."""

    stage: int
    words: str
    stdin: str | None = None
    stdout: str | None = None
    log: str | None = None


CHARACTERS = Command(
    5,
    "-m espnet2.bin.tokenize_text --token_type {token_type} --input dump/raw/lm_train.txt "
    "--output {token_list} --non_linguistic_symbols none --field 2- --cleaner none --g2p none "
    "--write_vocabulary true --add_symbol <blank>:0 --add_symbol <unk>:1 "
    "--add_symbol <sos/eos>:-1",
)
WHISPERS = Command(
    5,
    "-m espnet2.bin.whisper_export_vocabulary --whisper_model {token_type} "
    "--add_token_file_name none --whisper_language {lang} --whisper_task transcribe "
    "--sot_asr false --output {token_list}",
)
HUGGING_FACES = Command(
    5,
    "-m espnet2.bin.hugging_face_export_vocabulary --model_name_or_path {bpemodel} "
    "--output {token_list}",
)
TRAINING = (
    "-m espnet2.bin.asr_train --use_preprocessor true --bpemodel {bpemodel} "
    "--token_type {token_type} --token_list {token_list} --non_linguistic_symbols none "
    "--cleaner none --g2p none "
)
STATISTICS = Command(
    10,
    TRAINING.replace("asr_train ", "asr_train --collect_stats true ")
    + "--train_shape_file {stats}/logdir/train.{job}.scp "
    "--valid_shape_file {stats}/logdir/valid.{job}.scp --output_dir {stats}/logdir/stats.{job} "
    "--config conf/train.yaml --frontend_conf fs=16k "
    "--train_data_path_and_name_and_type {train}/wav.scp,speech,sound "
    "--valid_data_path_and_name_and_type {dev}/wav.scp,speech,sound "
    "--train_data_path_and_name_and_type {train}/text,text,text "
    "--valid_data_path_and_name_and_type {dev}/text,text,text",
    log="{stats}/logdir/stats.{job}.log",
)
AGGREGATION = Command(
    10,
    "-m espnet2.bin.aggregate_stats_dirs --input_dir {stats}/logdir/stats.1 "
    "--input_dir {stats}/logdir/stats.2 --output_dir {stats}",
)
LAUNCH = Command(
    11,
    "-m espnet2.bin.launch --cmd '{run_pl} --name {exp}/train.log' --log {exp}/train.log --ngpu 0 "
    "--num_nodes 1 --init_file_prefix {exp}/.dist_init_ --multiprocessing_distributed true -- "
    "{python} " + TRAINING + "--valid_data_path_and_name_and_type {dev}/wav.scp,speech,sound "
    "--valid_shape_file {stats}/valid/speech_shape --resume true --ignore_init_mismatch false "
    "--fold_length 80000 --output_dir {exp} --config conf/train.yaml --frontend_conf fs=16k "
    "--normalize=global_mvn --normalize_conf stats_file={stats}/train/feats_stats.npz "
    "--train_data_path_and_name_and_type {train}/wav.scp,speech,sound "
    "--train_shape_file {stats}/train/speech_shape --fold_length 150 "
    "--train_data_path_and_name_and_type {train}/text,text,text "
    "--train_shape_file {stats}/train/text_shape.{token_type} "
    "--valid_data_path_and_name_and_type {dev}/text,text,text "
    "--valid_shape_file {stats}/valid/text_shape.{token_type}",
)
INFERENCE = Command(
    12,
    "-m espnet2.bin.asr_inference --batch_size 1 --ngpu 0 "
    "--data_path_and_name_and_type {test}/wav.scp,speech,sound "
    "--key_file {decoded}/logdir/keys.{job}.scp --asr_train_config {exp}/config.yaml "
    "--asr_model_file {exp}/valid.acc.ave.pth --output_dir {decoded}/logdir/output.{job} "
    "--config conf/decode.yaml",
    log="{decoded}/logdir/asr_inference.{job}.log",
)
TOKENIZE = "-m espnet2.bin.tokenize_text -f 2- --input - --output - "
WORDS = "--token_type word --non_linguistic_symbols none --remove_non_linguistic_symbols true"
REFERENCES = Command(
    13, f"{TOKENIZE}--cleaner none {WORDS}", "{test}/text", "{decoded}/score_wer/ref.txt"
)
HYPOTHESES = Command(
    13, f"{TOKENIZE}{WORDS} --cleaner none", "{decoded}/text", "{decoded}/score_wer/hyp.txt"
)
SCLITE = Command(
    13,
    "{sclite} -r {decoded}/score_wer/ref.trn trn -h {decoded}/score_wer/hyp.trn trn -i rm "
    "-o all stdout",
    stdout="{decoded}/score_wer/result.txt",
)

# Options of asr.sh in docs/recipe.md: all four versions have them.
OPTIONS = {
    "stage", "stop_stage", "python", "token_type", "hugging_face_model_name_or_path", "cleaner",
    "lang", "fs", "feats_type", "feats_normalize", "max_wav_duration", "use_lm", "asr_config",
    "pretrained_model", "inference_config", "inference_args", "inference_tag",
    "inference_asr_model", "batch_size", "use_streaming", "use_maskctc",
}  # fmt: skip
