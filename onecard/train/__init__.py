"""Training: the only package that imports torch. Nothing is re-exported, so that importing it stays light."""
