"""Systems that are compared, and their settings."""

from live_systems.base import Setting

OURS, FILE, WHISPER_STREAMING, SIMUL_STREAMING, WHISPER_LIVE_KIT, ESPNET = (
    "ours", "ours, the whole file", "whisper_streaming", "SimulStreaming", "WhisperLiveKit",
    "ESPnet's windows",
)  # fmt: skip
# Module and class of each system, imported only in its process.
SYSTEMS = {
    OURS: "ours.Ours",
    FILE: "ours.WholeFile",
    WHISPER_STREAMING: "whisper_streaming.WhisperStreaming",
    SIMUL_STREAMING: "simul_streaming.SimulStreaming",
    WHISPER_LIVE_KIT: "whisper_live_kit.WhisperLiveKit",
    ESPNET: "ours.ESPnetWindows",
}
OF_PEERS = (WHISPER_STREAMING, SIMUL_STREAMING, WHISPER_LIVE_KIT)
AGREEMENT, ATTENTION = "LocalAgreement", "AlignAtt"
# Those of files with all their audio: as the live text, without decoding at higher temperatures.
OF_FILE = {"fallback_on": "repetition", "skip_silence": True}


def ours(policy: str, update_s: float, notes: str = "", **options) -> Setting:
    """Return a setting of ours; options of ``model`` are those of ``Speech2Text``."""
    name = {AGREEMENT: "agreement", ATTENTION: "attention"}[policy]
    live = {"live_policy": name, "update_seconds": update_s, **options.pop("live", {})}
    return Setting(OURS, update_s, policy, {"live": live, **options}, notes or "int8, greedy")


SETTINGS = [
    ours(AGREEMENT, 0.5),
    ours(AGREEMENT, 1.0),
    ours(ATTENTION, 0.5),
    ours(ATTENTION, 1.0),
    ours(AGREEMENT, 0.5, "int8, greedy, no drafts", model={"draft_depth": 0}),
    Setting(FILE, float("inf"), options={"file": OF_FILE}, notes="int8, greedy"),
    # Its defaults: updates of 1 s, beam 5.
    Setting(WHISPER_STREAMING, 1.0, AGREEMENT, notes="int8, beam 5"),
    Setting(WHISPER_STREAMING, 1.0, AGREEMENT, {"beam_size": 1}, "int8, greedy"),
    # Its default: updates of 1.2 s.
    Setting(SIMUL_STREAMING, 1.2, ATTENTION, notes="float32, greedy"),
    Setting(SIMUL_STREAMING, 0.5, ATTENTION, notes="float32, greedy"),
    # Its default policy, with the encoder in CTranslate2 and the decoder in torch.
    Setting(WHISPER_LIVE_KIT, 0.5, ATTENTION, {"backend_policy": "simulstreaming"},
            "int8 encoder, float32 decoder, greedy"),
    Setting(WHISPER_LIVE_KIT, 1.0, AGREEMENT, {"backend_policy": "localagreement"}, "int8, beam 5"),
    Setting(ESPNET, 20.0, "independent windows", notes="our int8, greedy"),
]  # fmt: skip
