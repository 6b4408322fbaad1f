"""The only stopwatch, and what is measured with it."""
