"""The names of the parts: what an allocation is for; and of the sections of a model: what is happening."""

from __future__ import annotations

from dataclasses import dataclass

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

GATHERED = "gathered blocks"

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
    GATHERED: "weights of the blocks at work from all cards, and gradients on their way to all",
    OPTIMIZER_TEMPORARIES: "norms and copies for clipping, scaling and the update",
}


@dataclass(frozen=True)
class Section:
    """A section of a model: the moment of its forward pass, and of its backward pass."""

    forward: str
    backward: str


EMBEDDINGS = Section("forward pass", "backward pass of the embeddings")
BLOCKS = Section("forward pass", "backward pass of the blocks")
LAST_NORM = Section("forward pass", "backward pass of the loss")
LOSS = Section("loss", "backward pass of the loss")
HEAD_AND_LOSS = Section("head and loss", "backward pass of the loss")
