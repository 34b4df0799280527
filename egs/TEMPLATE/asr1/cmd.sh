# Sourced by recipes: what to put before a command, so that it runs elsewhere than on this machine.
# shellcheck shell=bash disable=SC2034
#   local  this machine
#   slurm  srun: one task a job; add your partition and account
#   sge    qrsh: waits for the job as srun does
#   dask   decoding: a Dask cluster's workers, see --scheduler; all else: this machine
cmd_backend=${cmd_backend:-local}

case ${cmd_backend} in
local | dask)
    train_cmd=""
    cuda_cmd=""
    decode_cmd=""
    ;;
slurm)
    train_cmd="srun --quiet --ntasks=1"
    cuda_cmd="srun --quiet --ntasks=1 --gres=gpu:1"
    decode_cmd="srun --quiet --ntasks=1"
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
