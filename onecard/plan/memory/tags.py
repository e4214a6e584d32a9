"""The names of the parts: what an allocation is for. Every description of a program uses this one closed set."""

from __future__ import annotations

WEIGHTS = "weights"
GRADIENTS = "gradients"
OPTIMIZER_STATE = "optimizer state"
WEIGHT_CASTS = "weight casts"
ACTIVATIONS = "activations"
ATTENTION = "attention"
LOGITS_AND_LOSS = "logits and loss"
GRADIENTS_IN_FLIGHT = "gradients in flight"
WORKSPACE = "workspace"
TOKEN_IDS = "token ids"
OPTIMIZER_TEMPORARIES = "optimizer temporaries"

TAGS: dict[str, str] = {
    WEIGHTS: "float32",
    GRADIENTS: "float32, until zero_grad",
    OPTIMIZER_STATE: "AdamW's moments, float32",
    WEIGHT_CASTS: "half-precision copies",
    ACTIVATIONS: "for backward",
    ATTENTION: "q, k, v, output",
    LOGITS_AND_LOSS: "all logits still held, and the loss's copies and gradients",
    GRADIENTS_IN_FLIGHT: "of activations, and of weights not yet added up",
    WORKSPACE: "scratch memory of cuBLAS and of kernels",
    TOKEN_IDS: "inputs, targets and positions, 8 bytes each",
    OPTIMIZER_TEMPORARIES: "norms and copies for clipping, scaling and the update",
}
