# The config of every command that is given none: a small GPT on the source of Python's own standard library.
# It needs no download and no GPU: about two minutes on a laptop. It is a plain nanoGPT config file: copy it and change
# what you like.
out_dir = 'runs/default'
dataset = 'python-stdlib'   # the .py files of this machine's Python, as bytes
vocab_size = 256            # bytes

n_layer = 4
n_head = 4
n_embd = 128
block_size = 128
dropout = 0.0
bias = False

batch_size = 16
gradient_accumulation_steps = 1
max_iters = 800
lr_decay_iters = 800
warmup_iters = 50
learning_rate = 2e-3
min_lr = 2e-4
beta2 = 0.99                # few tokens per update: average the second moment for longer

eval_interval = 200
eval_iters = 10
log_interval = 20
