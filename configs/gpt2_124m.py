# GPT-2 small (~124M parameters) for a 12 GB card: 0.5M tokens per update, Chinchilla's 20 tokens per parameter.
out_dir = 'out-gpt2-124m'
dataset = 'fineweb'

batch_size = 8
gradient_accumulation_steps = 64    # 8 * 64 = 512 sequences
block_size = 1024

n_layer = 12
n_head = 12
n_embd = 768
dropout = 0.0
bias = False

learning_rate = 6e-4
min_lr = 6e-5
max_iters = 4750                    # ~2.5B tokens
lr_decay_iters = 4750
warmup_iters = 250
weight_decay = 0.1

eval_interval = 250
eval_iters = 100
