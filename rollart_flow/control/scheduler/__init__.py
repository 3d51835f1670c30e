"""Which attempts run: admission, groups, cancellation, and the recovery of all three."""
