"""Named waits, signals, message queues and bounded mappings of the control plane."""
