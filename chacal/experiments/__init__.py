"""One function per table or picture, which declares runs and leaves training to the loop."""
