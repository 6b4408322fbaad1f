"""The command: parse, call and print; no logic."""
