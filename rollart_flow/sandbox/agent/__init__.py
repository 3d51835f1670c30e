"""The agent in a box and the holder's side of it, for boxes of bubblewrap and containers alike."""
