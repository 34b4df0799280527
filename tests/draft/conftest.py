"""What tests of drafters share."""

from kernel_kinds import kind

__all__ = ["kind"]
