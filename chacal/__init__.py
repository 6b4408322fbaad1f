"""Resolvent attention for entity tracking: ChaCAL and Block-ChaCAL, exact, causal and fast."""

from chacal import nn
from chacal._version import __version__
from chacal.decoding.decoder import Decoder
from chacal.operators import (
    BigBird,
    BlockResolvent,
    Delta,
    Dense,
    Learn,
    Local,
    Operator,
    PatternResolvent,
    PooledResolvent,
    Resolvent,
    RoutedResolvent,
    TPost,
    TPre,
    WindowResolvent,
    parse_operator,
    parse_operators,
)
from chacal.ops.baselines import bigbird_attention, dense_attention, local_attention
from chacal.ops.blockwise import block_resolvent_attention, blockwise
from chacal.ops.delta import delta_attention
from chacal.ops.pattern import pattern_resolvent_attention
from chacal.ops.pooled import pooled_resolvent_attention
from chacal.ops.resolvent import resolvent, t_post, t_pre, t_raw
from chacal.ops.routed import routed_resolvent_attention
from chacal.ops.streaming import resolvent_attention
from chacal.ops.weights import attention_weights, top_k
from chacal.ops.window import window_resolvent_attention

__all__ = [
    "BigBird",
    "BlockResolvent",
    "Decoder",
    "Delta",
    "Dense",
    "Learn",
    "Local",
    "Operator",
    "PatternResolvent",
    "PooledResolvent",
    "Resolvent",
    "RoutedResolvent",
    "TPost",
    "TPre",
    "WindowResolvent",
    "__version__",
    "attention_weights",
    "bigbird_attention",
    "block_resolvent_attention",
    "blockwise",
    "delta_attention",
    "dense_attention",
    "local_attention",
    "nn",
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
