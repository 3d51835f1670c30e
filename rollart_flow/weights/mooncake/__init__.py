"""Published weights in the host memory of a Mooncake cluster (ROLLART section 6.2)."""
