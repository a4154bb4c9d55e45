#!/usr/bin/env bash
# Start a Slurm of one node on this machine, with two GPUs that are none: slurmctld, slurmd and munged, as
# root, without systemd, control groups or accounting. down.sh stops it. Debian's packages are installed if
# they are missing.
set -euo pipefail

base=/var/lib/resnet-mechanisms-slurm
name=resnet-mechanisms-test
if [ -e /etc/slurm/slurm.conf ] && ! grep -q "^ClusterName=$name$" /etc/slurm/slurm.conf; then
  echo "/etc/slurm/slurm.conf is of another cluster" >&2
  exit 3
fi
if ! command -v slurmctld > /dev/null || ! command -v munged > /dev/null; then
  { apt-get update -q && DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -q --no-install-recommends slurm-wlm munge; } > /dev/null 2>&1 || {
    echo "slurm-wlm and munge cannot be installed here" >&2
    exit 3
  }
fi

"$(dirname "$0")/down.sh"
rm -rf "$base"
mkdir -p "$base"/{state,spool,log,run} /etc/slurm
for gpu in 0 1; do mknod "$base/gpu$gpu" c 1 3; done # twins of /dev/null

install -d -o munge -g munge -m 755 /run/munge
install -d -o munge -g munge -m 700 /var/log/munge
runuser -u munge -- /usr/sbin/munged --force

node=$(hostname -s)
cat > /etc/slurm/gres.conf << CONF
NodeName=$node Name=gpu File=$base/gpu[0-1]
CONF
cat > /etc/slurm/slurm.conf << CONF
ClusterName=$name
SlurmctldHost=$node(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
StateSaveLocation=$base/state
SlurmdSpoolDir=$base/spool
SlurmctldPidFile=$base/run/slurmctld.pid
SlurmdPidFile=$base/run/slurmd.pid
SlurmctldLogFile=$base/log/slurmctld.log
SlurmdLogFile=$base/log/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=sched_interval=2
DefMemPerCPU=500
EnforcePartLimits=ALL
MinJobAge=3600
ReturnToService=2
GresTypes=gpu
NodeName=$node NodeAddr=127.0.0.1 CPUs=2 RealMemory=6000 Gres=gpu:2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
slurmctld
slurmd
for _ in $(seq 120); do
  [ "$(sinfo -h -o %t 2> /dev/null)" = idle ] && exit 0
  sleep 0.25
done
tail -n 20 "$base"/log/*.log >&2
exit 1
