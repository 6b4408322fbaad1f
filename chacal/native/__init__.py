"""Exact ChaCAL in C, compiled on the machine where it runs; its plain twin is ops/streaming.py.

Where there is no compiler, nothing is lost but time.
"""
