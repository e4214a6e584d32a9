"""Reads other programs' logs into our records. Formats: nanoGPT, llm.c, modded-nanogpt, nanochat, HF Trainer."""

from onecard.runs.foreign.reading import read_logs

__all__ = ["read_logs"]
