"""The two log lines of an utterance that ESPnet's real-time factor script pairs."""

import logging


def log_decoded(
    logger: logging.Logger, samples: int, hypothesis: str, started: float, seconds: float
) -> None:
    """Log ``speech length`` and ``best hypo`` of an utterance once it is decoded.

    The script takes the time from one line to the other, utterance by utterance, and wants as many
    of the one as of the other. Utterances of a batch run at the same time: their sum would count
    it several times over. So each gets a share of it, one after the other, and the lines carry
    the times of that share. Utterances without a result get no lines.

    Args:
        logger: Where to log.
        samples: Length of the audio.
        hypothesis: Best text.
        started: When the share began, in seconds since the epoch (``time.time``).
        seconds: Length of the share.
    """
    lines = [
        (started, f"speech length: {samples}"),
        (started + seconds, f"best hypo: {hypothesis}"),
    ]
    for created, message in lines:
        if logger.isEnabledFor(logging.INFO):
            record = logger.makeRecord(
                logger.name, logging.INFO, __file__, 0, message, (), None, "log_decoded"
            )
            record.created, record.msecs = created, int(created % 1 * 1000)
            logger.handle(record)
