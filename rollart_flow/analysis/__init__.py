"""What stored runs say beyond their own figures: computed from their tables alone."""
