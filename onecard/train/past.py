"""What a model remembers of the tokens it has read: their keys and values, so that it reads only what follows.

Letters: B sequences, T tokens of a sequence, H heads, D = n_embd / n_head.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

from onecard.config.schema import RunConfig


class Past:
    """Keys and values of the tokens before those that a model reads next: `GPT.hidden_after` reads and adds to them.

    All sequences have read equally many tokens. `room` is how many they may read, at most block_size.
    """

    def __init__(self, config: RunConfig, *, room: int | None = None) -> None:
        self.room = config.block_size if room is None else room
        self.layers = [_Layer(self) for _ in range(config.n_layer)]
        self.length = 0

    def forget(self) -> None:
        """Begin again with no token."""
        self.length = 0

    def repeated(self, sequences: int, *, room: int) -> Self:
        """A copy for `sequences` that continue this one's text in different ways, up to `room` tokens each."""
        copy = type(self).__new__(type(self))
        copy.room, copy.length = room, self.length
        copy.layers = [layer.repeated(copy, sequences) for layer in self.layers]
        return copy


class _Layer:
    """The keys and values of one layer."""

    def __init__(self, past: Past) -> None:
        self._past = past
        self._keys_and_values: Tensor | None = None  # 2BHTD; made by the first tokens, in their type

    @property
    def length(self) -> int:
        """Tokens before the next one."""
        return self._past.length

    def attention(self, q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor) -> Tensor:
        """y_BHTD of tokens that see all before them and each other, as far as they come first."""
        before, new = self._past.length, q_BHTD.shape[2]
        end = before + new
        if self._keys_and_values is None:
            B, H, _, D = k_BHTD.shape
            self._keys_and_values = k_BHTD.new_empty((2, B, H, self._past.room, D))
        all_k_BHTD, all_v_BHTD = self._keys_and_values[:, :, :, :end]
        all_k_BHTD[:, :, before:] = k_BHTD
        all_v_BHTD[:, :, before:] = v_BHTD
        if before == 0:  # exactly as without a past
            return functional.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, is_causal=True)
        seen_TT = None if new == 1 else torch.ones(new, end, dtype=torch.bool, device=q_BHTD.device).tril(before)
        return functional.scaled_dot_product_attention(q_BHTD, all_k_BHTD, all_v_BHTD, attn_mask=seen_TT)

    def known(self) -> Tensor:
        """Keys and values of the tokens that were read, 2BHTD."""
        assert self._keys_and_values is not None, "nothing was read"
        return self._keys_and_values[:, :, :, : self._past.length]

    def repeated(self, past: Past, sequences: int) -> _Layer:
        copy = _Layer(past)
        if self._keys_and_values is not None:
            _, _, H, _, D = self._keys_and_values.shape
            copy._keys_and_values = self._keys_and_values.new_empty((2, sequences, H, past.room, D))
            copy._keys_and_values[:, :, :, : past.length] = self._keys_and_values[:, :, :, : past.length]
        return copy


class Continuations:
    """What texts see that continue the sequences of a past: `sequence_R` says which one each continues.

    Nothing is added to the past: `GPT.hidden_after` reads all of the texts at once.
    """

    def __init__(self, past: Past, sequence_R: Tensor) -> None:
        self.length = past.length
        self.layers = [_ContinuedLayer(layer, sequence_R) for layer in past.layers]


class _ContinuedLayer:
    """One layer's keys and values, copied for each text only while they are attended to."""

    def __init__(self, layer: _Layer, sequence_R: Tensor) -> None:
        self.length = layer.length
        self._layer, self._sequence_R = layer, sequence_R

    def attention(self, q_RHTD: Tensor, k_RHTD: Tensor, v_RHTD: Tensor) -> Tensor:
        past_k_BHTD, past_v_BHTD = self._layer.known()
        before, new = self.length, q_RHTD.shape[2]
        seen_TT = torch.ones(new, before + new, dtype=torch.bool, device=q_RHTD.device).tril(before)
        all_k_RHTD = torch.cat([past_k_BHTD[self._sequence_R], k_RHTD], dim=2)
        all_v_RHTD = torch.cat([past_v_BHTD[self._sequence_R], v_RHTD], dim=2)
        return functional.scaled_dot_product_attention(q_RHTD, all_k_RHTD, all_v_RHTD, attn_mask=seen_TT)
