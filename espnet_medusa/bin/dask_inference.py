"""asr_inference on a Dask cluster; options, outputs and journal are the same.

Without ``--scheduler`` the workers are processes on this machine.
"""

import functools
import os
from pathlib import Path

from espnet2.utils.types import str_or_none

from espnet_medusa.data.command_line import positive
from espnet_medusa.data.errors import InputError
from espnet_medusa.inference import decoding_command


def get_parser():
    parser = decoding_command.get_parser()
    add = parser.add_argument_group("Cluster").add_argument
    where = "address of a Dask scheduler, such as tcp://node1:8786; none: workers on this machine"
    add("--scheduler", type=str_or_none, help=where)
    count = "worker processes on this machine, without --scheduler"
    add("--inference_nj", type=positive, default=os.cpu_count() or 1, help=count)
    return parser


def main(cmd: list[str] | None = None) -> None:
    decoding_command.run(get_parser(), inference, cmd)


def inference(options: dict) -> int:
    """Decode one job on the cluster, as ``decoding_command.inference``."""
    try:
        from espnet_medusa.recipes.cluster.connection import connect
        from espnet_medusa.recipes.cluster.decoder import cluster_decoder
    except ImportError as error:
        raise InputError(f"{error}; pip install 'espnet_medusa[dask]'") from error
    job = decoding_command.read_job(options)
    scheduler, workers = options.pop("scheduler"), options.pop("inference_nj")
    open_decoder = functools.partial(decoding_command.open_decoder, options)
    fields = {name: options[name] for name in ("batch_size", "max_batch_frames")}
    fields["wav_scp"] = Path(options["data_path_and_name_and_type"][0][0])
    with (
        connect(scheduler, workers) as client,
        cluster_decoder(client, open_decoder, options["ngpu"] > 0, **fields) as decoder,
    ):
        return decoding_command.decode(decoder, job, options)


if __name__ == "__main__":
    main()
