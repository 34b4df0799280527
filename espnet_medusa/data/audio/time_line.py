"""The player's time line: timestamps of a media file, counted in samples."""

import math

# Rounded and jittering timestamps cause no silence.
TOLERANCE_S = 0.1
# Timestamps that jump back further belong to another time line, as in joined files.
LONGEST_OVERLAP_S = 1.0
# In joined transport streams, packets of neighboring files differ by more.
LONGEST_JUMP_S = 10.0
# A file of n bytes may have this much silence between its packets, and n / 64 s.
SILENCE_S, BYTES_PER_S = 60.0, 64


class TimeLine:
    """Counts samples, and tells how much silence precedes a frame.

    Time 0 is ``start_s`` of the timestamps, where the first stream of the file begins.
    """

    def __init__(self, start_s: float, rate_hz: int, size_bytes: int, is_joined: bool):
        self.start_s, self.rate_hz = start_s, rate_hz
        self.position = 0  # samples so far
        self.lost = 0  # samples of packets since then that could not be decoded
        self.unfilled_s = 0.0  # gaps that are too long for the file
        self.silence_left = round(rate_hz * (SILENCE_S + size_bytes / BYTES_PER_S))
        # Whether the time line may change between two packets of the file.
        self.is_joined, self.last_packet_s = is_joined, math.nan

    def follow(self, packet_s: float) -> None:
        """Use the timestamp of a packet of any stream: find the next of several joined files."""
        jump_s = packet_s - self.last_packet_s
        if self.is_joined and abs(jump_s) > LONGEST_JUMP_S:
            self.start_s += jump_s
        self.last_packet_s = packet_s

    def silence_before(self, frame_s: float) -> int:
        """Return the number of samples that are missing before a frame with this timestamp."""
        ahead = round((frame_s - self.start_s) * self.rate_hz) - self.position
        self.unfilled_s += max(0, ahead) / self.rate_hz if ahead > self.silence_left else 0.0
        if ahead > self.silence_left or ahead < -LONGEST_OVERLAP_S * self.rate_hz:
            self.start_s += ahead / self.rate_hz
            return 0
        if ahead <= TOLERANCE_S * self.rate_hz:
            return 0
        self.silence_left -= ahead
        return ahead
