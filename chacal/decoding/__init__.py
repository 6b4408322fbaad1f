"""One token at a time: the states that stand where a KV cache would."""
