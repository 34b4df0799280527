"""OpenVINO GenAI, on weights that optimum-intel converts in an environment of its own."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import openvino_genai

from contestants.base import Result, Timed, Transcriber
from contestants.ways import FLOAT32, INT8, Way

EXPORTER = Path(sys.prefix, "openvino", "bin", "optimum-cli")  # of tools/setup_bench.py
FORMATS = {FLOAT32: ("fp32", "f32"), INT8: ("int8", "bf16")}  # of weights, of arithmetic
MILLISECOND = 1e-3


class OpenVINO(Transcriber):
    """``WhisperPipeline.generate``; arithmetic is in bfloat16 if the weights are in int8."""

    def load(self) -> None:
        weights, arithmetic = FORMATS[self.weights]
        folder = self.subject.folder / f"openvino_{weights}"
        if not folder.exists():
            export(self.subject.hugging_face, weights, folder)
        threads = self.setup.threads
        self.pipeline = openvino_genai.WhisperPipeline(
            folder, "CPU", INFERENCE_PRECISION_HINT=arithmetic, INFERENCE_NUM_THREADS=threads
        )
        # English models have no language prompt.
        multilingual = self.pipeline.get_generation_config().is_multilingual
        prompt = {"language": f"<|{self.subject.language}|>", "task": "transcribe"}
        self.prompt = prompt if multilingual else {}

    def transcribe(self, way: Way, samples: np.ndarray) -> Timed:
        started = time.perf_counter()
        output = self.pipeline.generate(samples, num_beams=way.beam_size, **self.prompt)
        seconds, metrics = time.perf_counter() - started, output.perf_metrics
        parts = metrics.get_features_extraction_duration(), metrics.get_encode_inference_duration()
        encoder = MILLISECOND * sum(part.mean for part in parts)
        return Timed([Result(output.texts[0])], encoder, seconds - encoder)


def export(hugging_face: Path, weights: str, folder: Path) -> None:
    """Convert a Whisper of transformers' format to the new ``folder``."""
    if not EXPORTER.exists():
        raise FileNotFoundError(f"{EXPORTER}: missing; make it with tools/setup_bench.py")
    command = [EXPORTER, "export", "openvino", "-m", hugging_face, "--weight-format", weights]
    task = ["--task", "automatic-speech-recognition-with-past"]
    subprocess.run([*command, *task, folder], env=os.environ | {"PYTHONPATH": ""}, check=True)
