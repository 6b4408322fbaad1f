"""Exact, windowed and routed ChaCAL in C, compiled on the machine where they run.

The plain twins are ops/streaming.py, ops/tiled.py, ops/routed.py and ops/routing.py: where there is
no compiler, nothing is lost but time.
"""
