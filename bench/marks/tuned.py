# nanoGPT's 124M in 12 GiB, its batch and rate tuned for one pass over 45.0M tokens (docs/measurements/recipe-log.md).
n_layer = 12
n_head = 12
n_embd = 768
block_size = 1024
dropout = 0.0
batch_size = 8
gradient_accumulation_steps = 4  # 32,768 tokens an update
learning_rate = 1.2e-3
min_lr = 1.2e-4
beta2 = 0.95
warmup_iters = 100
max_iters = 1373
lr_decay_iters = 1373
eval_iters = 80
dtype = "bfloat16"
