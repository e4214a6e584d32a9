"""Tensors without numbers: a program runs on paper, and the tape says what it allocates and frees, and when."""
