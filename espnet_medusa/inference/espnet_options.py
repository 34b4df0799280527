"""Options of ESPnet's commands asr_inference, s2t_inference and st_inference (202511 to 202611).

Each option is in one of four sets. A test compares them with ESPnet's parsers.
"""

from collections.abc import Mapping
from typing import Any

from espnet_medusa.data.errors import InputError

# Applied by this package's searches and commands.
OBEYED = {
    "asr_model_file", "asr_train_config", "s2t_model_file", "s2t_train_config", "st_model_file",
    "st_train_config", "model_tag", "config", "help", "output_dir", "log_level", "seed", "ngpu",
    "device", "dtype", "data_path_and_name_and_type", "key_file", "batch_size", "beam_size",
    "nbest", "penalty", "maxlenratio", "minlenratio", "normalize_length", "ctc_weight",
    "ctc_window_margin", "lm_weight", "lm_train_config", "lm_file", "ngram_weight", "ngram_file",
    "ngram_scorer", "token_type", "bpemodel", "lang_sym", "task_sym", "predict_time",
}  # fmt: skip

# Applied by ESPnet's classes, which build the model or, with some options, also decode.
PASSED_ON = {
    "streaming", "time_sync", "transducer_conf", "hugging_face_decoder",
    "hugging_face_decoder_conf", "hugging_face_decoder_max_length", "partial_ar",
    "threshold_probability", "max_seq_len", "max_mask_parallel", "quantize_asr_model",
    "quantize_s2t_model", "quantize_lm", "quantize_modules", "quantize_dtype", "prompt_token_file",
    "lang_prompt_token", "nlp_prompt_token", "lid_prompt", "use_flash_attn",
    "generate_interctc_outputs", "ctc_greedy", "asr_beam_size", "asr_ctc_weight", "asr_lm_weight",
    "asr_maxlenratio", "asr_minlenratio", "asr_nbest", "asr_ngram_weight", "asr_penalty",
    "src_token_type", "src_bpemodel", "src_lm_train_config", "src_lm_file", "src_ngram_file",
    "src_ngram_scorer",
}  # fmt: skip

# Refused, with the option's name, if they are set.
WORD_LMS = (
    "word_lm_train_config", "word_lm_file", "src_word_lm_train_config", "src_word_lm_file",
)  # fmt: skip
MULTI_SPEAKER = ("multi_asr", "enh_s2t_task")
REFUSED = {*WORD_LMS, *MULTI_SPEAKER}

# Without effect on results: this package reads utterances in its own way.
IGNORED = {"num_workers", "allow_variable_data_keys"}

# Prompts for ESPnet's own Whisper; ours are built from ``language`` and ``task``.
WHISPER_PROMPTS = ("lang_prompt_token", "nlp_prompt_token", "lid_prompt")


def check_espnet_options(options: Mapping[str, Any], names: Mapping[str, Any]) -> None:
    """Refuse options of a model that are in ``REFUSED``, or of a newer ESPnet and not its default.

    ``names`` are the parameters of ESPnet's class.
    """
    for name in MULTI_SPEAKER:
        if options.get(name):
            raise InputError(f"{name}: true; not supported; decode with espnet2.bin.asr_inference")
    for name in options.keys() & names.keys() - (OBEYED | PASSED_ON | REFUSED):
        default = names[name].default
        if options[name] != default:
            raise InputError(
                f"{name}: {options[name]}; an option of a newer ESPnet, which this version of "
                f"espnet_medusa does not support; allowed: {default}"
            )


def check_no_word_lm(options: Mapping[str, Any]) -> None:
    """Refuse word language models, which ESPnet does not support either."""
    for name in WORD_LMS:
        if options.get(name) is not None:
            raise InputError(f"{name}: {options[name]}; allowed: none")


def check_no_prompts(options: Mapping[str, Any]) -> None:
    """Refuse ESPnet's options for the prompts of its own Whisper, for a model with our prompts."""
    for name in WHISPER_PROMPTS:
        if options.get(name):
            raise InputError(
                f"{name}: {options[name]}; allowed: none with this model; use language and task, "
                "or forced_prefix"
            )
