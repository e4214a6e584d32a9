# A 30M-parameter model for a first evening: small batches, short context, float16 for cards without bfloat16.
out_dir = 'out-gpt2-30m'
dataset = 'fineweb'

batch_size = 16
gradient_accumulation_steps = 4     # 16 * 4 = 64 sequences
block_size = 512

n_layer = 6
n_head = 6
n_embd = 384
dropout = 0.0
bias = False

learning_rate = 1e-3
min_lr = 1e-4
max_iters = 20000                   # ~655M tokens
lr_decay_iters = 20000
warmup_iters = 500

dtype = 'float16'
eval_interval = 500
eval_iters = 100
