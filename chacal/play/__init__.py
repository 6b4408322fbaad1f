"""The page people look at: stories answered sentence by sentence, and how the answer was found."""
