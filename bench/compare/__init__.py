"""`bench compare`: runs and checkpoints side by side, on the same cases."""
