"""All readers that are fuzzed, by name."""

from fuzz import (
    archive_members,
    ark,
    audio_containers,
    csv_table,
    ctranslate2_bin,
    decode_yaml,
    heads_card,
    kaldi_table,
    openai_whisper_pt,
    safetensors_file,
    segments,
    token_list,
    torch_checkpoint,
    training_yaml,
    trn,
    wav_header,
    whisper_json,
)
from fuzz.reader import Reader

_MODULES = (
    kaldi_table, segments, ark, wav_header, audio_containers, trn, csv_table, token_list,
    decode_yaml, training_yaml, heads_card, safetensors_file, torch_checkpoint, openai_whisper_pt,
    ctranslate2_bin, whisper_json, archive_members,
)  # fmt: skip
READERS: dict[str, Reader] = {module.READER.name: module.READER for module in _MODULES}
