# Sourced by recipes: words before a command that run it on another machine.
# shellcheck shell=bash disable=SC2034
#   local  this machine
#   slurm  array jobs; slurm.pl takes options such as --mem 4G, as in ESPnet's cmd.sh, and
#          conf/slurm.conf maps them to sbatch's: partition, account, memory, GPUs
#   sge    qrsh: waits for the job
cmd_backend=${cmd_backend:-local}

case ${cmd_backend} in
local)
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
    echo "cmd.sh: cmd_backend=${cmd_backend}: allowed are local, slurm, sge" >&2
    exit 2
    ;;
esac
