"""ESPnet's asr_inference_streaming, which transcribes a Whisper's experiment live.

Other models, options and outputs are ESPnet's.
"""

import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

from espnet2.bin import asr_inference_streaming as espnet

from espnet_medusa.bin.python import OUR_NETWORKS
from espnet_medusa.data.options import read_config
from espnet_medusa.inference.streaming import Speech2TextStreaming


def main(cmd: list[str] | None = None) -> None:
    theirs = espnet.Speech2TextStreaming

    def open_model(asr_train_config: str, asr_model_file: str, **options: Any) -> Any:
        config = read_config(Path(asr_train_config), "correct the file or its path")
        ours = OUR_NETWORKS & {config.get(part) for part in ("model", "encoder", "decoder")}
        return (Speech2TextStreaming if ours else theirs)(
            asr_train_config, asr_model_file, **options
        )

    try:
        with patch.object(espnet, "Speech2TextStreaming", open_model):
            espnet.main(cmd)
    except ValueError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
