"""Tasks of software engineering: an agent changes files in a box, and tests judge its diff."""
