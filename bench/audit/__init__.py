"""Which entry tokens a teacher's top-K leaves out, on prompts and in a stored distillation set."""
