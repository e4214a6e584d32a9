#!/bin/bash
# Two machines: start this on both, with the name of one of them:  bash two-machines.sh box1
# The config, the data and the run folder must have the same path on both: a disk that both see.
set -eu

host=${1:?the name of one of the machines, the same on both}
cards=${2:-1}

torchrun --nnodes=2 --nproc_per_node="$cards" \
    --rdzv_id=onecard --rdzv_backend=c10d --rdzv_endpoint="$host:29400" --max-restarts=3 \
    -m onecard train train_fineweb.py --continue
