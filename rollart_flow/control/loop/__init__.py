"""What every part of the control plane waits with and keeps messages in."""
