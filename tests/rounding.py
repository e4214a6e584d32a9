"""The error of one rounding to a type: relative, where it is largest."""

import torch

from onecard.train.loss import has_kernel

KERNELS = has_kernel("cpu")  # in Triton's interpreter, which cuts bfloat16 off, where a card and torch round it
ROUNDING = {torch.float32: 0.0, torch.float16: 2**-11, torch.bfloat16: 2**-7 if KERNELS else 2**-8}
