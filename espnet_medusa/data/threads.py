"""One model in several threads: attributes with a value per thread, and locks of modules.

ESPnet's modules store intermediate results in themselves: attention weights, positional encodings,
the state of a CTC prefix scorer. Two threads must not run such a module at the same time.
"""

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

_access = threading.Lock()
_locks: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def lock_of(owner: Any) -> Any:
    """Return the reentrant lock of an object, always the same one."""
    with _access:
        return _locks.setdefault(owner, threading.RLock())


def one_at_a_time(owner: Any, function: Callable) -> Callable:
    """Return the function, which then holds the lock of ``owner`` during each call."""

    @wraps(function)
    def locked(*args: Any, **options: Any) -> Any:
        with lock_of(owner):
            return function(*args, **options)

    return locked


class PerThread:
    """An attribute of a class with one value per instance and thread.

    It contains what a call leaves for its caller, such as statistics. ``make(instance)`` returns
    the initial value.
    """

    def __init__(self, make: Callable[[Any], Any]):
        self.make, self.values = make, threading.local()

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        values = self._of_thread()
        if instance not in values:
            values[instance] = self.make(instance)
        return values[instance]

    def __set__(self, instance: Any, value: Any) -> None:
        self._of_thread()[instance] = value

    def _of_thread(self) -> WeakKeyDictionary:
        return vars(self.values).setdefault("values", WeakKeyDictionary())
