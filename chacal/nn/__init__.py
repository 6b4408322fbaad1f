"""Parameters around the operators: an attention layer, its learned γ, and a small decoder."""

from chacal.nn.attention import Attention
from chacal.nn.gamma import LearnedGamma, parameter_groups
from chacal.nn.transformer import Transformer

__all__ = ["Attention", "LearnedGamma", "Transformer", "parameter_groups"]
