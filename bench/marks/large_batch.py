# nanoGPT's 124M in 12 GiB with a large batch, as its README suggests (docs/measurements/recipe-log.md).
n_layer = 12
n_head = 12
n_embd = 768
block_size = 1024
dropout = 0.0
batch_size = 8
gradient_accumulation_steps = 16  # 131,072 tokens an update
learning_rate = 6e-4
min_lr = 6e-5
beta2 = 0.95
warmup_iters = 60
max_iters = 600
lr_decay_iters = 600
eval_iters = 80
dtype = "bfloat16"
