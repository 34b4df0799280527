"""Count the decoder's calls of other programs."""


class CountedWhisper:
    """A ``ctranslate2.models.Whisper`` that counts the steps of its searches.

    Those are the tokens of the best text and the end symbol; beams of a step are one call.
    """

    def __init__(self, model, system):
        self._model, self._system = model, system

    def __getattr__(self, name):
        return getattr(self._model, name)

    def generate(self, *args, **options):
        results = self._model.generate(*args, **options)
        self._system.calls += max(len(one.sequences_ids[0]) for one in results) + 1
        return results


def count_torch_calls(decoder, system) -> None:
    """Count the calls of a decoder of torch."""

    def count(*_) -> None:
        system.calls += 1

    decoder.register_forward_hook(count)
