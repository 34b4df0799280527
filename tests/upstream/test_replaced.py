"""What the plugin puts into ESPnet's modules does what was there."""

import yaml
from espnet2.tasks import abs_task

import espnet_medusa  # noqa: F401  changes it

DOCUMENT = """
token_list: ["!", "<|endoftext|>", "\\u00e9", 'null', '~', "#", yes]
model_conf: {ctc_weight: 0.3, lsm_weight: 1.0e-1, length_normalized_loss: false}
frontend: null
optim_conf: &same {lr: 1e-3}
again: *same
"""


def test_tasks_read_yaml_as_before_and_in_c(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(DOCUMENT)
    with path.open(encoding="utf-8") as file:
        found = abs_task.yaml.safe_load(file)
    assert found == yaml.safe_load(DOCUMENT)
    assert abs_task.yaml.safe_load.keywords["Loader"] is yaml.CSafeLoader
    assert abs_task.yaml.safe_dump is yaml.safe_dump and yaml.safe_load.__module__ == "yaml"
