"""Training joins models and tasks: one loop, run folders, checkpoints that resume bit for bit."""
