"""Config of an ESPnet transformer that trains in seconds."""

TRAINING = """
encoder: transformer
encoder_conf: {output_size: 8, attention_heads: 1, linear_units: 8, num_blocks: 1}
decoder: transformer
decoder_conf: {attention_heads: 1, linear_units: 8, num_blocks: 1}
model_conf: {ctc_weight: 0.3}
frontend_conf: {n_fft: 512, hop_length: 160}
optim_conf: {lr: 0.001}
max_epoch: 1
batch_type: sorted
batch_size: 2
num_workers: 0
num_att_plot: 0
use_tensorboard: false
use_matplotlib: false
best_model_criterion: [[valid, acc, max]]
keep_nbest_models: 1
log_interval: 1
"""
