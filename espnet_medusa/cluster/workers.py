"""The workers of a cluster, who come and go."""

import logging
import time
from typing import Any

from distributed import Client

from espnet_medusa.cluster.versions import PACKAGES, version_difference
from espnet_medusa.errors import InputError

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0


class Workers:
    """Who is there; the versions of those that are new are looked at.

    Args:
        client: Of the cluster.
    """

    def __init__(self, client: Client):
        self.client = client
        self.scheduler = client.scheduler.address
        self.known: frozenset[str] = frozenset()
        self.looked = -LOOK_EVERY_S

    def count(self) -> int:
        """How many there are, or were ``LOOK_EVERY_S`` ago.

        Raises:
            InputError: One has other versions of packages than this process, or the scheduler is
                lost.
        """
        now = time.monotonic()
        if not self.known or now - self.looked >= LOOK_EVERY_S:
            self.looked = now
            found = frozenset(self._ask("nthreads"))
            if not found:
                logger.warning("no workers yet, or any more: waiting for some")
            if found - self.known:
                self.check_versions()
            self.known = found
        return len(self.known)

    def check_versions(self) -> None:
        """Compare all of them, and the scheduler, which reads tasks, with this process.

        Raises:
            InputError: One has other versions of packages, or the scheduler is lost.
        """
        found = self._ask("get_versions", packages=[*PACKAGES])
        others = {f"worker {address}": about for address, about in found["workers"].items()}
        others["the scheduler"] = found["scheduler"]
        versions = {name: about["packages"] for name, about in others.items()}
        difference = version_difference(found["client"]["packages"], versions)
        if difference is not None:
            raise InputError(difference)

    def lost(self) -> InputError:
        """What to say when the scheduler is."""
        reason = "the connection is lost; the same command goes on from here"
        return InputError(f"scheduler: {self.scheduler}: {reason}")

    def _ask(self, question: str, **options: Any) -> Any:
        try:
            return getattr(self.client, question)(**options)
        except (OSError, AttributeError) as error:  # the client has closed itself
            raise self.lost() from error
