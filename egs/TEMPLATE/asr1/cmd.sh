# Sourced by recipes: what to put before a command, so that it runs elsewhere than on this machine.
# shellcheck shell=bash disable=SC2034
#   local  this machine
#   slurm  array jobs; slurm.pl's options, such as --mem 4G, work here as in ESPnet's cmd.sh, and
#          conf/slurm.conf says what sbatch makes of them: partition, account, memory, GPUs
#   sge    qrsh: waits for the job
#   dask   decoding: a Dask cluster's workers, see --scheduler; all else: this machine
cmd_backend=${cmd_backend:-local}

case ${cmd_backend} in
local | dask)
    train_cmd=""
    cuda_cmd=""
    decode_cmd=""
    ;;
slurm)
    train_cmd="slurm.pl"
    cuda_cmd="slurm.pl"
    decode_cmd="slurm.pl"
    ;;
sge)
    train_cmd="qrsh -cwd -V -now no"
    cuda_cmd="qrsh -cwd -V -now no -l gpu=1"
    decode_cmd="qrsh -cwd -V -now no"
    ;;
*)
    echo "cmd.sh: cmd_backend=${cmd_backend}: allowed are local, slurm, sge, dask" >&2
    exit 2
    ;;
esac
