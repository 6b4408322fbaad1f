"""Parameters around the operators: an attention layer and a small decoder."""

from chacal.nn.attention import Attention
from chacal.nn.transformer import Transformer

__all__ = ["Attention", "Transformer"]
