#!/bin/bash
# Two cards in one machine. The same line begins the run and goes on with it.
set -eu

torchrun --standalone --nproc_per_node=2 --max-restarts=3 \
    -m onecard train train_fineweb.py --continue
