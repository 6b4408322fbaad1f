"""One sequence over many processes: `torch.distributed` ranks that each hold a part of the text."""

from chacal.parallel.attention import sharded_attention

__all__ = ["sharded_attention"]
