"""The event loop of simulations, whose clock jumps to the next timer."""
