"""One sequence over many processes: `torch.distributed` ranks that each hold a part of the text."""

from chacal.parallel.attention import check_shardable, shardable, sharded_attention
from chacal.parallel.context import Part, context_parallel, current_part

__all__ = [
    "Part",
    "check_shardable",
    "context_parallel",
    "current_part",
    "shardable",
    "sharded_attention",
]
