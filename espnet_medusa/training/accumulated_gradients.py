"""Gradients that an epoch leaves over, in the optimizer's state and so in ESPnet's checkpoint.

Where ``accum_grad`` does not divide an epoch's batches, the gradients of the last ones count in the
next epoch's first update. ESPnet's checkpoint does not have them: a resumed run would lack them.
"""

import torch

KEY = "gradients"


def keep_gradients(optimizer: torch.optim.Optimizer) -> None:
    """From now on the optimizer's state has its parameters' gradients, and loading it sets them.

    Under ``DistributedDataParallel`` they are the same in all processes. ESPnet without the plugin
    loads such a state, too, and leaves them.
    """
    optimizer.register_state_dict_post_hook(_add)
    optimizer.register_load_state_dict_pre_hook(_set)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _add(optimizer: torch.optim.Optimizer, state: dict) -> None:
    gradients = {
        index: parameter.grad
        for index, parameter in enumerate(_parameters(optimizer))
        if parameter.grad is not None
    }
    if gradients:
        state[KEY] = gradients


def _set(optimizer: torch.optim.Optimizer, state: dict) -> None:
    gradients = state.get(KEY, {})
    for index, parameter in enumerate(_parameters(optimizer)):
        gradient = gradients.get(index)
        parameter.grad = None if gradient is None else gradient.to(parameter)
