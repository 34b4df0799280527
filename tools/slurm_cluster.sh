#!/usr/bin/env bash
# Starts a Slurm cluster on this machine, runs a command on it, and stops the cluster:
#   tools/slurm_cluster.sh COMMAND ...     such as `bash`, to look around with sinfo and squeue
# Nodes node1, node2, ... are slurmd daemons of this host, NODES of them (default 3), each with two
# CPUs however many the host has. The user who runs this, root or not, administers the cluster.
# Debian and Ubuntu: apt-get install slurm-wlm munge
set -euo pipefail

fail() {
    echo "slurm_cluster.sh: error: $*" >&2
    exit 2
}

[ $# -gt 0 ] || fail "give a command to run on the cluster, such as bash"
nodes=${NODES:-3}
PATH=${PATH}:/usr/sbin
for program in munged slurmctld slurmd sbatch; do
    command -v "${program}" > /dev/null ||
        fail "${program} is not installed; apt-get install slurm-wlm munge"
done
# The name of munge's socket must be short.
folder=$(mktemp -d /tmp/slurm_cluster.XXXXXX)
mkdir "${folder}/state"
port=$((30000 + RANDOM % 200 * 10))
user=$(id -un)

configure() {
    cat << EOF
ClusterName=test
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=${port}
SlurmUser=${user}
SlurmdUser=${user}
AuthType=auth/munge
# A restarted task waits until its old credential expires: 5 s here, 2 minutes by default.
AuthInfo=socket=${folder}/munge.socket,cred_expire=5
StateSaveLocation=${folder}/state
SlurmctldPidFile=${folder}/slurmctld.pid
SlurmctldLogFile=${folder}/slurmctld.log
SlurmdSpoolDir=${folder}/spool.%n
SlurmdPidFile=${folder}/slurmd.%n.pid
SlurmdLogFile=${folder}/slurmd.%n.log
SlurmdParameters=config_overrides
SlurmdTimeout=10
KillWait=5
ReturnToService=1
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
EOF
    for number in $(seq "${nodes}"); do
        echo "NodeName=node${number} NodeHostname=localhost NodeAddr=127.0.0.1" \
            "Port=$((port + number)) CPUs=2"
    done
    echo "PartitionName=test Nodes=ALL Default=YES State=UP"
}

stop() {
    scancel --user="${user}" 2> /dev/null || true
    for _ in $(seq 60); do  # otherwise jobs of a failed test would outlive the cluster
        [ -n "$(squeue --noheader 2> /dev/null)" ] || break
        sleep 0.5
    done
    scontrol shutdown 2> /dev/null || true
    cat "${folder}"/slurm*.pid 2> /dev/null | while read -r process; do
        timeout 10 tail --pid="${process}" -f /dev/null || kill -KILL "${process}" || true
    done
    munged --stop --socket="${folder}/munge.socket" > /dev/null 2>&1 || true
    rm -rf "${folder}"
}

configure > "${folder}/slurm.conf"
export SLURM_CONF=${folder}/slurm.conf
trap stop EXIT
(umask 077 && head -c 128 /dev/urandom > "${folder}/munge.key")
munged --force --socket="${folder}/munge.socket" --key-file="${folder}/munge.key" \
    --pid-file="${folder}/munged.pid" --log-file="${folder}/munged.log" \
    --seed-file="${folder}/munged.seed" 2> "${folder}/munged.out" ||
    fail "munged: $(cat "${folder}/munged.out")"
slurmctld
for number in $(seq "${nodes}"); do
    slurmd -N "node${number}"
done
for _ in $(seq 100); do
    [ "$(sinfo --noheader --Node --states=idle 2> /dev/null | wc -l)" -lt "${nodes}" ] || break
    sleep 0.2
done
[ "$(sinfo --noheader --Node --states=idle | wc -l)" -eq "${nodes}" ] ||
    fail "not all nodes came up: $(tail -n 5 "${folder}"/slurm*.log)"
"$@"
