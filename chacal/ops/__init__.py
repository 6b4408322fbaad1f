"""Attention as pure functions of tensors: no parameters, no state, no configuration."""
