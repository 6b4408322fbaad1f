"""Resolvent attention for entity tracking: ChaCAL and Block-ChaCAL, exact, causal and fast."""

from chacal._version import __version__
from chacal.notation import parse_operator, parse_operators
from chacal.operators import Operator
from chacal.ops.blockwise import block_resolvent_attention, blockwise
from chacal.ops.decoding import Decoder
from chacal.ops.pattern import pattern_resolvent_attention
from chacal.ops.pooled import pooled_resolvent_attention
from chacal.ops.resolvent import resolvent, t_post, t_pre, t_raw
from chacal.ops.routed import routed_resolvent_attention
from chacal.ops.sparse import bigbird_attention, dense_attention, local_attention
from chacal.ops.streaming import resolvent_attention
from chacal.ops.weights import attention_weights, top_k
from chacal.ops.window import window_resolvent_attention

__all__ = [
    "Decoder",
    "Operator",
    "__version__",
    "attention_weights",
    "bigbird_attention",
    "block_resolvent_attention",
    "blockwise",
    "dense_attention",
    "local_attention",
    "parse_operator",
    "parse_operators",
    "pattern_resolvent_attention",
    "pooled_resolvent_attention",
    "resolvent",
    "resolvent_attention",
    "routed_resolvent_attention",
    "t_post",
    "t_pre",
    "t_raw",
    "top_k",
    "window_resolvent_attention",
]
