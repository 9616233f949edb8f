"""Checkpoints trained the paper's way: supervised, and distilled from routed teachers."""
