#!/bin/bash
# Two "machines" on one: network namespaces with a cable between them, and torchrun's rendezvous over it.
#   sudo bash bench/two_machines.sh [PATH of onecard's environment]
# Trains 60 updates alone, then on two machines with two processes each, where a process of the second machine is
# killed at step 20, and compares the losses. Needs ip (iproute2) and root; changes no network of this machine.
set -euo pipefail

bin=${1:-.venv/bin}
bin=$(cd "$bin" && pwd)
folder=$(mktemp -d)
one=onecard-$$-1 two=onecard-$$-2
trap 'ip netns del $one; ip netns del $two; rm -r "$folder"' EXIT

ip netns add "$one"
ip netns add "$two"
ip link add cable netns "$one" type veth peer name cable netns "$two"
ip -n "$one" address add 10.77.0.1/24 dev cable
ip -n "$two" address add 10.77.0.2/24 dev cable
for machine in "$one" "$two"; do
    ip -n "$machine" link set lo up
    ip -n "$machine" link set cable up
done

cd "$folder"
cat > tiny.py <<'END'
dataset = "python-stdlib"
device = "cpu"
dtype = "float32"
n_layer = 2
n_head = 2
n_embd = 32
block_size = 32
batch_size = 2
gradient_accumulation_steps = 16
learning_rate = 0.003
warmup_iters = 5
max_iters = 60
lr_decay_iters = 60
eval_interval = 20
eval_iters = 4
checkpoint_interval = 5
END
export OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=cable

on() { # NAMESPACE ADDRESS IS_HOST: one torchrun on a machine, as in docs/how-to/more-cards.
    # Both have the name of this machine, which leads the other nowhere: so they are told their addresses.
    ip netns exec "$1" "$bin/torchrun" --nnodes=2 --nproc_per_node=2 --local-addr="$2" --rdzv-conf=is_host="$3" \
        --rdzv_id=onecard --rdzv_backend=c10d --rdzv_endpoint=10.77.0.1:29400 --max-restarts=3 \
        -m onecard train tiny.py --out_dir=both --continue
}

"$bin/onecard" train tiny.py --out_dir=alone > alone.txt 2>&1 || { cat alone.txt; exit 1; }
on "$one" 10.77.0.1 1 > first.txt 2> first.err &
on "$two" 10.77.0.2 0 > second.txt 2> second.err &
until grep -q '"step":20,' both/records.jsonl 2> /dev/null; do
    [ "$(jobs -r | wc -l)" = 2 ] || { cat first.err second.err; exit 1; }
    sleep 0.05
done
for process in $(ip netns pids "$two"); do
    if tr '\0' '\n' < "/proc/$process/environ" | grep -qx LOCAL_RANK=1; then
        kill -9 "$process"
    fi
done
wait

echo "--- first machine"; cat first.txt | tail -n 3; grep -A 2 error: first.err || true
echo "--- second machine"; cat second.txt; grep -A 2 error: second.err || true
"$bin/python" - <<'END'
from pathlib import Path
from onecard.runs.folder import load_run
from onecard.runs.records import Start
alone, both = (load_run(Path(name)) for name in ("alone", "both"))
assert [step.step for step in both.steps] == [step.step for step in alone.steps] == list(range(1, 61))
apart = max(abs(a.loss - b.loss) / a.loss for a, b in zip(both.steps, alone.steps))
starts = [each.step for each in both.history.records if isinstance(each, Start)]
print(f"--- 60 updates, begun at steps {starts}; losses at most {apart:.1e} of the loss from those of one process")
assert apart < 2e-5 and len(starts) == 2, (apart, starts)
END
