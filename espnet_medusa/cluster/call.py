"""What a task is: names alone, for the scheduler reads tasks, too, and should not import torch."""

from typing import Any

from distributed import get_worker


def call_plugin(name: str, method: str, *arguments: Any) -> Any:
    """Call a method of a plugin of the worker that has the task."""
    return getattr(get_worker().plugins[name], method)(*arguments)
