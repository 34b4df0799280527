"""What the check of killed training compares and says, by hand."""

import torch
from killed_training import EPOCH, START, WRITING, describe, differing, leaves_gradients

from espnet_medusa.training.trainer import GRADIENTS


def test_files_and_tensors_that_differ_are_named(tmp_path):
    folders = [tmp_path / name for name in ("one", "other")]
    weights = {"a": torch.ones(3), "b": torch.zeros(2)}
    for folder in folders:
        folder.mkdir()
        torch.save(weights, folder / "1epoch.pth")
        torch.save({"of": str(folder)}, folder / "checkpoint.pth")
    assert differing(*folders) == ([], 2)
    torch.save(weights | {"b": torch.tensor([0.0, 1e-9])}, folders[1] / "1epoch.pth")
    torch.save(weights, folders[0] / "2epoch.pth")
    assert differing(*folders) == (["1epoch.pth:b", "2epoch.pth"], 2)
    torch.save({"a": weights["a"]}, folders[1] / "2epoch.pth")
    assert differing(*folders) == (["1epoch.pth:b", "2epoch.pth"], 4)


def test_gradients_that_are_left_over_are_found(tmp_path):
    for state, expected in (({}, False), ({GRADIENTS: {0: torch.ones(1)}}, True)):
        torch.save({"optimizers": [state]}, tmp_path / "checkpoint.pth")
        assert leaves_gradients(tmp_path) == expected


def test_kills_are_counted_by_their_moments():
    losses = {(1, "train"): 3.0, (1, "valid"): 2.5, (2, "train"): 2.0, (2, "valid"): 1.5}
    log = "1/2epoch started\n1/2epoch started\n2/2epoch started\n"
    assert describe([START, WRITING, EPOCH, EPOCH], losses, log) == (
        "2 epochs, training loss 3.00 to 2.00; one of two processes was killed 4 times: 1 as it "
        "started, 2 in an epoch, 1 while an epoch's end was written; epochs were begun 3 times"
    )
