"""The family of operators as frozen dataclasses, and their text form both ways."""

from chacal.operators.base import Learn, Operator
from chacal.operators.family import (
    OPERATORS,
    BigBird,
    BlockResolvent,
    Delta,
    Dense,
    Local,
    PatternResolvent,
    PooledResolvent,
    Resolvent,
    RoutedResolvent,
    TPost,
    TPre,
    WindowResolvent,
)
from chacal.operators.notation import (
    former_text,
    parse_operator,
    parse_operators,
    spelled_out,
    split_operators,
)

__all__ = [
    "OPERATORS",
    "BigBird",
    "BlockResolvent",
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
    "former_text",
    "parse_operator",
    "parse_operators",
    "spelled_out",
    "split_operators",
]
